"""Rules that reach over several keys are kept, and each broken one is named with its path."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.file import File
from node_agent.config.rules import broken_rules
from node_agent.config.sources import nested
from node_agent.model.vendor import NVIDIA


def broken(**values: object) -> list[str]:
    """The broken rules of a file with these values; a double underscore in a name stands for a dot."""
    tree = nested({path.replace("__", "."): value for path, value in values.items()})
    return [str(problem) for problem in broken_rules(msgspec.convert(tree, File))]


def shared(name: str = "gpu", **more: Any) -> dict[str, Any]:
    return {"resources": [{"name": name, "replicas": 2, **more}]}


def test_the_defaults_break_no_rule() -> None:
    assert broken() == []


@pytest.mark.parametrize("interval", ["1s", "1h", "60m", "1m30s", 1, 3600, 0.001e6])
def test_an_interval_within_its_range_is_fine(interval: object) -> None:
    assert broken(agent__rescanInterval=interval, agent__health__probeInterval=interval) == []


@pytest.mark.parametrize("interval", ["0s", "999ms", "1h1s", "9999999h", 0, 0.5, 3601, 10**15])
def test_an_interval_out_of_its_range_is_named_with_the_range(interval: object) -> None:
    paths = ("agent.rescanInterval", "agent.health.probeInterval")
    found = broken(agent__rescanInterval=interval, agent__health__probeInterval=interval)
    assert [text.partition("; got ")[0] for text in found] == [
        f"{path}: expected a duration from 1s to 1h" for path in paths
    ]


@pytest.mark.parametrize("node", ["", "gpu-1", "gpu-1.example.com", "a" * 253])
def test_a_name_that_a_node_can_have_is_fine(node: str) -> None:
    assert broken(agent__nodeName=node) == []


@pytest.mark.parametrize("node", ["GPU-1", "-a", "a..b", "a b", "a" * 254, "a/b"])
def test_a_name_that_no_node_can_have_is_named(node: str) -> None:
    (complaint,) = broken(agent__nodeName=node)
    assert complaint.startswith("agent.nodeName: expected the name of a Kubernetes node; got ")


@pytest.mark.parametrize(("port", "fine"), [(0, True), (9400, True), (65535, True), (65536, False), (99999, False)])
def test_a_port_ends_at_65535(port: int, fine: bool) -> None:
    complaint = f'agent.http.address: expected a port up to 65535; got "[::1]:{port}"'
    assert broken(agent__http__address=f"[::1]:{port}") == ([] if fine else [complaint])


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"xids": [48], "action": "withdraw", "after": 3, "within": "10m"}, None),
        ({"causes": ["nvlink"], "clearedBy": "operator"}, None),
        ({"xids": "all", "action": "count"}, None),
        ({"action": "withdraw"}, "agent.health.rules[0]: is about nothing: give it xids or causes"),
        ({"xids": [48]}, "agent.health.rules[0]: says nothing: give it an action or clearedBy"),
        (
            {"xids": [48], "clearedBy": "reset", "after": 3},
            "agent.health.rules[0].after: needs an action, which is what comes after so many",
        ),
        (
            {"xids": [48], "action": "evict", "after": 3, "within": "2h"},
            'agent.health.rules[0].within: expected a duration from 1s to 1h; got "2h"',
        ),
    ],
)
def test_a_rule_on_health_is_about_something_and_says_something(rule: dict[str, object], complaint: str | None) -> None:
    assert broken(agent__health__rules=[rule]) == ([complaint] if complaint else [])


def test_time_slicing_and_mps_exclude_each_other() -> None:
    (complaint,) = broken(sharing__timeSlicing=shared(), sharing__mps=shared(), flags__mpsRoot="/mps")
    assert complaint == "sharing: timeSlicing and mps exclude each other: keep one of them"


def test_both_ways_of_sharing_go_with_every_strategy_of_mig() -> None:
    for strategy in ("none", "single", "mixed"):
        assert broken(sharing__mps=shared(), flags__migStrategy=strategy) == []
        assert broken(sharing__timeSlicing=shared(), flags__migStrategy=strategy) == []


GOOD_NAMES = ["nvidia.com/gpu", "gpu", "nvidia.com/mig-1g.5gb", "gpu.shared", "a" * 52]
BAD_NAMES = ["$gpu", "nvidia.com/", "nvidia.com/GPU", "other.com/gpu", "gpu_1", ".gpu", "a" * 53, "a..b", "gpu\n"]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_name_that_kubernetes_takes_is_fine_with_or_without_the_prefix(name: str) -> None:
    assert broken(sharing__timeSlicing=shared(name, rename=name)) == []
    assert broken(resources__gpus=[{"pattern": "*", "name": name}]) == []


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(
    ("values", "path"),
    [
        (lambda name: {"sharing__timeSlicing": shared(name)}, "sharing.timeSlicing.resources[0].name"),
        (lambda name: {"sharing__timeSlicing": shared(rename=name)}, "sharing.timeSlicing.resources[0].rename"),
        (lambda name: {"sharing__mps": shared(name), "flags__mpsRoot": "/"}, "sharing.mps.resources[0].name"),
        (lambda name: {"resources__gpus": [{"pattern": "*", "name": name}]}, "resources.gpus[0].name"),
        (lambda name: {"resources__mig": [{"pattern": "*", "name": name}]}, "resources.mig[0].name"),
    ],
)
def test_a_name_that_kubernetes_would_refuse_is_named_wherever_it_stands(name: str, values: Any, path: str) -> None:
    (complaint,) = broken(**values(name))
    assert complaint.startswith(f"{path}: expected a resource such as nvidia.com/gpu: ")


def test_a_name_of_another_vendor_is_refused_with_the_domain_that_this_node_has() -> None:
    (complaint,) = broken(resources__gpus=[{"pattern": "*", "name": "amd.com/gpu"}])
    assert "in the domain nvidia.com, " in complaint


def test_the_number_of_the_item_is_in_the_path() -> None:
    resources = [{"name": "gpu", "replicas": 2}, {"name": "!", "replicas": 2}]
    (complaint,) = broken(sharing__timeSlicing={"resources": resources})
    assert complaint.startswith("sharing.timeSlicing.resources[1].name: ")


def test_a_name_with_the_suffix_of_shared_devices_must_fit_too() -> None:
    long = "a" * 50
    assert broken(sharing__timeSlicing=shared(long)) == []
    assert broken(sharing__timeSlicing={**shared(long, rename="short"), "renameByDefault": True}) == []
    (complaint,) = broken(sharing__timeSlicing={**shared(long), "renameByDefault": True})
    assert complaint.startswith("sharing.timeSlicing.resources[0].name: expected a resource such as ")


def own(**rule: object) -> list[str]:
    """The broken rules of a file that shares in our own way."""
    return broken(agent__sharing__rules=[{"replicas": 4, **rule}])


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"timeSlice": "Long", "resource": "gpu.shared"},
        {"strategy": "mps", "replicas": 1},
        {"strategy": "mps", "memoryPerShare": "20Gi", "threadPercentagePerShare": 25, "multiUser": True},
        {"strategy": "mps", "threadPercentagePerShare": 50, "overcommit": True},
    ],
)
def test_a_way_to_share_that_can_be_had_breaks_no_rule(rule: dict[str, object]) -> None:
    assert own(**rule) == []


def test_one_share_is_no_time_slicing() -> None:
    expected = "expected a whole number of at least 2 with time-slicing, and 1 with mps; got 1"
    assert own(replicas=1) == [f"agent.sharing.rules[0].replicas: {expected}"]


@pytest.mark.parametrize(
    ("strategy", "key", "value"),
    [
        ("mps", "timeSlice", "Short"),
        ("time-slicing", "memoryPerShare", "1Gi"),
        ("time-slicing", "threadPercentagePerShare", 10),
        ("time-slicing", "overcommit", True),
        ("time-slicing", "multiUser", True),
    ],
)
def test_what_a_strategy_cannot_do_is_refused_where_it_stands(strategy: str, key: str, value: object) -> None:
    expected = f"agent.sharing.rules[0].{key}: does not go with the strategy {strategy}"
    assert own(strategy=strategy, **{key: value}) == [expected]


def test_shares_may_not_add_up_to_more_than_the_gpu_unless_that_is_wanted() -> None:
    assert own(strategy="mps", replicas=3, threadPercentagePerShare=34) == [
        "agent.sharing.rules[0].threadPercentagePerShare: 3 shares of 34 % are more than the GPU: give less, or set "
        "overcommit"
    ]


def test_a_share_has_no_less_memory_than_mps_can_count() -> None:
    assert own(strategy="mps", memoryPerShare="1Mi") == []
    assert own(strategy="mps", memoryPerShare="1000k") == [
        'agent.sharing.rules[0].memoryPerShare: expected at least 1Mi; got "1000k"'
    ]


def test_a_bad_name_of_shares_is_named_with_the_number_of_the_rule() -> None:
    (complaint,) = broken(agent__sharing__rules=[{"replicas": 2}, {"replicas": 2, "resource": "GPU"}])
    assert complaint.startswith("agent.sharing.rules[1].resource: expected a resource such as nvidia.com/gpu")


@given(st.text(max_size=30))
def test_a_full_name_has_the_prefix_once_and_stays_as_it_is(name: str) -> None:
    full = NVIDIA.full(name)
    assert full.startswith("nvidia.com/")
    assert full.endswith(name)
    assert NVIDIA.full(full) == full
