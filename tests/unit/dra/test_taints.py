"""Why a device should not be given out, as taints."""

import pytest
from msgspec.structs import replace

from node_agent.dra.taints import MOST_TAINTS, Effect, Taint, taints_of, together
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import device_name
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.partition import Place
from tests.fakes.builders import h200_node, uuid

GPU = uuid(0)


def device(*gpus: int) -> PublishedDevice:
    kind = DeviceKind.GPU if len(gpus) == 1 else DeviceKind.GROUP
    return PublishedDevice(name=device_name("device"), kind=kind, gpus=tuple(uuid(gpu) for gpu in gpus))


def cause(reason: Reason, severity: Severity = Severity.WITHDRAWN, code: int | None = None) -> Cause:
    return Cause(reason=reason, severity=severity, message="seen", since=1.0, code=code)


def report(*causes: Cause) -> HealthReport:
    return HealthReport(devices={GPU: DeviceHealth(causes=causes)})


def found(
    *causes: Cause, inventory: Inventory | None = None, withheld: frozenset[Place] = frozenset()
) -> list[dict[str, str]]:
    taints = taints_of(device(0), report(*causes), inventory or h200_node(), withheld)
    return [dict(taint.content) for taint in taints]


def missing(*, problem: str | None = None) -> Inventory:
    lost = MissingGpu(index=0, uuid=GPU, reason="gone")
    if problem is not None:
        return Inventory(generation=2, missing=(lost,), problem=problem)
    return replace(h200_node(), gpus=h200_node().gpus[1:], missing=(lost,))


def test_a_healthy_gpu_has_none() -> None:
    assert found() == []


def test_an_xid_keeps_claims_away_and_says_which_one_it_was() -> None:
    assert found(cause(Reason.XID, code=79)) == [
        {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"},
    ]


def test_two_xids_are_two_taints_since_one_may_be_tolerated() -> None:
    assert [taint["value"] for taint in found(cause(Reason.XID, code=79), cause(Reason.XID, code=48))] == ["48", "79"]


def test_a_cause_without_a_number_has_no_value() -> None:
    assert found(cause(Reason.ECC)) == [{"key": "gpu.nvidia.com/ecc", "effect": "NoSchedule"}]


def test_a_degraded_gpu_is_given_out_and_says_so() -> None:
    assert found(cause(Reason.RESET_NEEDED, Severity.DEGRADED)) == [
        {"key": "gpu.nvidia.com/reset-needed", "effect": "None"},
    ]


def test_a_cause_that_means_nothing_for_new_work_is_no_taint() -> None:
    assert found(cause(Reason.EVENTS_FAILED, Severity.NONE)) == []


def test_a_gpu_that_somebody_else_has_is_held() -> None:
    assert found(withheld=frozenset({Place(gpu=GPU)})) == [{"key": "gpu.nvidia.com/held", "effect": "NoSchedule"}]


def test_a_gpu_that_has_dropped_out_is_lost_whatever_the_health_report_says() -> None:
    assert found(inventory=missing()) == [{"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}]
    assert found(cause(Reason.LOST), inventory=missing()) == found(inventory=missing())


def test_while_the_driver_is_away_no_gpu_is_called_lost() -> None:
    assert found(inventory=missing(problem="reloaded")) == [
        {"key": "gpu.nvidia.com/query-failed", "effect": "NoSchedule"},
    ]


def test_that_nobody_has_looked_yet_is_said_only_where_nothing_else_is_known() -> None:
    assert [taint["key"] for taint in found(cause(Reason.NOT_PROBED))] == ["gpu.nvidia.com/not-probed"]
    both = found(cause(Reason.NOT_PROBED), cause(Reason.XID, code=79))
    assert [taint["key"] for taint in both] == ["gpu.nvidia.com/xid"]
    assert found(cause(Reason.NOT_PROBED), inventory=missing()) == found(inventory=missing())


def test_a_gpu_of_which_the_report_knows_nothing_has_the_health_of_all_others() -> None:
    unknown = DeviceHealth(causes=(cause(Reason.NOT_PROBED),))
    assert len(taints_of(device(0), HealthReport(others=unknown), h200_node(), ())) == 1


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_makes_a_key_that_the_api_takes(reason: Reason) -> None:
    (taint,) = found(cause(reason, code=12345))
    domain, _, name = taint["key"].partition("/")
    assert domain == "gpu.nvidia.com"
    assert 0 < len(name) <= 63 and name.replace("-", "").isalnum() and name[0].isalnum() and name[-1].isalnum()


def test_the_members_taints_come_once_and_in_a_fixed_order() -> None:
    held, xid = Taint(key="k/held", effect=Effect.NO_SCHEDULE), Taint(key="k/xid", effect=Effect.NO_SCHEDULE, value="1")
    told = Taint(key="k/a", effect=Effect.NONE)
    assert together([told, xid, held, xid, told]) == together([held, told, xid]) == (held, xid, told)


def test_of_too_many_taints_those_that_only_tell_are_left_out() -> None:
    telling = [Taint(key=f"k/a{i}", effect=Effect.NONE) for i in range(MOST_TAINTS)]
    withdrawing = Taint(key="k/z", effect=Effect.NO_SCHEDULE)
    kept = together([*telling, withdrawing])
    assert len(kept) == MOST_TAINTS
    assert withdrawing in kept


def test_a_device_that_is_to_be_given_back_says_so_even_while_its_gpu_is_away() -> None:
    evicting = cause(Reason.LOST, Severity.EVICTED)
    assert found(evicting) == [{"key": "gpu.nvidia.com/gpu-lost", "effect": "NoExecute"}]
    assert found(evicting, inventory=missing()) == found(evicting)


def test_that_nobody_has_looked_yet_is_said_beside_what_does_not_keep_claims_away() -> None:
    both = found(cause(Reason.NOT_PROBED), cause(Reason.RESET_NEEDED, Severity.DEGRADED))
    assert [taint["effect"] for taint in both] == ["NoSchedule", "None"]


@pytest.mark.parametrize(
    ("gpus", "effects"),
    [((0,), {Effect.NONE}), ((2, 3), set()), ((0, 1), {Effect.NO_SCHEDULE}), ((0, 2), {Effect.NONE})],
)
def test_a_dead_link_keeps_claims_from_the_groups_that_need_it_and_from_no_gpu_alone(
    gpus: tuple[int, ...], effects: set[Effect]
) -> None:
    dead = replace(cause(Reason.NVLINK), peers=frozenset({uuid(1)}))
    taints = taints_of(device(*gpus), report(dead), h200_node(), ())
    assert {taint.effect for taint in taints} == effects


def test_a_trouble_that_two_members_have_is_one_taint_with_the_worse_effect() -> None:
    mild, hard = Taint(key="k/a", effect=Effect.NONE), Taint(key="k/a", effect=Effect.NO_SCHEDULE)
    assert together([mild, hard]) == (hard,)
