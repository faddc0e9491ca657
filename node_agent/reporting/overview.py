"""The overview: every GPU with its use, who holds what, and how the GPUs are joined, in one piece of JSON. Pure.

``page`` shows it in a browser, ``node-agent top`` in a terminal. Nothing in it is looked at for its sake: it is the
last look of the health watch, the ledger, and the kubelet's last word on its pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition
from node_agent.reporting.health import HEALTH_WORDS, CauseStatus, MissingStatus, cause_status, missing_gpus
from node_agent.topology.render import link_word

if TYPE_CHECKING:  # programs that only read the document need none of the agent's parts
    from node_agent.allocation.grants import Hold
    from node_agent.health.looks import Look
    from node_agent.reporting.holders import Holding


class PartitionUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A MIG device: its profile, where it lies in memory slices, and its memory in bytes."""

    uuid: str
    profile: str
    start: int
    length: int
    memory: int | None = None
    memory_used: int | None = None


class GpuUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU as it was looked at ``at`` that wall-clock time in seconds; what it does not tell is not there.

    Memory in bytes, ``utilization`` from 0 to 1, degrees Celsius, watts. ``island`` numbers the GPUs that NVLink joins
    from 1 on; it is 0 for one that no NVLink joins to another.
    """

    name: str
    uuid: str
    product: str
    pci: str
    health: str
    numa_node: int | None = None
    island: int = 0
    causes: tuple[CauseStatus, ...] = ()
    partition_mode: str | None = None
    at: float | None = None
    memory: int | None = None
    memory_used: int | None = None
    utilization: float | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: int | None = None
    partitions: tuple[PartitionUse, ...] = ()


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """A container of a pod."""

    namespace: str
    pod: str
    container: str


class HoldingStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is held: the ``door`` that gave it, the claim or resource, the device's name there, its ``gpus`` by name.

    ``part`` says which part of the GPU it is, where it is not all of it; ``share`` tells shares of one device apart.
    ``pods`` are the containers that have it, as far as the kubelet has told yet.
    """

    door: str
    holder: str
    device: str
    gpus: tuple[str, ...]
    part: str = ""
    share: str = ""
    pods: tuple[PodUse, ...] = ()


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What joins two GPUs, in one word as in ``node-agent topology``; ``bandwidth`` in MB/s each way, over NVLink."""

    gpus: tuple[str, str]
    word: str
    nvlinks: int = 0
    bandwidth: int = 0


class Overview(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole document; ``missing`` are GPUs that the driver counts and that cannot be read.

    ``problem`` says why there are none, where the driver cannot be asked.
    """

    node: str
    gpus: tuple[GpuUse, ...] = ()
    missing: tuple[MissingStatus, ...] = ()
    problem: str | None = None
    holdings: tuple[HoldingStatus, ...] = ()
    links: tuple[LinkStatus, ...] = ()


def overview(
    *,
    node: str,
    inventory: Inventory,
    health: HealthReport,
    looks: "Mapping[GpuUuid, Look]",
    holdings: "Sequence[Holding]",
) -> Overview:
    """Put the document together."""
    islands = _islands(inventory)
    return Overview(
        node=node,
        gpus=tuple(_gpu(gpu, inventory, health, looks.get(gpu.uuid), islands) for gpu in inventory.gpus),
        missing=missing_gpus(inventory),
        problem=inventory.problem,
        holdings=tuple(_holding(one, inventory) for one in holdings),
        links=tuple(_links(inventory)),
    )


def _islands(inventory: Inventory) -> dict[GpuUuid, int]:
    found: dict[GpuUuid, int] = {}
    for gpu in inventory.gpus:
        members = inventory.links.island(gpu.uuid)
        if len(members) > 1 and gpu.uuid not in found:
            number = len(set(found.values())) + 1
            found |= dict.fromkeys(members, number)
    return found


def _gpu(
    gpu: Gpu, inventory: Inventory, health: HealthReport, look: "Look | None", islands: Mapping[GpuUuid, int]
) -> GpuUse:
    readings = look.readings if look is not None else None
    state = health.of(gpu.uuid)
    return GpuUse(
        name=gpu.name,
        uuid=gpu.uuid,
        product=gpu.product,
        pci=gpu.pci,
        health=HEALTH_WORDS[state.severity],
        numa_node=gpu.numa_node,
        island=islands.get(gpu.uuid, 0),
        causes=tuple(map(cause_status, state.causes)),
        partition_mode=gpu.partition_mode,
        at=look.at if look is not None else None,
        memory=gpu.memory,
        memory_used=readings.memory_used if readings else None,
        utilization=readings.utilization if readings else None,
        temperature=readings.temperature if readings else None,
        power=readings.power if readings else None,
        power_limit=gpu.power_limit,
        partitions=tuple(_partitions(inventory, gpu.uuid, look)),
    )


def _partitions(inventory: Inventory, gpu: GpuUuid, look: "Look | None") -> Iterable[PartitionUse]:
    figures = look.readings.figures if look is not None else None
    for one in inventory.partitions.values():
        if one.parent == gpu:
            memory = figures.partitions.get(one.uuid) if figures is not None else None
            yield _partition(one, memory.used if memory is not None else None)


def _partition(one: Partition, used: int | None) -> PartitionUse:
    where = one.placement
    return PartitionUse(
        uuid=one.uuid,
        profile=one.profile,
        start=where.start,
        length=where.length,
        memory=one.memory,
        memory_used=used,
    )


def _holding(one: "Holding", inventory: Inventory) -> HoldingStatus:
    known = inventory.by_uuid
    return HoldingStatus(
        door=one.holder.door,
        holder=one.holder.name,
        device=one.hold.device,
        gpus=tuple(known[gpu].name if gpu in known else gpu for gpu in one.hold.gpus),
        part=_part(one.hold),
        share=one.hold.share_id or "",
        pods=tuple(PodUse(namespace=pod.namespace, pod=pod.pod, container=pod.container) for pod in one.pods),
    )


def _part(hold: "Hold") -> str:
    return f"{hold.part.profile} at {hold.part.placement.start}" if hold.part is not None else ""


def _links(inventory: Inventory) -> Iterable[LinkStatus]:
    for a, b in combinations(inventory.gpus, 2):
        link = inventory.links.between(a.uuid, b.uuid)
        yield LinkStatus(gpus=(a.name, b.name), word=link_word(link), nvlinks=link.nvlinks, bandwidth=link.bandwidth)
