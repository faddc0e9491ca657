"""The NodeResourceTopology of simulated nodes on which no pod runs: ``tests/golden/topology`` holds what comes out.

``python -m tests.golden.topology_examples`` writes the files anew; look at the difference before it is committed.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from node_agent.hardware.numa import NumaNode, numa_nodes
from node_agent.hardware.simulated import SimulatedNode, load_profile
from node_agent.kubelet.configuration import Alignment
from node_agent.kubelet.node_resources import Amounts, NodeResources
from node_agent.reporting.topology_object import topology_object
from tests.fakes.nodes import inventory_of

FOLDER = Path(__file__).parent / "topology"
EXAMPLES = ("h200-8", "a100-80gb-8", "gb200-4", "l4-2")


def written(profile: str) -> str:
    devices = {str(gpu.uuid): gpu.numa_node for gpu in inventory_of(profile).gpus}
    plugins = {uuid: frozenset([node] if node is not None else []) for uuid, node in devices.items()}
    found = NodeResources(allocatable=Amounts(devices={"nvidia.com/gpu": plugins}), held=Amounts())
    alignment = Alignment(policy="single-numa-node", scope="pod")
    offered = {"nvidia.com/gpu": devices}
    made = topology_object("node-1", nodes_of(profile), found, offered=offered, alignment=alignment)
    return json.dumps(made, indent=1) + "\n"


def nodes_of(profile: str) -> dict[int, NumaNode]:
    """What the node's /sys shows."""
    with TemporaryDirectory() as folder:
        SimulatedNode(load_profile(profile)).write_tree(Path(folder) / "tree")
        return numa_nodes(Path(folder) / "tree" / "sys")


def update() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        (FOLDER / f"{example}.json").write_text(written(example))


if __name__ == "__main__":
    update()
    sys.stdout.write(f"topology objects of {len(EXAMPLES)} nodes written to {FOLDER}\n")
