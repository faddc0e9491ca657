"""One look at how the node's GPUs are cut, for commands that need no agent."""

from collections.abc import Mapping

from msgspec import Struct, field

from node_agent.agent.hardware import provider_of
from node_agent.config.settings import Settings
from node_agent.errors import HardwareError, NotSupported
from node_agent.hardware.provider import Partitioning
from node_agent.layouts.usage import cut_gpu
from node_agent.model.gpu import DeviceName, Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.partition import PartitionProfile
from node_agent.partition.defragment import CutGpu


class Cuts(Struct, frozen=True, kw_only=True):
    """How GPUs are cut; one without MIG has no rules and no mode. ``failed`` are those that do not answer, and why."""

    gpus: tuple[CutGpu, ...]
    failed: Mapping[DeviceName, str] = field(default_factory=dict)


async def cuts_once(settings: Settings, inventory: Inventory) -> Cuts:
    """Ask the GPUs of the inventory. In use is what processes run on."""
    found, failed = [], {}
    async with provider_of(settings) as provider:
        await provider.discovery.scan()
        for gpu in inventory.gpus:
            try:
                found.append(await _cut(provider.partitioning, gpu))
            except HardwareError as error:
                failed[gpu.name] = str(error)
    return Cuts(gpus=tuple(found), failed=failed)


async def _cut(partitioning: Partitioning, gpu: Gpu) -> CutGpu:
    profiles: tuple[PartitionProfile, ...] = ()
    if gpu.partition_mode is not None:
        try:
            profiles = await partitioning.profiles(gpu.uuid)
        except NotSupported:
            # A guest may be told the mode and have no say in it.
            profiles = ()
    return cut_gpu(gpu, profiles, await partitioning.instances(gpu.uuid))
