"""One CDI spec for each shape of node, as it is found on disk: ``cdi/examples`` holds what comes out.

``python -m tests.golden.cdi_examples`` writes the files anew; look at the difference before it is committed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from node_agent.cdi.build import node_spec
from node_agent.cdi.driver import find_driver_files
from node_agent.cdi.edits import Spec
from node_agent.cdi.hooks import HOOKS, find_hook_program
from node_agent.cdi.nodes import find_device_nodes
from node_agent.cdi.roots import DriverRoots
from node_agent.cdi.writer import SpecWriter
from node_agent.model.inventory import Inventory
from tests.fakes.builders import bridged_node, cut, gb200_tray, h200_node, partition, pcie_node
from tests.fakes.names import KIND
from tests.unit.cdi.installation import AARCH64, KERNEL, RED_HAT, Capabilities, Installation, Nodes

FOLDER = Path(__file__).parents[2] / "cdi" / "examples"


def h200_8(scratch: Path) -> Spec:
    """Eight H200 on NVSwitch, the driver installed on a Debian host, nothing else of NVIDIA's."""
    return spec(h200_node(), Installation(scratch).server())


def h200_8_hooks(scratch: Path) -> Spec:
    """The same with the container toolkit installed."""
    host = Installation(scratch).server()
    host.hook(HOOKS)
    return spec(h200_node(), host)


def a100_4_driver_container(scratch: Path) -> Spec:
    """Four A100; libraries and device nodes are those of a driver container."""
    return spec(bridged_node(), Installation(scratch).server(), on_host="/run/nvidia/driver")


def gb200_4_arm(scratch: Path) -> Spec:
    """Four GB200 on Arm with Red Hat's layout."""
    return spec(gb200_tray(), Installation(scratch).server(RED_HAT, AARCH64))


def l40s_2_graphics(scratch: Path) -> Spec:
    """Two L40S with graphics: DRM nodes that only members of two groups may use, and an older toolkit."""
    inventory = pcie_node(sockets=1, per_socket=2)
    host = Installation(scratch / "root").server().graphics()
    host.hook(HOOKS[:3], "/usr/bin/nvidia-ctk")
    nodes = Nodes()
    for number, gpu in enumerate(inventory.gpus):
        for name, minor, gid in ((f"card{number + 1}", number + 1, 44), (f"renderD{number + 128}", number + 128, 992)):
            (scratch / "sys/bus/pci/devices" / gpu.pci / "drm" / name).mkdir(parents=True)
            nodes.add(f"/dev/dri/{name}", 226, minor, mode=0o660, gid=gid)
    return spec(inventory, host, nodes=nodes, sysfs=scratch / "sys")


def a100_4_mig(scratch: Path) -> Spec:
    """Four A100 of which two are cut: one in two unequal parts, one in MIG mode with nothing on it."""
    node = bridged_node()
    first = node.gpus[0]
    parts = [partition(first, "3g.40gb", 0, length=4, number=2), partition(first, "1g.10gb", 6, number=13)]
    capabilities = Capabilities(scratch / "proc")
    capabilities.add(0, 2, minor=21)
    capabilities.add(0, 13, minor=120)
    return spec(cut(node, {0: parts, 1: []}), Installation(scratch / "root").server(), proc=scratch / "proc")


EXAMPLES: dict[str, Callable[[Path], Spec]] = {
    each.__name__.replace("_", "-"): each
    for each in (h200_8, h200_8_hooks, a100_4_driver_container, a100_4_mig, gb200_4_arm, l40s_2_graphics)
}


def spec(
    inventory: Inventory,
    host: Installation,
    *,
    on_host: str = "/",
    nodes: Nodes | None = None,
    sysfs: Path = Path("/no-sysfs"),
    proc: Path = Path("/no-proc"),
) -> Spec:
    """What the agent makes of the installation, were it at ``on_host``."""
    roots = DriverRoots(driver=host.root, host_driver=Path(on_host), host_dev=Path(on_host), sysfs=sysfs, proc=proc)
    found = find_device_nodes(roots, inventory, (nodes or Nodes()).server(inventory))
    built = node_spec(inventory, found, find_driver_files(roots, host.version, KERNEL), find_hook_program(roots))
    assert built.spec is not None, built.left_out
    return built.spec


def written(example: str, scratch: Path) -> bytes:
    """The file of an example, as the agent writes it; ``scratch`` is an empty folder."""
    folder = scratch / "cdi"
    SpecWriter(folder).write(EXAMPLES[example](scratch / "installation"))
    return (folder / f"{KIND.replace('/', '-')}.json").read_bytes()


def update() -> None:
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        with TemporaryDirectory() as scratch:
            (FOLDER / f"{example}.json").write_bytes(written(example, Path(scratch)))


if __name__ == "__main__":
    update()
    sys.stdout.write(f"{len(EXAMPLES)} specs written to {FOLDER}\n")
