"""Makes edits and specs out of what was found: no I/O, the same input gives the same spec. ``writer`` writes them.

The libraries are the hard part. A program asks the loader for a SONAME (``libcuda.so.1``), the driver installs a file
with its version in the name (``libcuda.so.550.90.12``), and CDI can mount files, but neither make a link nor run
ldconfig. There are two ways:

- With the toolkit's hook program on the host, each file is mounted where the host has it; hooks make the links, and the
  loader's cache of the container.
- Without it each file is mounted once for every name that programs load it by, in the folders that loaders search
  without a cache: ``/usr/lib/<architecture>-linux-gnu`` in Debian and its kin, ``/usr/lib64`` in Red Hat and SUSE.
  Both, since one spec serves every image. An image that brings a library of the driver has it in one of them as well,
  and the mount covers it. No ``LD_LIBRARY_PATH`` is set, because it would replace the image's own. Images with musl
  cannot use the driver either way. What only hooks can do is missing: CUDA's forward compatibility works only where
  the image sets the path of its libraries itself, and a program may try to make device nodes, to no use, since the
  container's device rules stand.

Edits (``common_edits``, ``gpu_edits``, ``partition_edits``) know no names of devices or kinds, ``assemble`` makes
a spec of any.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from stat import S_IROTH, S_IWOTH

import msgspec
from msgspec import Struct

from node_agent.cdi.driver import DriverFiles
from node_agent.cdi.edits import ContainerEdits, Device, DeviceNode, Mount, NodeEdits, Spec, document, merge
from node_agent.cdi.files import READ_ONLY
from node_agent.cdi.hooks import (
    CREATE_SYMLINKS,
    DISABLE_DEVICE_NODE_MODIFICATION,
    ENABLE_CUDA_COMPAT,
    UPDATE_APPLICATION_PROFILE,
    UPDATE_LDCACHE,
    HookProgram,
    link_arguments,
)
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.libraries import Library
from node_agent.cdi.names import ALL, partition_device
from node_agent.cdi.nodes import DeviceNodes
from node_agent.cdi.versions import VERSIONS, required_version
from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition

LOADER_FOLDERS = ("/usr/lib/{architecture}-linux-gnu", "/usr/lib64")

# Keeps NVIDIA's own runtime, where it is the default one, from adding devices of its choice.
_NO_SECOND_INJECTION = "NVIDIA_VISIBLE_DEVICES=void"

# Of the profiles of MIG devices only these draw.
_GRAPHICS = "+gfx"

# DRM nodes by the start of their names, and the end of the name of each one's link in /dev/dri/by-path.
_DRM_LINKS = {"card": "card", "renderD": "render"}


class Built(Struct, frozen=True, kw_only=True):
    """A spec, None where no GPU can be used, and what it lacks: files, nodes, and GPUs (those with ``gpu`` set)."""

    spec: Spec | None
    left_out: tuple[LeftOut, ...] = ()
    edits: NodeEdits | None = None


def node_spec(
    inventory: Inventory, nodes: DeviceNodes, files: DriverFiles | None = None, hook: HookProgram | None = None
) -> Built:
    """The spec of all GPUs of the node: each by UUID, index and name, and ``all`` of them as one device.

    Partitions have their UUID and ``<index of the GPU>:<index>``. A GPU without its device node is left out, and every
    GPU while a node is missing that all of them need. Without ``files`` a container needs none of the driver's.
    """
    usable = [gpu for gpu in inventory.gpus if gpu.uuid in nodes.gpus and not nodes.missing]
    parents = {gpu.uuid for gpu in usable}
    cut = [one for one in inventory.partitions.values() if one.uuid in nodes.partitions and one.parent in parents]
    blocked = [LeftOut(what=gpu.name, why=str(node), gpu=gpu.uuid) for gpu in inventory.gpus for node in nodes.missing]
    left_out = (*blocked, *nodes.left_out, *(files.left_out if files else ()))
    if not usable:
        return Built(spec=None, left_out=left_out)
    gpus = {gpu.uuid: gpu_edits(gpu, nodes, hook) for gpu in usable}
    partitions = {one.uuid: partition_edits(one, gpus[one.parent], nodes.partitions[one.uuid]) for one in cut}
    names, clashes = _names(usable, cut)
    edits = {str(uuid): own for uuid, own in (*gpus.items(), *partitions.items())}
    devices = {name: edits[uuid] for name, uuid in names.items()} | {ALL: merge(*edits.values())}
    common = common_edits(nodes, files, hook) if files else _nodes_alone(nodes)
    spec = assemble(inventory.vendor.cdi_kind, devices, common)
    built = NodeEdits(common=common, gpus=gpus, partitions=partitions)
    return Built(spec=spec, left_out=(*left_out, *clashes), edits=built)


def _names(gpus: Sequence[Gpu], partitions: Sequence[Partition]) -> tuple[dict[str, str], list[LeftOut]]:
    """Every name of every device, with its UUID; where two share one, UUIDs go before indices, these before names."""
    index = {gpu.uuid: gpu.index for gpu in gpus}
    wanted: list[tuple[str, str]] = [
        *((gpu.uuid, gpu.uuid) for gpu in gpus),
        *((partition_device(one.uuid), one.uuid) for one in partitions),
        *((str(gpu.index), gpu.uuid) for gpu in gpus),
        *((f"{index[one.parent]}:{one.index}", one.uuid) for one in partitions),
        *((gpu.name, gpu.uuid) for gpu in gpus),
    ]
    names: dict[str, str] = {}
    clashes = []
    for name, uuid in wanted:
        if name == ALL or names.setdefault(name, uuid) != uuid:
            clashes.append(LeftOut(what=f"the name {name} for {uuid}", why="it is another device's"))
    return names, clashes


def assemble(kind: str, devices: Mapping[str, ContainerEdits], common: ContainerEdits) -> Spec:
    """A spec of the given devices by name, which declares the lowest version that has all that it uses."""
    spec = Spec(
        cdi_version=VERSIONS[0],
        kind=kind,
        devices=tuple(Device(name=name, container_edits=edits) for name, edits in devices.items()),
        container_edits=common,
    )
    return msgspec.structs.replace(spec, cdi_version=required_version(document(spec)))


def gpu_edits(gpu: Gpu, nodes: DeviceNodes, hook: HookProgram | None = None) -> ContainerEdits:
    """What a container needs for one GPU, on top of the common edits. The GPU must be one of ``nodes.gpus``."""
    own = nodes.gpus[gpu.uuid]
    links = list(_drm_links(gpu, own))
    arguments = {CREATE_SYMLINKS: link_arguments(links)} if links else {}
    return ContainerEdits(
        device_nodes=own,
        hooks=tuple(hook.hooks(arguments)) if hook else (),
        additional_gids=_groups(own),
    )


def partition_edits(
    partition: Partition, parent: ContainerEdits, capabilities: tuple[DeviceNode, ...]
) -> ContainerEdits:
    """What a container needs for one partition: its GPU's own node, for graphics all nodes, and the capabilities."""
    needed = parent
    if not partition.profile.endswith(_GRAPHICS):
        own = parent.device_nodes[:1]
        needed = ContainerEdits(device_nodes=own, additional_gids=_groups(own))
    return merge(needed, ContainerEdits(device_nodes=capabilities))


def common_edits(nodes: DeviceNodes, files: DriverFiles, hook: HookProgram | None = None) -> ContainerEdits:
    """What every container with a GPU needs: the driver's own nodes, its libraries and other files."""
    linked = hook if hook and hook.provides_libraries else None
    libraries = _as_on_host(files.libraries) if linked else _in_loader_folders(files)
    folders = _loader_folders(files, linked)
    return ContainerEdits(
        env=(_NO_SECOND_INJECTION, f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(folders)}"),
        device_nodes=nodes.common,
        mounts=_in_order((*libraries, *files.mounts)),
        hooks=tuple(linked.hooks(_common_arguments(files, folders))) if linked else (),
        additional_gids=_groups(nodes.common),
    )


def _nodes_alone(nodes: DeviceNodes) -> ContainerEdits:
    return ContainerEdits(device_nodes=nodes.common, additional_gids=_groups(nodes.common))


def _common_arguments(files: DriverFiles, folders: Iterable[str]) -> dict[str, list[str]]:
    links = ((str(lib.folder / link), target) for lib in files.libraries for link, target in lib.links.items())
    return {
        CREATE_SYMLINKS: link_arguments(links),
        ENABLE_CUDA_COMPAT: [f"--host-driver-version={files.version}"],
        UPDATE_LDCACHE: [word for folder in folders for word in ("--folder", folder)],
        DISABLE_DEVICE_NODE_MODIFICATION: [],
        UPDATE_APPLICATION_PROFILE: [],
    }


def _loader_folders(files: DriverFiles, hook: HookProgram | None) -> tuple[str, ...]:
    """The folders in which the loader of a container finds the driver's libraries."""
    if hook:
        return tuple(dict.fromkeys(str(lib.folder) for lib in files.libraries if lib.below is not None))
    return tuple(folder.format(architecture=files.architecture) for folder in LOADER_FOLDERS)


def _as_on_host(libraries: Iterable[Library]) -> Iterator[Mount]:
    for library in libraries:
        yield _mount(library, library.folder / library.name)


def _in_loader_folders(files: DriverFiles) -> Iterator[Mount]:
    for library in files.libraries:
        fixed = [library.folder] if library.below is None else []
        found = [PurePosixPath(folder, library.below or "") for folder in _loader_folders(files, None)]
        for folder in fixed or found:
            yield from (_mount(library, folder / name) for name in (library.name, *library.links))


def _mount(library: Library, container_path: PurePosixPath) -> Mount:
    return Mount(host_path=library.host_path, container_path=str(container_path), options=READ_ONLY)


def _in_order(mounts: Iterable[Mount]) -> tuple[Mount, ...]:
    """Folders before what lies in them; of two mounts at one path the first."""
    by_path: dict[str, Mount] = {}
    for mount in mounts:
        by_path.setdefault(mount.container_path, mount)
    return tuple(by_path[path] for path in sorted(by_path, key=lambda path: (path.count("/"), path)))


def _groups(nodes: Iterable[DeviceNode]) -> tuple[int, ...]:
    """The groups that may use nodes which not everybody may."""
    everybody = S_IROTH | S_IWOTH
    # The toolkit's rule: a container's user gets a group only where the node is closed to others.
    closed = (node for node in nodes if node.file_mode is not None and node.file_mode & everybody != everybody)
    return tuple(sorted({node.gid for node in closed if node.gid}))


def _drm_links(gpu: Gpu, nodes: Iterable[DeviceNode]) -> Iterator[tuple[str, str]]:
    """The links by PCI address that programs find a GPU's DRM nodes by."""
    for name in (PurePosixPath(node.path).name for node in nodes):
        for start, end in _DRM_LINKS.items():
            if name.startswith(start):
                yield f"/dev/dri/by-path/pci-{gpu.pci}-{end}", f"../{name}"
