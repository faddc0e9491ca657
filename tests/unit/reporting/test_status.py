"""The status document: what it says of each part, and which parts keep the agent from being ready."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from node_agent.model.gpu import Gpu, PartitionMode
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import DriverInfo, Inventory, MissingGpu
from node_agent.reporting.parts import CdiStatus, ResourceStatus, ServiceStatus
from node_agent.reporting.readiness import Facts, Readiness, advanced, parts_of
from node_agent.reporting.status import Status, status
from tests.fakes import builders

XID = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79", since=12.5, code=79)
REMAP = Cause(reason=Reason.RESET_NEEDED, severity=Severity.DEGRADED, message="a row waits", since=13.0)

REGISTERED = ResourceStatus(
    name="nvidia.com/gpu", phase="registered", detail="gpu-1.sock", registrations=1, devices=8, healthy=8
)
PUBLISHED = CdiStatus(path="/var/run/cdi/node-agent.json", kind="node-agent.gpu.nvidia.com/gpu", devices=8)


def document(
    *,
    inventory: Inventory | None = None,
    health: HealthReport | None = None,
    resources: Sequence[ResourceStatus] = (REGISTERED,),
    cdi: CdiStatus | None = PUBLISHED,
    services: Sequence[ServiceStatus] = (ServiceStatus(name="inventory", condition="running"),),
    stalled: str | None = None,
) -> Status:
    """The document of a node where all is well, but for what is given."""
    facts = Facts(
        inventory=inventory or builders.h200_node(),
        health=health or HealthReport(),
        resources=resources,
        cdi=cdi,
        services=services,
        stalled=stalled,
    )
    readiness = advanced(Readiness(), parts_of(facts), 1000.0)
    return status(facts, readiness, version="1.2.3", node="node-a", started=1000.0)


def with_causes(gpu: Gpu, *causes: Cause) -> HealthReport:
    return HealthReport(devices={gpu.uuid: DeviceHealth(causes=causes)})


def test_a_node_where_all_is_well_is_ready() -> None:
    found = document()
    assert found.ready
    assert found.trouble == ()
    assert [gpu.health for gpu in found.gpus] == ["healthy"] * 8


def test_the_document_survives_the_way_through_json() -> None:
    node = builders.h200_node()
    inventory = replace(
        node, driver=DriverInfo(version="580.95.05", cuda="13.0"), missing=(MissingGpu(index=8, reason="lost"),)
    )
    found = document(
        inventory=inventory,
        health=with_causes(node.gpus[2], XID, REMAP),
        services=[ServiceStatus(name="cdi", condition="restarting", restarts=3, trouble="no space")],
        stalled="the driver hangs",
    )
    assert msgspec.json.decode(msgspec.json.encode(found), type=Status) == found


def test_its_json_leaves_out_what_is_not_known() -> None:
    plain = msgspec.json.decode(msgspec.json.encode(document(inventory=builders.inventory([builders.gpu(0)]))))
    assert plain["gpus"] == [
        {
            "name": "gpu-0",
            "uuid": builders.uuid(0),
            "product": "NVIDIA H200",
            "pci": "0000:10:00.0",
            "health": "healthy",
            "minor": 0,
            "numa_node": 0,
        }
    ]


def test_a_gpu_is_shown_with_all_that_is_known_of_it() -> None:
    gpu = replace(builders.gpu(3, numa=1), memory=143771 << 20, partition_mode=PartitionMode.ENABLED)
    (found,) = document(inventory=builders.inventory([gpu])).gpus
    assert (found.name, found.uuid, found.pci, found.minor) == ("gpu-3", gpu.uuid, gpu.pci, 3)
    assert (found.memory, found.numa_node, found.partition_mode) == (143771 << 20, 1, "enabled")


@pytest.mark.parametrize(
    ("causes", "health"),
    [((), "healthy"), ((REMAP,), "degraded"), ((XID,), "withdrawn"), ((REMAP, XID), "withdrawn")],
)
def test_a_gpu_is_as_bad_as_its_worst_cause_and_shows_them_all(causes: tuple[Cause, ...], health: str) -> None:
    node = builders.h200_node()
    found = document(inventory=node, health=with_causes(node.gpus[2], *causes))
    assert found.gpus[2].health == health
    assert [cause.message for cause in found.gpus[2].causes] == [cause.message for cause in causes]
    assert {gpu.health for gpu in found.gpus if gpu.name != found.gpus[2].name} == {"healthy"}


def test_a_cause_keeps_its_reason_its_time_and_its_number() -> None:
    node = builders.h200_node()
    (cause,) = document(inventory=node, health=with_causes(node.gpus[0], XID)).gpus[0].causes
    assert (cause.reason, cause.severity, cause.since, cause.code) == ("xid", "withdrawn", 12.5, 79)


def test_a_sick_or_missing_gpu_does_not_make_the_agent_unready() -> None:
    node = builders.h200_node()
    inventory = replace(builders.without(node, 7), missing=(MissingGpu(index=7, reason="it fell off the bus"),))
    found = document(inventory=inventory, health=with_causes(node.gpus[0], XID))
    assert found.ready
    assert [(missing.index, missing.reason) for missing in found.missing] == [(7, "it fell off the bus")]


# What keeps the agent from its work


def test_before_the_first_look_the_agent_is_not_ready() -> None:
    assert document(inventory=Inventory(), resources=[]).trouble == ("the GPUs have not been looked at yet",)


def test_a_driver_that_cannot_be_asked_is_trouble() -> None:
    found = document(inventory=Inventory(generation=2, problem="the driver is not loaded"))
    assert found.trouble == ("the driver is not loaded",)


def test_a_driver_that_hangs_is_trouble() -> None:
    stalled = "the driver hangs in nvmlInit for 12 s"
    assert document(stalled=stalled).trouble == (stalled,)


def test_a_cdi_spec_that_cannot_be_made_is_trouble() -> None:
    cdi = msgspec.structs.replace(PUBLISHED, trouble="no driver libraries under /")
    assert document(cdi=cdi).trouble == ("no driver libraries under /",)


def test_an_agent_that_needs_no_cdi_misses_none() -> None:
    assert document(cdi=None).ready


def test_a_service_that_is_being_restarted_is_trouble_and_one_that_was_restarted_is_none() -> None:
    failed = ServiceStatus(name="health", condition="restarting", restarts=2, trouble="OSError: no")
    assert document(services=[failed]).trouble == ("health: OSError: no",)
    again = msgspec.structs.replace(failed, condition="running")
    assert document(services=[again]).ready


@pytest.mark.parametrize(
    ("phase", "detail"),
    [
        ("waiting for the kubelet", "no kubelet at /var/lib/kubelet/device-plugins"),
        ("registering", "gpu-1.sock"),
        ("refused", "the kubelet refused it"),
    ],
)
def test_a_resource_that_the_kubelet_does_not_have_is_trouble(phase: str, detail: str) -> None:
    resource = msgspec.structs.replace(REGISTERED, phase=phase, detail=detail)
    assert document(resources=[resource]).trouble == (f"nvidia.com/gpu: {phase}: {detail}",)


def test_a_resource_none_of_whose_devices_was_ever_fit_says_so() -> None:
    resource = ResourceStatus(
        name="nvidia.com/gpu", phase="waiting for the kubelet", detail="", registrations=0, devices=8, healthy=0
    )
    assert document(resources=[resource]).trouble == (
        "nvidia.com/gpu: none of its 8 devices has been fit to be offered yet",
    )


def test_a_resource_name_that_no_gpu_of_the_node_gets_is_no_trouble() -> None:
    idle = ResourceStatus(
        name="nvidia.com/a100", phase="waiting for the kubelet", detail="", registrations=0, devices=0, healthy=0
    )
    assert document(resources=[idle, REGISTERED]).ready


def test_a_list_that_the_kubelet_would_not_take_is_trouble_of_its_resource() -> None:
    large = msgspec.structs.replace(REGISTERED, devices=0, trouble="the list is too large")
    other = msgspec.structs.replace(REGISTERED, name="nvidia.com/other", withheld=("GPU-1: waits",))
    assert document(resources=[large, other]).trouble == ("nvidia.com/gpu: the list is too large",)


def test_every_trouble_is_named_and_none_hides_another() -> None:
    found = document(
        inventory=Inventory(generation=1, problem="no driver"),
        resources=[msgspec.structs.replace(REGISTERED, phase="refused", detail="no")],
        cdi=msgspec.structs.replace(PUBLISHED, trouble="no files"),
        services=[ServiceStatus(name="health", condition="restarting", trouble="broken")],
        stalled="hangs",
    )
    assert found.trouble == ("health: broken", "no driver", "hangs", "no files", "nvidia.com/gpu: refused: no")
    assert not found.ready


def test_while_nobody_would_hear_of_any_fault_the_agent_is_not_ready() -> None:
    node, deaf = (
        builders.h200_node(),
        Cause(reason=Reason.EVENTS_FAILED, severity=Severity.WITHDRAWN, message="deaf", since=1.0),
    )
    one = with_causes(node.gpus[0], deaf)
    assert document(inventory=node, health=one).ready

    everyone = HealthReport(devices={gpu.uuid: DeviceHealth(causes=(deaf,)) for gpu in node.gpus})
    assert document(inventory=node, health=everyone).trouble == ("no GPU is watched: deaf",)
