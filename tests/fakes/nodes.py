"""Inventories of the simulated nodes, read as the agent reads them: through NVML's binding and the node's own /sys."""

import asyncio
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from node_agent.hardware.inventory import InventoryKeeper
from node_agent.hardware.names import NameFile
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.sysfs import Sysfs
from node_agent.kit.tasks import running
from node_agent.model.inventory import Inventory


@cache
def inventory_of(profile: str) -> Inventory:
    """What a simulated node has. Not for use within an event loop."""
    with TemporaryDirectory() as folder, install(node := SimulatedNode(load_profile(profile))):
        node.write_tree(Path(folder) / "tree")
        return asyncio.run(_look(Path(folder)))


async def _look(folder: Path) -> Inventory:
    sysfs = folder / "tree" / "sys"
    async with NvmlProvider(sysfs) as provider:
        names = NameFile(folder / "names.json")
        keeper = InventoryKeeper(provider=provider, sysfs=Sysfs(root=sysfs), names=names)
        async with running(keeper.run()):
            async for inventory in keeper.inventory.watch():
                if inventory.generation:
                    return inventory
    raise AssertionError("a watch does not end by itself")
