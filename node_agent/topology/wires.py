"""The lines of the drawing: which GPUs one wire, bridge or switch joins. ``drawing`` puts them on the page.

NVLink counts before PCIe: a PCIe switch is a line only for GPUs that no NVLink joins.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import combinations

from msgspec import Struct

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.links import Link, PciePath
from node_agent.topology.render import LEGEND, link_word


class Line(StrEnum):
    """Kinds of lines, by the character that they are drawn with."""

    FABRIC = "═"
    STRONG = "━"
    LIGHT = "─"
    PCIE = "┄"


class Wire(Struct, frozen=True, kw_only=True):
    """One line through GPUs; ``word`` is written on it and ``meaning`` explains it."""

    gpus: tuple[GpuUuid, ...]
    line: Line
    word: str
    meaning: str


Joint = tuple[Gpu, Gpu, Link]


def wires(inventory: Inventory) -> list[Wire]:
    """All lines: NVSwitch fabrics, then NVLinks between two GPUs, then PCIe switches."""
    joints = [(a, b, inventory.links.between(a.uuid, b.uuid)) for a, b in combinations(inventory.gpus, 2)]
    fabric = [joint for joint in joints if joint[2].nvlinks and joint[2].switched]
    direct = [joint for joint in joints if joint[2].nvlinks and not joint[2].switched]
    # A switch beside NVLinks says little about how two GPUs talk, and would double every line of most nodes.
    without = [joint for joint in joints if not joint[2].nvlinks]
    return [*_fabrics(fabric), *_bridges(inventory, direct), *_pcie_switches(without)]


def _fabrics(joints: list[Joint]) -> Iterator[Wire]:
    for members in _joined((a, b) for a, b, _ in joints):
        links = sorted((link for a, _, link in joints if a.uuid in members), key=lambda link: link.nvlinks)
        worst, best = links[0], links[-1]
        speed = _speed(best) if worst.nvlinks == best.nvlinks else f"{worst.nvlinks} to {_speed(best)}"
        meaning = f"NVSwitch, any of {len(members)} GPUs to any other: {speed}"
        yield Wire(gpus=members, line=Line.FABRIC, word=link_word(best), meaning=meaning)


def _bridges(inventory: Inventory, joints: list[Joint]) -> Iterator[Wire]:
    """The strongest first and heavy; among equals the nearest neighbours first."""
    place = {gpu.uuid: place for place, gpu in enumerate(inventory.gpus)}
    strongest = max((link.nvlinks for *_, link in joints), default=0)
    for a, b, link in sorted(
        joints, key=lambda joint: (-joint[2].nvlinks, place[joint[1].uuid] - place[joint[0].uuid])
    ):
        line = Line.STRONG if link.nvlinks == strongest else Line.LIGHT
        yield Wire(gpus=(a.uuid, b.uuid), line=line, word=link_word(link), meaning=f"NVLink: {_speed(link)}")


def _pcie_switches(joints: list[Joint]) -> Iterator[Wire]:
    """A line for each path below the host bridge, through all GPUs that meet there or nearer."""
    for path in (PciePath.SAME_BOARD, PciePath.ONE_SWITCH, PciePath.SWITCHES):
        # Whoever meets below this point counts: a tree of switches is one line, and each switch in it another.
        near = [(a, b) for a, b, link in joints if link.path is not None and link.path <= path]
        meeting = {gpu.uuid for a, b, link in joints if link.path is path for gpu in (a, b)}
        for members in _joined(near):
            if meeting.intersection(members):
                yield Wire(gpus=members, line=Line.PCIE, word=path.short, meaning=LEGEND[path.short])


def _joined(pairs: Iterable[tuple[Gpu, Gpu]]) -> list[tuple[GpuUuid, ...]]:
    """The sets of GPUs that the pairs join, directly or by way of others; each in the order of the pairs."""
    joined: dict[GpuUuid, dict[GpuUuid, None]] = {}
    for a, b in pairs:
        both = {**joined.get(a.uuid, {a.uuid: None}), **joined.get(b.uuid, {b.uuid: None})}
        joined.update(dict.fromkeys(both, both))
    return list(dict.fromkeys(tuple(members) for members in joined.values()))


def _speed(link: Link) -> str:
    count = f"{link.nvlinks} NVLink{'' if link.nvlinks == 1 else 's'}"
    return f"{count}, {link.bandwidth / 1000:.0f} GB/s each way" if link.bandwidth else count
