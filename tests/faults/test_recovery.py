"""The way back. Users met: a GPU once marked bad stayed bad until the agent was restarted (B02)."""

import asyncio

from msgspec.structs import replace

from tests.faults.conftest import Place


async def test_a_gpu_that_is_well_again_comes_back_in_the_same_stream(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.lose(2, xid=True)
        await h200.only_withdrawn(2)

        h200.node.faults.restore(2)
        await h200.only_withdrawn()

        assert h200.view.registrations == 1
        assert not (await h200.status_of(2)).causes
        await h200.ready()


async def test_a_gpu_stays_out_while_the_driver_asks_for_a_reset_and_no_longer(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.recovery_action(2, "gpu-reset")
        h200.node.faults.xid(2, 79)
        await h200.causes(2, "recovery-needed", "xid")
        await asyncio.sleep(0.5)
        assert h200.view.healthy == set(h200.uuids) - {h200.uuid(2)}

        h200.node.faults.recovery_action(2, "none")
        await h200.only_withdrawn()


async def test_a_gpu_stays_out_while_its_probe_fails(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.fail("nvmlDeviceGetFieldValues", "UNKNOWN", gpu=2)
        h200.node.faults.xid(2, 79)
        await h200.causes(2, "nvlink", "query-failed", "xid")
        await asyncio.sleep(0.5)
        assert h200.view.healthy == set(h200.uuids) - {h200.uuid(2)}

        h200.node.faults.clear()
        await h200.only_withdrawn()


async def test_a_withdrawal_does_not_touch_the_pods_that_run(h200: Place) -> None:
    async with h200.serving():
        ids, _ = await h200.kubelet.admit("trainer", "nvidia.com/gpu", 4)
        h200.node.faults.recovery_action(0, "drain-and-reset")
        await h200.only_withdrawn(0)
        h200.node.faults.recovery_action(0, "none")
        await h200.only_withdrawn()

        assert h200.kubelet.held["trainer"] == ("nvidia.com/gpu", frozenset(ids))


async def test_with_the_intervals_that_are_shipped_a_broken_gpu_is_out_at_once_and_a_mended_one_back_within_seconds(
    h200: Place,
) -> None:
    shipped = replace(h200.settings, rescan_interval=30.0, health=replace(h200.settings.health, probe_interval=5.0))
    async with h200.serving(shipped):
        async with asyncio.timeout(30):
            h200.node.faults.lose(2, xid=True)
            await h200.only_withdrawn(2)
        async with asyncio.timeout(30):
            h200.node.faults.restore(2)
            await h200.only_withdrawn()
