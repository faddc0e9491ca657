"""Counting and timing what happens."""

import pytest

from node_agent.kube.calls import Call
from node_agent.telemetry.catalogue import INSTRUMENTS
from node_agent.telemetry.instruments import BUCKETS, Count, Timing


def timing() -> Timing:
    return Timing(name="work_seconds", help="Work.", labels=("what", "result"))


def test_what_happens_is_counted_by_its_labels() -> None:
    count = Count(name="things_total", help="Things.", labels=("kind",))
    for kind in ("a", "b", "a"):
        count.happened(kind)
    assert count.values == {("a",): 2, ("b",): 1}


def test_what_took_time_is_in_the_first_bucket_that_has_room_for_it() -> None:
    timed = timing()
    for seconds in (0.0005, 0.001, 0.002, 1000.0):
        timed.took(seconds, "dig", "ok")
    times = timed.values[("dig", "ok")]
    assert (times.buckets[0], times.buckets[1], times.buckets[-1]) == (2, 1, 1)
    assert times.count == 4
    assert times.seconds == pytest.approx(1000.0035)
    assert len(times.buckets) == len(BUCKETS) + 1


def test_a_block_that_raises_has_failed_and_still_raises() -> None:
    timed = timing()
    with timed.timed("dig"):
        pass
    with pytest.raises(ValueError, match="stone"), timed.timed("dig"):
        raise ValueError("stone")
    assert {labels: times.count for labels, times in timed.values.items()} == {("dig", "ok"): 1, ("dig", "failed"): 1}


@pytest.mark.parametrize(
    ("path", "plural"),
    [
        ("/api/v1/nodes/node-a/status", "nodes"),
        ("/api/v1/namespaces/team/pods/train", "pods"),
        ("/apis/resource.k8s.io/v1/resourceslices", "resourceslices"),
        ("/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/four/status", "resourceclaims"),
        ("/apis/resource.k8s.io", ""),
    ],
)
def test_a_call_to_the_api_server_is_told_of_by_what_it_is_about_and_never_by_a_name(path: str, plural: str) -> None:
    assert Call(verb="get", path=path).plural == plural


def test_each_instrument_has_a_name_of_its_own_with_the_unit_in_it() -> None:
    assert len({one.name for one in INSTRUMENTS}) == len(INSTRUMENTS)
    assert all(one.name.endswith("_seconds" if isinstance(one, Timing) else "_total") for one in INSTRUMENTS)
    assert all(one.labels[-1] == "result" for one in INSTRUMENTS if isinstance(one, Timing))
