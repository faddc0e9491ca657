"""The ways in which a node's devices could be published, to be compared by what they cost the scheduler."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from msgspec.structs import replace

from node_agent.dra.slices import Pool, PoolSettings, SliceSpec, laid_out, pool_of
from node_agent.dra.writes import Attempt, plan, wanted_objects
from node_agent.kube.resources import RESOURCE_SLICES, Object
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.links import LinkGraph, pair
from node_agent.model.vendor import NVIDIA

Cut = Callable[[tuple[SliceSpec, ...]], tuple[SliceSpec, ...]]
# What people select on, by NVIDIA's own examples.
SELECTED = frozenset(
    {"type", "uuid", "profile", "productName", "architecture", "nvlinkDomain", "resource.kubernetes.io/pcieRoot"}
)


def as_it_is(slices: tuple[SliceSpec, ...]) -> tuple[SliceSpec, ...]:
    return slices


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What is published of a node, by the agent's settings and, where ``cut`` is another one, in other slices."""

    name: str
    settings: PoolSettings = field(default_factory=PoolSettings)
    cut: Cut = as_it_is

    def objects(self, inventory: Inventory, node: str, uid: str) -> list[Object]:
        """The slices of a node, as they are created."""
        pool: Pool = pool_of(laid_out(inventory, self.settings), lambda device: ())
        wanted = wanted_objects(self.cut(pool.slices), node, uid, NVIDIA.driver)
        head = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind}
        return [{**head, **item} for item in plan(wanted, {}, Attempt(), {}, {}).changed]


def one_device_each(slices: tuple[SliceSpec, ...]) -> tuple[SliceSpec, ...]:
    return tuple(_split(slices, 1))


def few_attributes(slices: tuple[SliceSpec, ...]) -> tuple[SliceSpec, ...]:
    return tuple(replace(one, content=_lean(one.content)) for one in slices)


def _split(slices: tuple[SliceSpec, ...], size: int) -> Iterator[SliceSpec]:
    for one in slices:
        devices = one.content.get("devices")
        if devices is None:
            yield one
            continue
        for start in range(0, len(devices), size):
            yield SliceSpec(name=f"{one.name}-{start:03}", content={"devices": devices[start : start + size]})


def _lean(content: Mapping[str, Any]) -> Mapping[str, Any]:
    if "devices" not in content:
        return content
    devices = [
        {**each, "attributes": {key: value for key, value in each["attributes"].items() if key in SELECTED}}
        for each in content["devices"]
    ]
    return {**content, "devices": devices}


def of_its_own(inventory: Inventory, node: str) -> Inventory:
    """The same hardware with UUIDs that no other node has."""
    digest = f"{crc32(node.encode()):08x}"
    own = {gpu.uuid: GpuUuid(f"GPU-{digest}{gpu.uuid[12:]}") for gpu in inventory.gpus}
    links = {pair(*(own[end] for end in ends)): link for ends, link in inventory.links.links.items()}
    return replace(
        inventory,
        gpus=tuple(replace(gpu, uuid=own[gpu.uuid]) for gpu in inventory.gpus),
        profiles={own[gpu]: profiles for gpu, profiles in inventory.profiles.items()},
        links=LinkGraph(links=links),
    )


WHOLE = Layout(name="whole GPUs")
SPLIT = Layout(name="whole GPUs, a slice each", cut=one_device_each)
LEAN = Layout(name="whole GPUs, few attributes", cut=few_attributes)
GROUPS = Layout(name="GPUs and groups", settings=PoolSettings(groups=True))
SHARED = Layout(name="shared GPUs", settings=PoolSettings(shares=lambda gpu: True))
MIG = Layout(name="cut on demand", settings=PoolSettings(on_demand=lambda gpu: True))
MIG_LEAN = Layout(
    name="cut on demand, few attributes", settings=PoolSettings(on_demand=lambda gpu: True), cut=few_attributes
)
