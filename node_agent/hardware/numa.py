"""The machine's NUMA nodes: CPUs, memory and distances, as the kernel's /sys tells."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

_MEMORY = re.compile(r"MemTotal:\s+(\d+) kB")
_PAGES = re.compile(r"hugepages-(\d+)kB")


class NumaNode(Struct, frozen=True, kw_only=True):
    """``memory`` is in bytes, all of it; ``huge_pages`` has bytes by the size of a page in KiB.

    ``distances`` are to all nodes, itself included, by their numbers: 10 is no distance, larger is farther.
    """

    cpus: frozenset[int] = frozenset()
    memory: int = 0
    huge_pages: Mapping[int, int] = field(default_factory=dict)
    distances: Mapping[int, int] = field(default_factory=dict)


def numa_nodes(sysfs: Path) -> dict[int, NumaNode]:
    """The nodes by number; empty where the kernel does not tell. ``sysfs`` is where /sys is mounted."""
    folders = {int(path.name.removeprefix("node")): path for path in sysfs.glob("devices/system/node/node[0-9]*")}
    numbers = sorted(folders)
    return {number: _node(folders[number], numbers) for number in numbers}


def _node(folder: Path, numbers: list[int]) -> NumaNode:
    memory = _MEMORY.search(_read(folder / "meminfo"))
    distances = [int(word) for word in _read(folder / "distance").split()]
    return NumaNode(
        cpus=frozenset(_numbers(_read(folder / "cpulist"))),
        memory=int(memory[1]) << 10 if memory else 0,
        huge_pages={size: size * count << 10 for size, count in _huge_pages(folder / "hugepages")},
        distances=dict(zip(numbers, distances, strict=False)),
    )


def _huge_pages(folder: Path) -> Iterator[tuple[int, int]]:
    for path in sorted(folder.glob("hugepages-*kB")):
        if (found := _PAGES.fullmatch(path.name)) and (count := int(_read(path / "nr_hugepages") or 0)):
            yield int(found[1]), count


def _numbers(listed: str) -> Iterator[int]:
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""
