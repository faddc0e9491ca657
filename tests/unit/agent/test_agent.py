"""The status that the agent's parts add up to."""

import asyncio
import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from node_agent import __version__
from node_agent.agent.agent import Agent
from node_agent.agent.build import built
from node_agent.hardware.inventory import InventoryKeeper
from node_agent.hardware.names import NameFile
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.sysfs import Sysfs
from node_agent.kit.lane import Busy
from node_agent.reporting.status import Status
from tests.unit.agent.conftest import Place

RESOURCE = "nvidia.com/gpu"


async def status_when(agent: Agent, wanted: Callable[[Status], object]) -> Status:
    async with asyncio.timeout(30):
        while not wanted(agent.status()):
            await asyncio.sleep(0.01)
    return agent.status()


async def test_an_agent_at_work_tells_its_gpus_its_resource_its_spec_and_its_services(place: Place) -> None:
    began = time.time()
    async with place.kubelet.running(), place.agent() as agent:
        view = await place.kubelet.until(RESOURCE, allocatable=8)
        found = await status_when(agent, lambda status: status.ready)
    assert (found.version, found.node, found.driver, found.cuda) == (__version__, "node-a", "580.95.05", "13.0")
    assert began - 5 <= found.started <= time.time()
    assert {gpu.uuid for gpu in found.gpus} == view.devices.keys()
    (resource,) = found.resources
    assert (resource.name, resource.phase, resource.registrations) == (RESOURCE, "registered", 1)
    assert (resource.devices, resource.healthy) == (8, 8)
    assert found.cdi is not None
    assert (found.cdi.devices, found.cdi.trouble) == (8, None)
    assert {service.condition for service in found.services} == {"running"}
    assert {"inventory", "health", "cdi", "status", f"device-plugin {RESOURCE}"} <= {
        service.name for service in found.services
    }


async def test_the_spec_that_the_status_names_is_on_disk(place: Place) -> None:
    async with place.agent() as agent:
        found = await status_when(agent, lambda status: status.cdi and status.cdi.devices)
        assert found.cdi is not None
        assert (place.folder / "cdi").joinpath(found.cdi.path).exists()


async def test_before_it_runs_it_knows_nothing_and_says_so(place: Place) -> None:
    async with built(place.settings()) as agent:
        found = agent.status()
    assert (found.gpus, found.trouble) == ((), ("the GPUs have not been looked at yet",))


async def test_without_a_kubelet_it_says_where_it_waits_for_one(place: Place) -> None:
    async with place.agent() as agent:
        found = await status_when(agent, lambda status: status.generation and "no kubelet" in str(status.trouble))
    assert found.trouble == (
        f"{RESOURCE}: waiting for the kubelet: no kubelet at {place.folder}/kubelet/device-plugins",
    )


async def test_a_lost_gpu_is_withdrawn_and_the_agent_stays_ready(place: Place) -> None:
    async with place.kubelet.running(), place.agent() as agent:
        await place.kubelet.until(RESOURCE, allocatable=8)
        place.simulated.node.faults.lose(3, xid=True)
        await place.kubelet.until(RESOURCE, allocatable=7)
        found = await status_when(agent, lambda status: any(gpu.causes for gpu in status.gpus))
    (sick,) = [gpu for gpu in found.gpus if gpu.health != "healthy"]
    assert (sick.uuid, sick.health) == (place.simulated.node.faults.gpu(3).uuid, "withdrawn")
    assert found.ready
    assert (found.resources[0].devices, found.resources[0].healthy) == (8, 7)


async def test_a_driver_that_goes_away_is_the_trouble(place: Place) -> None:
    async with place.kubelet.running(), place.agent(replace(place.settings(), rescan_interval=0.1)) as agent:
        await place.kubelet.until(RESOURCE, allocatable=8)
        place.simulated.node.faults.driver("not-loaded")
        # The events may be missed a moment before the GPUs are.
        await status_when(
            agent, lambda status: any(one.startswith("nvmlInit: Driver Not Loaded") for one in status.trouble)
        )


class HangingKeeper(InventoryKeeper):
    """Has a call that does not return."""

    @property
    def stalled(self) -> Busy:
        return Busy(call="nvmlInit", since=time.monotonic() - 42)


async def test_a_driver_that_hangs_is_named_with_the_call_and_the_time(place: Place) -> None:
    settings = place.settings()
    async with built(settings) as agent, NvmlProvider(settings.paths.sysfs_root) as provider:
        keeper = HangingKeeper(provider=provider, sysfs=Sysfs(), names=NameFile(place.folder / "names.json"))
        found = replace(agent, keeper=keeper).status()
    assert "the driver hangs in nvmlInit for 42 s" in found.trouble


@pytest.mark.parametrize("place", ["none"], indirect=True)
async def test_a_node_without_gpus_is_ready_and_registers_nothing(place: Place) -> None:
    async with place.kubelet.running(), place.agent() as agent:
        found = await status_when(agent, lambda status: status.generation)
        await asyncio.sleep(0.2)
    assert (found.gpus, found.trouble) == ((), ())
    assert not place.kubelet.resources.value


async def test_the_driver_is_left_alone_until_the_gpu_operator_says_that_it_is_ready(place: Place) -> None:
    """And again while the operator has taken that back, as during an upgrade of the driver."""
    folder = place.folder / "validations"
    folder.mkdir()
    settings = replace(
        place.settings(agent_gpuOperator_validations=str(folder), agent_gpuOperator_waitFor=["driver"]),
        rescan_interval=0.2,
    )
    async with place.kubelet.running(), place.agent(settings) as agent:
        found = await status_when(agent, lambda status: status.generation)
        assert f"{folder}/driver-ready is not there" in found.trouble[0]
        assert found.gpus == ()
        (folder / "driver-ready").touch()
        await place.kubelet.until(RESOURCE, allocatable=8)
        await status_when(agent, lambda status: status.ready)
        (folder / "driver-ready").unlink()
        await place.kubelet.until(RESOURCE, allocatable=0)
