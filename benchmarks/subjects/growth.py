"""What a start and the memory cost as the node grows: more GPUs, MIG devices on each, shares of each.

Each node's floor is the one with a single GPU; what the ratio may be at most is what its devices are of those.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measure import Effort, Figure, Floor, Of, Target, Unit, single
from benchmarks.process import NO_SETTINGS, PATIENCE_SECONDS, Stand, stand
from benchmarks.subjects.footprint import PROFILES, partitioned
from node_agent.model.vendor import NVIDIA

ONE = "the node with 1 GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A node, how many devices it lists, and what of its configuration makes it so."""

    name: str
    profile: str
    devices: int
    settings: Mapping[str, Any] = field(default_factory=lambda: NO_SETTINGS)
    flags: Mapping[str, Any] = field(default_factory=lambda: NO_SETTINGS)


def sizes(folder: Path) -> list[Size]:
    """From small to large."""
    one = yaml.safe_load((PROFILES / "h200-8.yaml").read_text())
    del one["nvlink"], one["gpus"][1:]
    file = folder / "one.yaml"
    file.write_text(yaml.safe_dump(one))
    return [
        Size(name="1 GPU", profile=str(file), devices=1),
        Size(name="8 GPUs", profile="h200-8", devices=8),
        Size(name="16 GPUs", profile="a100-40gb-16", devices=16),
        Size(name="8 GPUs × 7 MIG devices", profile=partitioned(folder), devices=56, flags={"migStrategy": "single"}),
        *(
            Size(name=f"8 GPUs × {count} shares", profile="h200-8", devices=8 * count, settings=_shared(count))
            for count in (10, 64)
        ),
    ]


def _shared(count: int) -> Mapping[str, Any]:
    return {"sharing": {"rules": [{"strategy": "time-slicing", "replicas": count}]}}


async def measure(effort: Effort) -> Sequence[Figure]:
    figures: list[Figure] = []
    async with stand() as place:
        first: tuple[float, float] | None = None
        for size in sizes(place.folder):
            used, memory = await _of(place, size)
            first = first or (used, memory)
            limit = Target(limit=size.devices, of=Of.RATIO)
            figures += [
                single(f"{size.name}: start", used, Unit.SECONDS, Floor(name=ONE, median=first[0]), limit),
                single(f"{size.name}: memory", memory, Unit.BYTES, Floor(name=ONE, median=first[1]), limit),
            ]
    return figures


async def _of(place: Stand, size: Size) -> tuple[float, float]:
    """Processor time until all devices are listed, and the memory then."""
    async with place.agent_on(size.profile, size.settings, flags=size.flags) as agent:
        await place.kubelet.until(NVIDIA.resource, allocatable=size.devices, timeout=PATIENCE_SECONDS)
        found = agent.cpu_seconds, agent.memory
    await place.kubelet.until(NVIDIA.resource, allocatable=0, timeout=PATIENCE_SECONDS)
    return found
