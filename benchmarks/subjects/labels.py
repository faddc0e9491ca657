"""The node's labels: worked out from what the node has, and written."""

from collections.abc import Sequence

from benchmarks.floors import FSYNCED_WRITE, fsynced_write
from benchmarks.inside import simulated
from benchmarks.measure import Effort, Figure, Target, figure, in_turns
from node_agent.agent.build import inventory_once
from node_agent.agent.live import selection_of
from node_agent.agent.node_labels import node_labels
from node_agent.hardware.machine import machine_of
from node_agent.hardware.sysfs import Sysfs
from node_agent.reporting.label_places import FeatureFile


async def measure(effort: Effort) -> Sequence[Figure]:
    with simulated("h200-8") as node:
        inventory = await inventory_once(node.settings)
        sysfs, selection = Sysfs(root=node.settings.paths.sysfs_root), selection_of(node.settings)
        path = node.settings.paths.run_dir / "labels"
        path.parent.mkdir(parents=True)
        # The second that it waits for a reader which is deaf is no work.
        place = FeatureFile(path, deaf_seconds=0.0)

        async def label() -> None:
            found = node_labels(selection, inventory, machine_of(sysfs, inventory.gpus))
            assert found is not None
            await place.put(found)

        await label()
        content = path.read_bytes()

        async def write() -> None:
            fsynced_write(path.with_name("floor"), content)

        turns = await in_turns(label, write, rounds=effort.pick(full=100, quick=20))
        return [figure("labels, worked out and written", turns, FSYNCED_WRITE, Target(limit=0.02))]
