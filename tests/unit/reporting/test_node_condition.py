"""What the Node's condition says of its GPUs, and what of it is kept when it is written anew."""

import pytest

from node_agent.kube.resources import Object
from node_agent.model.health import Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.reporting.health import HealthDocument, MissingStatus
from node_agent.reporting.node_condition import (
    HEALTHY,
    LONGEST_MESSAGE,
    ConditionKind,
    NodeCondition,
    Truth,
    application,
    condition_of,
    node_condition,
    other_owner,
    says,
)
from tests.fakes.builders import uuid
from tests.fakes.health import NOT_PROBED, Ward, remap, xid

SOUND = NodeCondition(status=Truth.TRUE, reason="AllGPUsHealthy", message="2 GPUs are in service")


def test_a_node_whose_gpus_are_all_in_service_is_healthy() -> None:
    assert node_condition(Ward().view.document) == SOUND


def test_a_node_without_gpus_has_none_that_is_not_healthy() -> None:
    found = node_condition(HealthDocument(node="n0"))
    assert (found.status, found.message) == ("True", "0 GPUs are in service")


@pytest.mark.parametrize("severity", [Severity.WITHDRAWN, Severity.EVICTED])
def test_one_gpu_out_of_service_is_enough_and_is_named_with_its_causes(severity: Severity) -> None:
    ward = Ward()
    ward.ail(1, xid(79, severity), remap())
    found = node_condition(ward.view.document)
    assert (found.status, found.reason) == ("False", "GPUsOutOfService")
    assert found.message == (
        f"gpu-1 {severity.name.lower()}: Xid 79 (back when the driver asks for no recovery); a row waits"
    )


def test_a_degraded_gpu_is_told_and_leaves_the_node_healthy() -> None:
    ward = Ward()
    ward.ail(0, remap())
    found = node_condition(ward.view.document)
    assert (found.status, found.reason, found.message) == ("True", "GPUsDegraded", "gpu-0 degraded: a row waits")


def test_a_gpu_that_has_gone_makes_the_node_unhealthy() -> None:
    ward = Ward()
    ward.ail(0, NOT_PROBED)
    ward.take(0)
    found = node_condition(ward.view.document)
    assert (found.status, found.message) == ("False", "gpu-0 gone: the driver does not list it any more")


def test_a_gpu_that_cannot_be_read_makes_the_node_unhealthy_and_is_named_once() -> None:
    document = HealthDocument(node="n0", missing=(MissingStatus(index=3, reason="its name cannot be read"),))
    assert node_condition(document).message == "index 3: its name cannot be read"
    ward = Ward()
    ward.ail(0, NOT_PROBED)
    ward.take(0)
    present = ward.inventory.value.gpus
    ward.inventory.set(
        Inventory(generation=9, gpus=present, missing=(MissingGpu(index=0, reason="lost", uuid=uuid(0)),))
    )
    assert node_condition(ward.view.document).message.count("gpu-0") == 1
    assert "index 0" not in node_condition(ward.view.document).message


def test_while_gpus_are_only_to_be_looked_at_nobody_knows() -> None:
    ward = Ward()
    ward.ail(0, NOT_PROBED)
    found = node_condition(ward.view.document)
    assert (found.status, found.reason) == ("Unknown", "GPUsNotProbed")
    ward.ail(1, xid())
    assert node_condition(ward.view.document).status == "False"


@pytest.mark.parametrize(
    ("inventory", "message"),
    [
        (Inventory(), "the GPUs have not been looked at yet"),
        (Inventory(generation=2, problem="the driver is not loaded"), "the driver is not loaded"),
    ],
)
def test_a_driver_that_cannot_be_asked_leaves_the_health_unknown(inventory: Inventory, message: str) -> None:
    ward = Ward()
    ward.inventory.set(inventory)
    found = node_condition(ward.view.document)
    assert found == NodeCondition(status=Truth.UNKNOWN, reason="GPUsUnknown", message=message)


def test_the_message_of_a_node_full_of_causes_is_cut() -> None:
    ward = Ward(8)
    for index in range(8):
        ward.ail(index, *(xid(code) for code in range(50)))
    assert len(node_condition(ward.view.document).message) == LONGEST_MESSAGE


# As the Node has it


def node(*conditions: Object, managed: object = ()) -> Object:
    return {"metadata": {"name": "n0", "managedFields": managed}, "status": {"conditions": list(conditions)}}


def stored(status: str = "True", **changes: str) -> Object:
    entry = {"type": "GPUHealthy", "status": status, "reason": SOUND.reason, "message": SOUND.message}
    return {**entry, "lastTransitionTime": "2026-01-01T00:00:00Z", **changes}


def test_the_condition_is_found_among_others_and_a_node_may_have_none() -> None:
    assert condition_of(node({"type": "Ready", "status": "True"}, stored()), HEALTHY) == stored()
    assert condition_of(node({"type": "Ready", "status": "True"}), HEALTHY) is None
    assert condition_of({"metadata": {"name": "n0"}}, HEALTHY) is None


@pytest.mark.parametrize(
    ("condition", "same"),
    [
        (stored(), True),
        (stored(lastTransitionTime="2020-01-01T00:00:00Z"), True),
        (stored("False"), False),
        (stored(reason="Other"), False),
        (stored(message="other"), False),
        ({"type": "GPUHealthy", "status": "True"}, False),
        (None, False),
    ],
)
def test_only_what_a_stored_condition_says_counts(condition: Object | None, same: bool) -> None:
    assert says(condition, SOUND) is same


@pytest.mark.parametrize(
    ("before", "time"),
    [
        (None, "2026-11-30T00:00:00Z"),
        (stored("False"), "2026-11-30T00:00:00Z"),
        ({"type": "GPUHealthy", "status": "True"}, "2026-11-30T00:00:00Z"),
        (stored(message="other"), "2026-01-01T00:00:00Z"),
    ],
)
def test_the_time_of_the_transition_changes_with_the_status_alone(before: Object | None, time: str) -> None:
    applied = application("n0", HEALTHY, SOUND, before, now=1795996800.0)
    assert applied["status"]["conditions"] == [stored(lastTransitionTime=time)]
    assert (applied["kind"], applied["metadata"]) == ("Node", {"name": "n0"})


def managed(manager: str, field: str = 'k:{"type":"GPUHealthy"}') -> Object:
    fields: Object = {"f:status": {"f:conditions": {field: {".": {}}}}}
    return {"manager": manager, "operation": "Update", "subresource": "status", "fieldsV1": fields}


@pytest.mark.parametrize(
    ("entries", "owner"),
    [
        ([], None),
        ([managed("ours")], None),
        ([managed("kubelet", 'k:{"type":"Ready"}')], None),
        ([managed("ours"), managed("node-problem-detector")], "node-problem-detector"),
    ],
)
def test_who_else_has_set_the_condition_is_read_off_the_node(entries: list[Object], owner: str | None) -> None:
    assert other_owner(node(stored(), managed=entries), ConditionKind(type="GPUHealthy", owner="ours")) == owner
