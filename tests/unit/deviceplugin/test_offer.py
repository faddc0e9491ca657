"""What is in a resource's list, and why a device of it must not be given out."""

from dataclasses import replace

import pytest

from node_agent.deviceplugin.offer import Offer, forget, gpu_of, pool_of, whole_gpus, with_absent
from node_agent.model.gpu import GpuUuid, PartitionMode
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from tests.unit.deviceplugin.conftest import gpu, node

A, B = GpuUuid("GPU-0"), GpuUuid("GPU-1")


def report(severity: Severity) -> HealthReport:
    cause = Cause(reason=Reason.ECC, severity=severity, message="3 errors", since=0.0)
    return HealthReport(devices={A: DeviceHealth(causes=(cause,))})


def test_a_degraded_gpu_is_still_given_out_and_a_withdrawn_one_is_not() -> None:
    degraded = whole_gpus(node(2).gpus, report(Severity.DEGRADED), None)
    withdrawn = whole_gpus(node(2).gpus, report(Severity.WITHDRAWN), None)
    assert [device.trouble for device in degraded] == [None, None]
    assert [device.trouble for device in withdrawn] == ["3 errors", None]


def test_a_gpu_that_no_container_can_be_given_says_so() -> None:
    devices = whole_gpus(node(2).gpus, HealthReport(), reachable={A})
    assert [device.trouble for device in devices] == [None, "no CDI spec names it yet"]


@pytest.mark.parametrize(
    ("mode", "usable"),
    [
        (None, True),
        (PartitionMode.DISABLED, True),
        (PartitionMode.ENABLE_PENDING, True),
        (PartitionMode.ENABLED, False),
        (PartitionMode.DISABLE_PENDING, False),
    ],
)
def test_a_gpu_in_mig_mode_is_not_given_out_as_a_whole(mode: PartitionMode | None, usable: bool) -> None:
    devices = whole_gpus([replace(gpu(0), partition_mode=mode)], HealthReport(), None)
    assert [device.healthy for device in devices] == [True] * usable


def test_what_is_gone_stays_in_the_list_with_the_drivers_reason() -> None:
    before = whole_gpus(node(2).gpus, HealthReport(), None)
    lost = MissingGpu(index=1, uuid=B, reason="it has fallen off the bus")
    now = Inventory(generation=2, gpus=node(2).gpus[:1], missing=(lost,))

    devices = with_absent(whole_gpus(now.gpus, HealthReport(), None), before, now)

    assert [(device.id, device.trouble) for device in devices] == [
        ("GPU-0", None),
        ("GPU-1", "it has fallen off the bus"),
    ]


def test_the_drivers_own_trouble_is_the_reason_where_all_are_gone() -> None:
    before = whole_gpus(node(1).gpus, HealthReport(), None)
    lost = tuple(MissingGpu(index=0, uuid=device.gpu, reason="the driver is not loaded") for device in before)
    (device,) = with_absent((), before, Inventory(generation=2, missing=lost, problem="the driver is not loaded"))
    assert device.trouble == "the driver is not loaded"
    assert not device.gone


def test_a_gpu_that_left_without_a_word_is_said_to_be_unlisted() -> None:
    before = whole_gpus(node(1).gpus, HealthReport(), None)
    (device,) = with_absent((), before, Inventory(generation=2))
    assert device.trouble == "the driver no longer lists it"


def test_a_gpu_that_was_put_into_mig_mode_is_gone_with_that_reason() -> None:
    before = whole_gpus(node(1).gpus, HealthReport(), None)
    now = Inventory(generation=2, gpus=(replace(gpu(0), partition_mode=PartitionMode.ENABLED),))
    (device,) = with_absent(whole_gpus(now.gpus, HealthReport(), None), before, now)
    assert device.gone
    assert "MIG mode" in str(device.trouble)


def test_gone_devices_are_forgotten_once_no_pod_holds_them() -> None:
    gone = with_absent((), whole_gpus(node(3).gpus, HealthReport(), None), Inventory(generation=2))
    offer = Offer(resource="nvidia.com/gpu", devices=gone, pool=pool_of(Inventory(), ()))

    assert [device.id for device in forget(offer, held={"GPU-1"}).devices] == ["GPU-1"]
    assert forget(offer, held=()).devices == ()


def test_a_device_that_is_there_is_never_forgotten() -> None:
    present = whole_gpus(node(3).gpus, report(Severity.WITHDRAWN), None)
    offer = Offer(resource="nvidia.com/gpu", devices=present, pool=pool_of(Inventory(), ()))
    assert forget(offer, held=()) == offer


def test_a_device_that_is_back_is_listed_once_and_healthy() -> None:
    before = with_absent((), whole_gpus(node(1).gpus, HealthReport(), None), Inventory(generation=2))
    (device,) = with_absent(whole_gpus(node(1).gpus, HealthReport(), None), before, node(1))
    assert device.healthy


@pytest.mark.parametrize(
    ("resource", "device", "gpu"),
    [
        ("nvidia.com/gpu", "GPU-1", "GPU-1"),
        ("nvidia.com/of-an-earlier-configuration", "GPU-1", "GPU-1"),
        ("nvidia.com/GA102GL_A10", "0000:3b:00.0", None),
        ("nvidia.com/mig-1g.5gb", "MIG-1", None),
        ("example.com/gpu", "GPU-1", None),
    ],
)
def test_the_gpu_that_a_pod_holds_is_known_by_the_form_of_the_device(
    resource: str, device: str, gpu: str | None
) -> None:
    assert gpu_of(resource, device) == gpu
