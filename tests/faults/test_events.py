"""Events that cannot be had. Users met: cards without events were declared sick (B05), and a listener that had died
left a node that offered GPUs which nobody watched (B06).
"""

import asyncio

import pytest
from msgspec.structs import replace

from tests.faults.conftest import Place, Simulate, lines, until

REGISTER, CREATE, WAIT = "nvmlDeviceRegisterEvents", "nvmlEventSetCreate", "nvmlEventSetWait_v2"


@pytest.fixture
def l4(simulate: Simulate) -> Place:
    """Two L4."""
    return simulate("l4-2")


async def test_a_card_without_events_is_healthy_and_said_to_be_unmonitored(
    l4: Place, caplog: pytest.LogCaptureFixture
) -> None:
    l4.node.faults.fail(REGISTER, "NOT_SUPPORTED", gpu=1)
    async with l4.serving():
        found = await l4.causes(1, "not-monitored")
        assert found.health == "healthy"
        assert not (await l4.status_of(0)).causes
        assert l4.view.allocatable == 2
        await l4.ready()
        await asyncio.sleep(0.5)

    said = [line for line in lines(caplog, "health cause opened") if line["reason"] == "not-monitored"]
    assert [line["gpu"] for line in said] == [l4.uuid(1)]


async def test_a_guest_with_a_vgpu_is_healthy_without_events(simulate: Simulate) -> None:
    guest = simulate("vgpu-1")
    async with guest.serving():
        assert (await guest.causes(0, "not-monitored")).health == "healthy"


async def test_a_card_whose_events_fail_to_be_registered_is_out_until_they_are(l4: Place) -> None:
    l4.node.faults.fail(REGISTER, "UNKNOWN", gpu=1)
    async with l4.kubelet.running(), l4.agent():
        await l4.allocatable(1)
        await l4.causes(1, "events-failed")
        assert l4.view.healthy == {l4.uuid(0)}

        l4.node.faults.clear()
        await l4.only_withdrawn()


async def test_a_listener_that_cannot_start_withdraws_every_gpu_until_it_can(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.fail(CREATE, "UNKNOWN")
        # The set of old breaks, too, so that a new one is needed.
        h200.node.faults.fail(WAIT, "UNKNOWN", times=1)
        await h200.allocatable(0)
        assert {cause.reason for gpu in (await h200.status()).gpus for cause in gpu.causes} == {"events-failed"}
        assert h200.view.registrations == 1

        h200.node.faults.clear()
        await h200.only_withdrawn()


async def test_an_agent_whose_listener_never_started_offers_nothing_and_is_not_ready(h200: Place) -> None:
    h200.node.faults.fail(CREATE, "UNKNOWN")
    async with h200.kubelet.running(), h200.agent():
        await h200.causes(0, "events-failed")
        assert "nvmlEventSetCreate" in (await h200.status_of(0)).causes[0].message
        assert h200.view.allocatable == 0
        await h200.trouble("nvidia.com/gpu")

        h200.node.faults.clear()
        await h200.allocatable(8)
        await h200.ready()


async def test_a_listener_whose_wait_keeps_failing_withdraws_every_gpu(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.fail(WAIT, "UNKNOWN")
        await h200.allocatable(0)
        await asyncio.sleep(1)
        assert h200.view.allocatable == 0

        h200.node.faults.clear()
        await h200.only_withdrawn()


async def test_a_single_failure_of_the_wait_withdraws_nothing_and_loses_no_later_event(
    h200: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with h200.serving():
        await asyncio.sleep(0.5)
        messages = h200.view.messages
        h200.node.faults.fail(WAIT, "UNKNOWN", times=1)
        await until(lambda: lines(caplog, "events cannot be watched"))
        await asyncio.sleep(0.7)
        assert h200.view.messages == messages

        h200.node.faults.recovery_action(2, "gpu-reset")
        await h200.only_withdrawn(2)


async def test_a_listener_that_fails_is_tried_again_with_growing_pauses(h200: Place) -> None:
    async with h200.serving(replace(h200.settings, rescan_interval=30.0)):
        tries = h200.count_calls(CREATE)
        h200.node.faults.fail(CREATE, "UNKNOWN")
        h200.node.faults.fail(WAIT, "UNKNOWN", times=1)
        await h200.allocatable(0)
        await asyncio.sleep(2)

        assert 1 <= len(tries) <= 4
