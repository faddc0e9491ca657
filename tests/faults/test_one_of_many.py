"""One GPU that fails must not take away the others. Users met: one GPU off the bus broke allocation, or the start of
the agent, for all of them (B08), and one that was broken from the start was offered since no event ever came (B09).
"""

import asyncio
import socket

import pytest
from msgspec.structs import replace

from tests.fakes.names import GPU_RESOURCE
from tests.faults.conftest import Place, Simulate

SEVEN = [0, 1, 2, 4, 5, 6, 7]


async def test_seven_gpus_are_still_given_out_while_one_is_off_the_bus(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.lose(3)
        await h200.only_withdrawn(3)

        ids, response = await h200.kubelet.admit("trainer", GPU_RESOURCE, 7)

        assert set(ids) == {h200.uuid(slot) for slot in SEVEN}
        assert {device.name.partition("=")[2] for device in response.cdi_devices} == set(ids)


async def test_pods_are_admitted_in_the_very_moment_in_which_a_gpu_falls_off_the_bus(h200: Place) -> None:
    """The kubelet's calls are answered from memory: a driver that fails at that moment cannot fail them."""
    async with h200.serving():
        h200.node.faults.lose(7)
        ids, _ = await h200.kubelet.admit("trainer", GPU_RESOURCE, 4)

    assert set(ids) == {h200.uuid(slot) for slot in range(4)}


@pytest.mark.parametrize("call", ["nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState"])
async def test_links_that_cannot_be_read_cost_no_gpu(h200: Place, call: str) -> None:
    h200.node.faults.fail(call, "UNKNOWN")
    async with h200.serving():
        ids, _ = await h200.kubelet.admit("trainer", GPU_RESOURCE, 4)

    assert len(ids) == 4


async def test_an_agent_that_starts_beside_a_dead_gpu_offers_the_others_under_their_own_names(h200: Place) -> None:
    async with h200.serving() as agent:
        before = {gpu.uuid: gpu.name for gpu in agent.keeper.inventory.value.gpus}

    h200.node.faults.lose(3)
    async with h200.kubelet.running(), h200.agent() as agent:
        await h200.allocatable(7)
        status = await h200.status()
        assert {gpu.uuid: gpu.name for gpu in status.gpus} == {
            uuid: name for uuid, name in before.items() if uuid != h200.uuid(3)
        }
        assert [(gone.index, "lost" in gone.reason) for gone in status.missing] == [(3, True)]
        await h200.ready()

        h200.node.faults.restore(3)
        await h200.allocatable(8)
        assert {gpu.uuid: gpu.name for gpu in agent.keeper.inventory.value.gpus} == before


async def test_a_gpu_that_was_off_the_bus_at_the_first_start_gets_the_name_of_its_own(h200: Place) -> None:
    h200.node.faults.lose(3)
    async with h200.kubelet.running(), h200.agent():
        await h200.allocatable(7)
        names = {gpu.uuid: gpu.name for gpu in (await h200.status()).gpus}
        assert names[h200.uuid(4)] == f"gpu-{h200.node.profile.gpus[4].minor}"

        h200.node.faults.restore(3)
        await h200.allocatable(8)
        assert (await h200.status_of(3)).name == f"gpu-{h200.node.profile.gpus[3].minor}"


async def test_cards_that_were_broken_before_the_start_are_never_offered(h200: Place) -> None:
    """Row remapping failed, remap pending, ECC that fails to answer, ECC that is not there: no Xid tells of any."""
    faults = h200.node.faults
    faults.remap_rows(1, failure=True)
    faults.remap_rows(2, pending=True)
    faults.fail("nvmlDeviceGetTotalEccErrors", "UNKNOWN", gpu=4)
    faults.fail("nvmlDeviceGetTotalEccErrors", "NOT_SUPPORTED", gpu=5)
    shipped = replace(h200.settings, health=replace(h200.settings.health, probe_interval=5.0))
    async with h200.kubelet.running(), h200.agent(shipped):
        ever_offered = await h200.offered_within(1.0)
        async with asyncio.timeout(30):
            while len(ever_offered) < 6:
                ever_offered |= await h200.offered_within(1.0)

        assert ever_offered == {h200.uuid(slot) for slot in (0, 2, 3, 5, 6, 7)}
        assert h200.view.healthy == ever_offered
        assert (await h200.causes(1, "row-remap-failed")).health == "withdrawn"
        assert (await h200.causes(2, "reset-needed")).health == "degraded"
        assert (await h200.causes(4, "query-failed")).health == "withdrawn"
        assert (await h200.causes(5)).health == "healthy"


async def test_a_broken_card_that_is_plugged_in_later_is_never_offered(h200: Place) -> None:
    h200.node.faults.unplug(6)
    h200.node.faults.remap_rows(6, failure=True)
    slow = replace(h200.settings, health=replace(h200.settings.health, probe_interval=60.0))
    async with h200.kubelet.running(), h200.agent(slow):
        await h200.allocatable(7)
        h200.node.faults.plug(6)
        ever_offered = await h200.offered_within(1.0)

        assert h200.uuid(6) not in ever_offered
        assert (await h200.causes(6, "row-remap-failed")).health == "withdrawn"


@pytest.mark.parametrize("profile", ["mixed-5", "v100-8", "t4-4", "gb10-1", "vgpu-1", "h100-vm-8"])
async def test_every_kind_of_board_is_offered_whole(simulate: Simulate, profile: str) -> None:
    place = simulate(profile)
    async with place.kubelet.running(), place.agent():
        expected = sum("DGX Display" not in place.node.profile.board_of(gpu).name for gpu in place.node.profile.gpus)
        await asyncio.sleep(0.5)
        in_mig_mode = sum(gpu.mig is not None for gpu in place.node.profile.gpus)
        await place.allocatable(expected - in_mig_mode)


async def test_a_port_that_is_taken_costs_that_port_only_and_is_said_in_one_line(
    h200: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = taken.getsockname()
        async with h200.serving(h200.with_settings(http_address=address)):
            assert (await h200.ask("/healthz"))[0] == 200
            await h200.trouble(f"agent.http.address (127.0.0.1:{address[1]}): cannot listen there")
    assert not any(record.exc_info for record in caplog.records)
