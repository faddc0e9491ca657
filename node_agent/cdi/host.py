"""What of a host containers need for its GPUs: the one part of CDI that differs by vendor."""

import os
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Protocol

from msgspec import Struct, field

from node_agent.cdi.build import Built, node_spec
from node_agent.cdi.capabilities import capability_nodes
from node_agent.cdi.driver import find_driver_files
from node_agent.cdi.edits import DeviceNode
from node_agent.cdi.hooks import HookProgram
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.nodes import DeviceNodes, Look, Stat, Wanted, find_device_nodes
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import CdiError
from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition


class Host(Protocol):
    """One vendor's driver on this host. Both methods do I/O."""

    def look(self, inventory: Inventory) -> Built:
        """The spec of the GPUs that there are. Raises CdiError where the driver's files cannot be found."""
        ...

    def capabilities(self, gpu: Gpu, partition: Partition) -> tuple[DeviceNode, ...]:
        """The device nodes of a partition beside its GPU's. Raises CdiError where the kernel does not show them."""
        ...


class NvidiaHost(Struct, frozen=True, kw_only=True):
    """NVIDIA's driver: device nodes, libraries, programs and, where the toolkit is installed, its hooks.

    ``stat`` looks at device nodes, of which the ``wanted`` ones go to every container.
    """

    roots: DriverRoots
    find_hook: Callable[[], HookProgram | None]
    stat: Stat = os.stat
    wanted: Wanted = field(default_factory=Wanted)

    def look(self, inventory: Inventory) -> Built:
        files = find_driver_files(self.roots, inventory.driver.version)
        nodes = find_device_nodes(self.roots, inventory, self.stat, self.wanted)
        return node_spec(inventory, nodes, files, self.find_hook())

    def capabilities(self, gpu: Gpu, partition: Partition) -> tuple[DeviceNode, ...]:
        return capability_nodes(self.roots, gpu, partition)


# Through it all programs reach all GPUs: which of them a container can use is decided by the other nodes.
_KFD = "/dev/kfd"


class AmdHost(Struct, frozen=True, kw_only=True):
    """AMD's driver: device nodes alone, since images bring the libraries of ROCm with them."""

    roots: DriverRoots
    stat: Stat = os.stat

    def look(self, inventory: Inventory) -> Built:
        look = Look(roots=self.roots, stat=self.stat)
        kfd = look.at(_KFD, "no program can compute without it; the module amdgpu makes it")
        gpus = {gpu.uuid: list(self._of_gpu(look, gpu)) for gpu in inventory.gpus}
        nodes = DeviceNodes(
            common=(kfd,) if isinstance(kfd, DeviceNode) else (),
            gpus={
                uuid: tuple(one for one in found if isinstance(one, DeviceNode))
                for uuid, found in gpus.items()
                if not any(isinstance(one, LeftOut) for one in found)
            },
            missing=(kfd,) if isinstance(kfd, LeftOut) else (),
            left_out=tuple(one for found in gpus.values() for one in found if isinstance(one, LeftOut)),
        )
        return node_spec(inventory, nodes)

    def capabilities(self, gpu: Gpu, partition: Partition) -> tuple[DeviceNode, ...]:
        raise CdiError(f"{gpu.name} has no partitions: AMD's GPUs are given out as they are")

    @staticmethod
    def _of_gpu(look: Look, gpu: Gpu) -> Iterator[DeviceNode | LeftOut]:
        """The GPU's own nodes, that for computing first; without one of that kind it cannot be used."""
        entries = sorted(look.drm_entries(gpu), key=lambda name: (not name.startswith("render"), name))
        if not any(name.startswith("render") for name in entries):
            yield LeftOut(what=gpu.name, why="the kernel shows no render node of it; see dmesg", gpu=gpu.uuid)
        for name in entries:
            yield look.at(str(PurePosixPath("/dev/dri", name)), f"{gpu.name} cannot be used without it", gpu.uuid)
