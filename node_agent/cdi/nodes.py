"""The device nodes of the GPUs and of the driver, as they are at this moment: numbers, permissions, groups.

Majors of all but /dev/nvidia<n> change from boot to boot and with each load of a module, so nothing here is remembered.
``build`` turns what was found into edits.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from stat import S_IMODE, S_ISCHR

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.cdi.capabilities import capability_nodes
from node_agent.cdi.edits import DeviceNode
from node_agent.cdi.imex import channel_place
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import CdiError
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition, PartitionUuid

# The nodes without which no GPU of the node can be used, and what to do where one is missing.
NEEDED = {
    "/dev/nvidiactl": "no program can reach the driver without it; the driver is not loaded, or nothing made the node",
    "/dev/nvidia-uvm": "CUDA cannot start without it; load the module nvidia-uvm, or run nvidia-modprobe -u",
}

OPTIONAL = {
    "/dev/nvidia-uvm-tools": "profilers need it; nvidia-modprobe -u makes it",
    "/dev/nvidia-modeset": "only graphics and displays need it; nvidia-modprobe -m makes it",
}

Stat = Callable[[Path], os.stat_result]


class Wanted(Struct, frozen=True, kw_only=True):
    """The nodes that all containers with GPUs get, each with why: without a needed one no GPU can be used."""

    needed: Mapping[str, str] = field(default_factory=lambda: NEEDED)
    optional: Mapping[str, str] = field(default_factory=lambda: OPTIONAL)

    def with_channels(self, channels: Iterable[int], *, required: bool) -> "Wanted":
        """These and IMEX channels."""
        why = "the driver makes it with NVreg_CreateImexChannel0=1, nvidia-modprobe -c makes any"
        places = {channel_place(number): f"imex.channelIDs names it; {why}" for number in channels}
        if required:
            return replace(self, needed={**self.needed, **places})
        return replace(self, optional={**self.optional, **places})


class DeviceNodes(Struct, frozen=True, kw_only=True):
    """The nodes that exist: ``common`` for every container, ``gpus`` by GPU, those of a GPU with its DRM nodes.

    ``partitions`` are the capabilities of each live partition, which it needs beside its GPU's own node.
    ``missing`` are needed and not there: until they are, no GPU can be used. ``left_out`` are optional ones, and those
    of GPUs that are not in ``gpus``.
    """

    common: tuple[DeviceNode, ...] = ()
    gpus: Mapping[GpuUuid, tuple[DeviceNode, ...]] = field(default_factory=dict)
    partitions: Mapping[PartitionUuid, tuple[DeviceNode, ...]] = field(default_factory=dict)
    missing: tuple[LeftOut, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def find_device_nodes(
    roots: DriverRoots, inventory: Inventory, stat: Stat = os.stat, wanted: Wanted | None = None
) -> DeviceNodes:
    """Look at the nodes of all GPUs of the inventory and at those that all of them share."""
    look, wanted = Look(roots=roots, stat=stat), wanted or Wanted()
    needed = [look.at(place, why) for place, why in wanted.needed.items()]
    optional = [look.at(place, why) for place, why in wanted.optional.items()]
    gpus = {gpu.uuid: look.at_gpu(gpu) for gpu in inventory.gpus}
    partitions = {
        one.uuid: look.at_partition(one, inventory.by_uuid[one.parent]) for one in inventory.partitions.values()
    }
    looks = [optional, *gpus.values(), *partitions.values()]
    return DeviceNodes(
        common=_nodes(needed + optional),
        gpus={uuid: _nodes(found) for uuid, found in gpus.items() if not any(_lost(item) for item in found)},
        partitions={uuid: nodes for uuid, found in partitions.items() if (nodes := _nodes(found))},
        missing=_left_out(needed),
        left_out=_left_out([item for found in looks for item in found]),
    )


_Found = DeviceNode | LeftOut


def _nodes(found: list[_Found]) -> tuple[DeviceNode, ...]:
    return tuple(item for item in found if isinstance(item, DeviceNode))


def _left_out(found: list[_Found]) -> tuple[LeftOut, ...]:
    return tuple(item for item in found if isinstance(item, LeftOut))


def _lost(item: _Found) -> bool:
    return isinstance(item, LeftOut) and item.gpu is not None


class Look(Struct, frozen=True, kw_only=True):
    """One look at /dev: each answer is a node, or what is missing there."""

    roots: DriverRoots
    stat: Stat

    def at_gpu(self, gpu: Gpu) -> list[_Found]:
        if gpu.minor is None:
            return [LeftOut(what=gpu.name, why="the driver does not tell its device minor", gpu=gpu.uuid)]
        own = self.at(f"/dev/nvidia{gpu.minor}", f"{gpu.name} cannot be used without it", gpu.uuid)
        drm = [f"/dev/dri/{entry}" for entry in self.drm_entries(gpu)]
        return [own, *(self.at(place, f"graphics on {gpu.name} need it") for place in drm)]

    def at_partition(self, partition: Partition, gpu: Gpu) -> list[_Found]:
        try:
            return list(capability_nodes(self.roots, gpu, partition))
        except CdiError as error:
            return [LeftOut(what=partition.uuid, why=str(error), partition=partition.uuid)]

    def at(self, place: str, why: str, gpu: GpuUuid | None = None) -> _Found:
        """The node at a place; what is missing there otherwise, which costs the ``gpu`` where one is named."""
        path = PurePosixPath(place)
        try:
            facts = self.stat(self.roots.device_node(path))
        except FileNotFoundError:
            return LeftOut(what=place, why=f"not there; {why}", gpu=gpu)
        except OSError as error:
            return LeftOut(what=place, why=f"cannot be looked at ({error.strerror or error}); {why}", gpu=gpu)
        if not S_ISCHR(facts.st_mode):
            return LeftOut(what=place, why=f"no character device; {why}", gpu=gpu)
        return _node(place, self.roots.device_node_on_host(path), facts)

    def drm_entries(self, gpu: Gpu) -> list[str]:
        """The names of the GPU's nodes below /dev/dri."""
        folder = self.roots.sysfs / "bus/pci/devices" / gpu.pci / "drm"
        return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _node(place: str, host_path: str, facts: os.stat_result) -> DeviceNode:
    # No uid: a runtime gives the node to the user of the container's process where the spec names no owner.
    return DeviceNode(
        path=place,
        host_path=host_path if host_path != place else None,
        type="c",
        major=os.major(facts.st_rdev),
        minor=os.minor(facts.st_rdev),
        file_mode=S_IMODE(facts.st_mode),
        permissions="rwm",
        gid=facts.st_gid or None,
    )
