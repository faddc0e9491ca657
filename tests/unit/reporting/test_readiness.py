"""The agent's readiness: how each part is judged, the states of the whole, and which changes are news."""

import asyncio
import time
from collections.abc import Iterable

import msgspec
import pytest
from msgspec.structs import replace

from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.gpu import PartitionMode
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.reporting import readiness_watch
from node_agent.reporting.parts import CdiStatus, ClaimsStatus, PartState, PartStatus, ResourceStatus, ServiceStatus
from node_agent.reporting.readiness import Facts, Phase, Readiness, advanced, parts_of
from node_agent.reporting.readiness_watch import ReadinessNews, ReadinessWatch
from tests.fakes import builders

REGISTERED = ResourceStatus(
    name="nvidia.com/gpu", phase="registered", detail="gpu-1.sock", registrations=1, devices=8, healthy=8
)
CLAIMS = ClaimsStatus(driver="gpu.nvidia.com", phase="registered", registrations=1, generation=3, slices=2, devices=8)
CDI = CdiStatus(path="/var/run/cdi/a.json", kind="k", devices=8)
WELL = Facts(
    inventory=builders.h200_node(),
    resources=[REGISTERED],
    claims=CLAIMS,
    cdi=CDI,
    services=[ServiceStatus(name="inventory", condition="running")],
    mps={"gpu-0": None},
)


def part(facts: Facts, name: str) -> PartStatus:
    (found,) = [one for one in parts_of(facts) if one.name == name]
    return found


def states(facts: Facts) -> dict[str, PartState]:
    return {one.name: one.state for one in parts_of(facts)}


def whole(facts: Facts) -> Readiness:
    return advanced(Readiness(), parts_of(facts), 100.0)


def ill(node: Inventory, *causes: Cause, gpus: Iterable[int] = (0,)) -> HealthReport:
    return HealthReport(devices={node.gpus[index].uuid: DeviceHealth(causes=causes) for index in gpus})


XID = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79", since=1.0, code=79)
DEAF = Cause(reason=Reason.EVENTS_FAILED, severity=Severity.WITHDRAWN, message="no events", since=1.0)


# Part by part


def test_where_all_is_well_every_part_is_ready_or_not_used() -> None:
    found = states(WELL)
    assert found.pop("mig") is PartState.OFF
    assert set(found) == {
        "services",
        "library",
        "driver",
        "devices",
        "cdi",
        "registration",
        "claims",
        "slices",
        "mps",
    }
    assert set(found.values()) == {PartState.READY}


def test_every_reason_is_one_word_for_machines_and_no_part_is_named_twice() -> None:
    worse = replace(WELL, stalled="hangs", mps={"gpu-0": "dead"}, cdi=None, claims=None, resources=None)
    for facts in (WELL, worse, Facts(inventory=Inventory())):
        parts = parts_of(facts)
        assert len({one.name for one in parts}) == len(parts)
        assert all(one.reason.isalnum() and one.reason[0].isupper() for one in parts)


def test_before_the_first_look_the_driver_is_waited_for_and_said_once() -> None:
    facts = Facts(inventory=Inventory())
    assert part(facts, "driver").reason == "NotLookedYet"
    assert whole(facts).trouble == ("the GPUs have not been looked at yet",)


def test_a_driver_that_is_not_loaded_is_the_drivers_fault_and_the_library_is_well() -> None:
    facts = replace(WELL, inventory=Inventory(generation=2, problem="load the module"))
    assert part(facts, "driver").state is PartState.FAILED
    assert part(facts, "driver").messages == ("load the module",)
    assert part(facts, "library").state is PartState.READY


def test_a_library_that_does_not_fit_is_told_from_the_driver() -> None:
    facts = replace(WELL, inventory=Inventory(generation=2, problem="mismatch", without_library=True))
    assert part(facts, "library").messages == ("mismatch",)
    assert part(facts, "library").state is PartState.FAILED
    assert part(facts, "driver").state is PartState.WAITING
    assert whole(facts).trouble == ("mismatch",)


def test_a_driver_that_hangs_says_in_what() -> None:
    found = part(replace(WELL, stalled="the driver hangs in nvmlInit for 7 s"), "driver")
    assert (found.state, found.reason) == (PartState.FAILED, "DriverHangs")
    assert found.messages == ("the driver hangs in nvmlInit for 7 s",)


def test_a_sick_and_a_missing_gpu_are_told_and_do_not_keep_the_others_from_work() -> None:
    node = replace(builders.h200_node(), missing=(MissingGpu(index=8, reason="off the bus"),))
    facts = replace(WELL, inventory=node, health=ill(node, XID))
    found = part(facts, "devices")
    assert (found.state, found.reason) == (PartState.DEGRADED, "SomeOutOfService")
    assert found.messages == (f"{node.gpus[0].name} is out of service", "index 8: off the bus")
    assert whole(facts).phase is Phase.READY


def test_a_node_without_gpus_is_ready_and_says_that_it_has_none() -> None:
    facts = replace(WELL, inventory=Inventory(generation=1))
    assert part(facts, "devices").reason == "NoGPUs"
    assert whole(facts).phase is Phase.READY


def test_while_nobody_would_hear_of_a_fault_the_agent_is_not_ready() -> None:
    node = builders.h200_node()
    some = replace(WELL, health=ill(node, DEAF, gpus=range(7)))
    assert part(some, "devices").state is PartState.DEGRADED
    every = replace(WELL, health=ill(node, DEAF, gpus=range(8)))
    assert part(every, "devices").reason == "NotWatched"
    assert whole(every).trouble == ("no GPU is watched: no events",)


@pytest.mark.parametrize(
    ("phase", "state", "reason"),
    [
        ("waiting for the kubelet", PartState.WAITING, "NotRegistered"),
        ("registering", PartState.WAITING, "NotRegistered"),
        ("refused", PartState.FAILED, "Refused"),
    ],
)
def test_a_resource_that_the_kubelet_does_not_have_keeps_the_agent_from_its_work(
    phase: str, state: PartState, reason: str
) -> None:
    resource = msgspec.structs.replace(REGISTERED, phase=phase, detail="why")
    found = part(replace(WELL, resources=[resource]), "registration")
    assert (found.state, found.reason, found.messages) == (state, reason, (f"nvidia.com/gpu: {phase}: why",))


def test_a_front_door_that_is_off_is_no_trouble() -> None:
    found = states(replace(WELL, resources=None, claims=None, cdi=None))
    assert {found[name] for name in ("registration", "claims", "slices", "cdi")} == {PartState.OFF}


@pytest.mark.parametrize(("required", "state"), [(False, PartState.DEGRADED), (True, PartState.WAITING)])
def test_a_kubelet_that_serves_no_claims_is_trouble_only_where_they_must_be_served(
    required: bool, state: PartState
) -> None:
    claims = msgspec.structs.replace(CLAIMS, phase="registering", detail="a.sock", required=required)
    found = part(replace(WELL, claims=claims), "claims")
    assert (found.state, found.messages) == (state, ("gpu.nvidia.com: registering: a.sock",))


@pytest.mark.parametrize(
    ("required", "generation", "state"),
    [(True, 0, PartState.FAILED), (True, 3, PartState.DEGRADED), (False, 0, PartState.DEGRADED)],
)
def test_an_api_server_that_is_away_keeps_the_agent_from_its_work_only_until_slices_were_published(
    required: bool, generation: int, state: PartState
) -> None:
    claims = msgspec.structs.replace(CLAIMS, required=required, generation=generation, trouble="no answer")
    found = part(replace(WELL, claims=claims), "slices")
    assert (found.state, found.reason) == (state, "NotPublished")
    assert found.messages == ("slices cannot be published: no answer",)


def test_an_agent_that_waits_for_the_one_before_it_to_end_is_ready_so_that_it_is_ended() -> None:
    facts = replace(WELL, claims=msgspec.structs.replace(CLAIMS, generation=0, required=True))
    assert part(facts, "slices").reason == "NotPublishedYet"
    assert whole(facts).phase is Phase.READY


def test_an_mps_daemon_that_does_not_serve_is_told_with_its_gpu() -> None:
    found = part(replace(WELL, mps={"gpu-0": None, "gpu-1": "it has died"}), "mps")
    assert (found.state, found.messages) == (PartState.DEGRADED, ("gpu-1: it has died",))


@pytest.mark.parametrize(
    ("mode", "state"),
    [
        (PartitionMode.DISABLED, PartState.OFF),
        (PartitionMode.ENABLED, PartState.READY),
        (PartitionMode.ENABLE_PENDING, PartState.DEGRADED),
        (PartitionMode.DISABLE_PENDING, PartState.DEGRADED),
    ],
)
def test_a_mig_mode_that_waits_for_a_reset_is_told(mode: PartitionMode, state: PartState) -> None:
    node = builders.inventory([replace(builders.gpu(0), partition_mode=mode)])
    assert part(replace(WELL, inventory=node), "mig").state is state


def test_a_layout_that_cannot_be_made_is_told_and_keeps_nobody_from_work() -> None:
    facts = replace(WELL, layout=("gpu-0: a pod holds 1g.18gb at 0",))
    found = part(facts, "mig")
    assert (found.state, found.reason, found.messages) == (PartState.DEGRADED, "LayoutNotMade", facts.layout)
    assert whole(facts).phase is Phase.READY


# The whole


def waiting(message: str = "no kubelet") -> PartStatus:
    return PartStatus(name="registration", state=PartState.WAITING, reason="NotRegistered", messages=(message,))


READY_PART = PartStatus(name="registration", state=PartState.READY, reason="Registered")


def test_an_agent_starts_is_ready_falls_ill_and_is_ready_again() -> None:
    phases, now = [], Readiness()
    for now_at, one in (
        (10.0, waiting()),
        (20.0, READY_PART),
        (30.0, READY_PART),
        (40.0, waiting()),
        (50.0, READY_PART),
    ):
        now = advanced(now, [one], now_at)
        phases.append((now.phase, now.since))
    assert phases == [
        (Phase.STARTING, 10.0),
        (Phase.READY, 20.0),
        (Phase.READY, 20.0),
        (Phase.NOT_READY, 40.0),
        (Phase.READY, 50.0),
    ]


def test_who_has_been_starting_for_a_minute_is_not_ready() -> None:
    now = advanced(Readiness(), [waiting()], 10.0)
    assert advanced(now, [waiting()], 69.0).phase is Phase.STARTING
    late = advanced(now, [waiting()], 71.0)
    assert (late.phase, late.since) == (Phase.NOT_READY, 71.0)


def test_a_part_keeps_its_time_while_only_its_words_change() -> None:
    first = advanced(Readiness(), [waiting("for 5 s")], 10.0)
    (same,) = advanced(first, [waiting("for 6 s")], 11.0).parts
    assert (same.since, same.messages) == (10.0, ("for 6 s",))
    (other,) = advanced(first, [READY_PART], 12.0).parts
    assert other.since == 12.0


def test_the_trouble_is_what_the_blocking_parts_say_and_nothing_else() -> None:
    degraded = PartStatus(name="mps", state=PartState.DEGRADED, reason="DaemonsNotServing", messages=("dead",))
    assert advanced(Readiness(), [degraded, waiting()], 1.0).trouble == ("no kubelet",)


# The watch, and what it has to tell


async def test_the_watch_looks_when_a_source_changes_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness_watch, "LOOK_SECONDS", 0.05)
    facts, source = [Facts(inventory=Inventory())], Latest(0)
    watch = ReadinessWatch(lambda: facts[0], [source])
    async with running(watch.run()), asyncio.timeout(30):
        async for found in watch.state.watch():
            if found.parts:
                break
        facts[0] = WELL
        async for found in watch.state.watch():
            if found.phase is Phase.READY:
                break
        monkeypatch.setattr(readiness_watch, "LOOK_SECONDS", 60.0)
        await asyncio.sleep(0.1)
        facts[0] = replace(WELL, stalled="hangs")
        source.set(1)
        async for found in watch.state.watch():
            if found.phase is Phase.NOT_READY:
                break


def test_who_asks_is_told_how_things_stand_now() -> None:
    facts = [WELL]
    watch = ReadinessWatch(lambda: facts[0], [])
    assert watch.look().phase is Phase.READY
    facts[0] = replace(WELL, stalled="hangs")
    assert watch.look().trouble == ("hangs",)


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
def test_what_lasts_is_what_has_been_so_for_a_while_however_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    clock, facts = [1000.0], [WELL]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    # Somebody sets it while the agent is ill.
    monkeypatch.setattr(time, "time", lambda: 1e9 + clock[0] + (ahead if clock[0] >= 1045 else 0.0))
    watch, lasting = ReadinessWatch(lambda: facts[0], []), []
    ill = replace(WELL, stalled="hangs")
    for seconds, now in ((0, WELL), (10, WELL), (20, ill), (25, WELL), (40, ill), (49, ill), (50, ill), (51, WELL)):
        clock[0], facts[0] = 1000.0 + seconds, now
        watch.look()
        lasting.append(watch.lasting.value.phase)
    assert lasting == [Phase.STARTING, *[Phase.READY] * 5, *[Phase.NOT_READY] * 2]


def test_news_are_that_the_agent_is_not_ready_and_that_it_is_again_and_a_start_is_none() -> None:
    state = Latest(Readiness())
    news = ReadinessNews(state)
    told = []
    for now_at, one in (
        (1.0, waiting()),
        (2.0, READY_PART),
        (3.0, waiting()),
        (4.0, waiting("still")),
        (5.0, READY_PART),
    ):
        state.set(advanced(state.value, [one], now_at))
        told += [(notice.type, notice.reason, notice.note) for notice in news.notices()]
    assert told == [
        ("Warning", "GPUAgentNotReady", "no kubelet"),
        ("Normal", "GPUAgentReady", "the agent does its work again"),
    ]


def test_a_start_that_does_not_come_to_its_end_is_news_and_no_note_is_longer_than_events_take() -> None:
    state = Latest(advanced(Readiness(), [waiting()], 1.0))
    news = ReadinessNews(state)
    assert list(news.notices()) == []
    state.set(advanced(state.value, [waiting("x" * 5000)], 100.0))
    (notice,) = news.notices()
    assert (notice.reason, len(notice.note)) == ("GPUAgentNotReady", 1024)
