"""What stands between the driver and the first offer: the inventory, the search for driver files, the CDI spec."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.floors import FSYNCED_WRITE, NVML_PASS, STATS, fsynced_write, nvml_pass
from benchmarks.inside import Node, simulated
from benchmarks.measure import Effort, Figure, figure, in_turns
from node_agent.agent.build import inventory_once
from node_agent.agent.hardware import driver_roots
from node_agent.cdi.build import node_spec
from node_agent.cdi.driver import DriverFiles, find_driver_files
from node_agent.cdi.names import file_name
from node_agent.cdi.nodes import find_device_nodes
from node_agent.cdi.writer import SpecWriter
from node_agent.model.inventory import Inventory
from node_agent.model.vendor import NVIDIA


async def measure(effort: Effort) -> Sequence[Figure]:
    with simulated("h200-8") as node:
        inventory = await inventory_once(node.settings)
        files = find_driver_files(driver_roots(node.settings), inventory.driver.version)
        return [
            await _first_inventory(node, effort),
            await _driver_files(node, inventory, files, effort),
            await _spec(node, inventory, files, effort),
        ]


async def _first_inventory(node: Node, effort: Effort) -> Figure:
    async with nvml_pass(node.settings) as look:
        rounds = effort.pick(full=30, quick=10)
        turns = await in_turns(lambda: inventory_once(node.settings), look, rounds=rounds)
    return figure("first inventory, from nothing", turns, NVML_PASS)


async def _driver_files(node: Node, inventory: Inventory, files: DriverFiles, effort: Effort) -> Figure:
    found = [Path(library.host_path) for library in files.libraries] + [Path(mount.host_path) for mount in files.mounts]

    async def search() -> None:
        find_driver_files(driver_roots(node.settings), inventory.driver.version)

    async def look() -> None:
        for path in found:
            path.stat()

    return figure("search for driver files", await in_turns(search, look, rounds=effort.pick(full=30, quick=10)), STATS)


async def _spec(node: Node, inventory: Inventory, files: DriverFiles, effort: Effort) -> Figure:
    folder = node.settings.paths.cdi_dir
    writer, roots = SpecWriter(folder), driver_roots(node.settings)

    async def build_and_write() -> None:
        spec = node_spec(inventory, find_device_nodes(roots, inventory, node.simulation.stat), files).spec
        assert spec is not None
        writer.write(spec)

    async def remove() -> None:
        writer.remove(NVIDIA.cdi_kind)

    await build_and_write()
    content = (folder / file_name(NVIDIA.cdi_kind)).read_bytes()

    async def write() -> None:
        fsynced_write(folder / "floor", content)

    turns = await in_turns(build_and_write, write, rounds=effort.pick(full=30, quick=10), between=remove)
    return figure("CDI spec, built and written", turns, FSYNCED_WRITE)
