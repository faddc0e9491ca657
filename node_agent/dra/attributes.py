"""What a ResourceSlice says of a device: the attributes to choose by, and its capacities. Pure.

Names and types are those of NVIDIA's driver where it has the attribute, and Kubernetes' own where there is a standard
one; the rest is ours, in the driver's domain as well. What is not known is absent. ``values`` makes each value valid,
``slices`` puts the devices together.

Ours: ``nvlinkDomain`` is equal for the GPUs of this node that NVLink joins (for ``matchAttribute``), ``clique`` for the
GPUs of one NVLink domain over several nodes, as the label ``nvidia.com/gpu.clique`` has it. ``nvlinkBandwidthMBps`` is
the sum of a GPU's NVLinks in one direction, ``powerLimitWatts`` the limit that is set.
"""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from node_agent.dra.values import MOST_NAMES, Capacity, Value, count, flag, known, number, size, text, version
from node_agent.model.device import DeviceKind
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import DriverInfo, Inventory
from node_agent.model.partition import Partition, PartitionProfile, PartitionUuid, Placement
from node_agent.topology.pairs import pair_scores, positions

STANDARD = "resource.kubernetes.io"
"""The domain of the attributes that mean the same for every driver."""

MEMORY, MULTIPROCESSORS, CORES = "memory", "multiprocessors", "cores"

# The standard attribute has no form for the longer domains that some host bridges make up.
_PCI_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_COHERENT = "ATS"

# What is true of a partition as it is of its GPU. NVLink is not for partitions.
_INHERITED = (
    f"{STANDARD}/pciBusID",
    f"{STANDARD}/pcieRoot",
    f"{STANDARD}/numaNode",
    "productName",
    "brand",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
    "addressingMode",
)

_ENGINES = {
    "copyEngines": "copy_engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg_engines",
    "ofaEngines": "optical_flow_engines",
}
_MIB = 1 << 20
_PERCENT = 100


class NvlinkFacts(Struct, frozen=True, kw_only=True):
    """What the link graph says of each GPU that has NVLinks: the id of its island, and MB/s in one direction."""

    domains: Mapping[GpuUuid, str] = field(default_factory=dict)
    bandwidth: Mapping[GpuUuid, int] = field(default_factory=dict)


def nvlink_facts(inventory: Inventory) -> NvlinkFacts:
    """An island goes by the UUID of its first GPU on the bus: no two nodes have the same one."""
    gpus = inventory.gpus
    islands = [positions(mask) for mask in pair_scores(inventory).islands]
    domains = {gpus[i].uuid: gpus[island[0]].uuid for island in islands for i in island}
    bandwidth = {gpu: _nvlink_bandwidth(inventory, gpu) for gpu in domains}
    return NvlinkFacts(domains=domains, bandwidth={gpu: total for gpu, total in bandwidth.items() if total})


def gpu_attributes(gpu: Gpu, driver: DriverInfo, nvlink: NvlinkFacts) -> dict[str, Value]:
    """The attributes of a whole GPU."""
    bus, mode, device = _PCI_BUS_ID.fullmatch(gpu.pci), gpu.addressing_mode, gpu.device_id
    values = {
        "type": text(DeviceKind.GPU),
        "uuid": text(gpu.uuid),
        f"{STANDARD}/pciBusID": text(bus and bus.group()),
        f"{STANDARD}/pcieRoot": text(gpu.pcie_root),
        f"{STANDARD}/numaNode": number(gpu.numa_node),
        "productName": text(gpu.product),
        "brand": text(gpu.brand),
        "architecture": text(gpu.architecture),
        "cudaComputeCapability": version(str(gpu.compute_capability or "")),
        "driverVersion": version(driver.version),
        "cudaDriverVersion": version(driver.cuda),
        "nvlinkDomain": text(nvlink.domains.get(gpu.uuid)),
        "clique": text(gpu.nvlink_domain),
        "nvlinkGeneration": number(gpu.nvlink_generation),
        "nvlinkBandwidthMBps": number(nvlink.bandwidth.get(gpu.uuid)),
        "migCapable": flag(gpu.partition_mode is not None),
        "eccEnabled": flag(gpu.ecc_enabled),
        "addressingMode": text(mode),
        "coherentMemory": flag(None if mode is None else mode == _COHERENT),
        "powerLimitWatts": number(gpu.power_limit),
        "deviceID": text(None if device is None else f"0x{device:04x}"),
        "minor": number(gpu.minor),
        "serial": text(gpu.serial),
        "vbios": text(gpu.vbios),
    }
    return known(values, MOST_NAMES - len(shared_capacity(gpu)))


def gpu_capacity(gpu: Gpu) -> dict[str, Capacity]:
    """Bytes of memory and multiprocessors, as far as the GPU tells: never zero."""
    memory = {MEMORY: {"value": size(gpu.memory)}} if gpu.memory else {}
    cores = {MULTIPROCESSORS: {"value": count(gpu.multiprocessors)}} if gpu.multiprocessors else {}
    return {**memory, **cores}


def shared_capacity(gpu: Gpu) -> dict[str, Capacity]:
    """The same for a GPU that several claims may share, and its cores in percent: each takes what it asks for.

    Who does not say how much memory it wants has all of it, and so the GPU for itself. Who says that, but not how many
    multiprocessors or cores, is counted with one: most want to share these, not to divide them.
    """
    capacity = {**gpu_capacity(gpu), CORES: {"value": count(_PERCENT)}}
    for name, total, step, spelled, takes_all in (
        (MEMORY, gpu.memory, _MIB, size, True),
        (MULTIPROCESSORS, gpu.multiprocessors, 1, count, False),
        (CORES, _PERCENT, 1, count, False),
    ):
        # The API wants room for one step above the least; and what could not be asked for in parts goes as a whole.
        if total and total >= 2 * step:
            limits = {"min": spelled(step), "step": spelled(step)}
            policy = {"default": spelled(total - total % step if takes_all else step), "validRange": limits}
            capacity[name] = {**capacity[name], "requestPolicy": policy}
    return capacity


def partition_attributes(
    parent: Mapping[str, Value], profile: str, uuid: PartitionUuid | None = None
) -> dict[str, Value]:
    """Those of a partition of the GPU with these attributes; one that is yet to be made has no UUID."""
    own = {
        "type": text(DeviceKind.MIG),
        "uuid": text(uuid),
        "parentUUID": parent.get("uuid"),
        "profile": text(profile),
    }
    return known({**own, **{name: parent.get(name) for name in _INHERITED}})


def partition_capacity(shape: Partition | PartitionProfile, lies: Placement | None = None) -> dict[str, Capacity]:
    """What a partition has, and the memory slices where it ``lies``, since these tell live ones apart."""
    memory = {MEMORY: {"value": size(shape.memory)}} if shape.memory else {}
    cores = {MULTIPROCESSORS: {"value": count(shape.multiprocessors)}} if shape.multiprocessors else {}
    engines = {name: {"value": count(getattr(shape, field))} for name, field in _ENGINES.items()}
    slices = range(lies.start, lies.start + lies.length) if lies is not None else ()
    return {**memory, **cores, **engines, **{f"memorySlice{i}": {"value": "1"} for i in slices}}


def group_attributes(members: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """What is true of every GPU of a group, which kind it is and how many GPUs it has."""
    common = {name: value for name, value in members[0].items() if all(each.get(name) == value for each in members)}
    own = {"type": text(DeviceKind.GROUP), "gpuCount": number(len(members))}
    return known({**own, **common, **own})


def group_capacity(members: Sequence[Gpu]) -> dict[str, Capacity]:
    """The members' capacities together; one that a member does not tell is not known of the group either."""
    memory, cores = [gpu.memory or 0 for gpu in members], [gpu.multiprocessors or 0 for gpu in members]
    totals = ((MEMORY, memory, size), (MULTIPROCESSORS, cores, count))
    return {name: {"value": spelled(sum(each))} for name, each, spelled in totals if all(each)}


def _nvlink_bandwidth(inventory: Inventory, gpu: GpuUuid) -> int:
    """All links to a switch serve each peer behind it, so they count once; links to other GPUs add up."""
    found = [link for other in inventory.gpus if (link := inventory.links.between(gpu, other.uuid)).nvlinks]
    direct = sum(link.bandwidth for link in found if not link.switched)
    return direct + max((link.bandwidth for link in found if link.switched), default=0)
