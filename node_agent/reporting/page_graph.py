"""The link graph as SVG: NUMA nodes as boxes with their GPUs in, and below them a line for each thing that joins GPUs.

As in the terminal's drawing a line joins the GPUs that have a dot on it. All colours are the page's own, by class.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.reporting.html import Html, joined, tag
from node_agent.topology.wires import Line, Wire, wires

CELL, GAP, TOP, BOX, TRACK = 92, 16, 22, 66, 24
"""Units: the width of a GPU, between two boxes, of a box's title, the height of a box, and of a line."""

_CLASSES = {Line.FABRIC: "fabric", Line.STRONG: "strong", Line.LIGHT: "light", Line.PCIE: "pcie"}


def link_graph(inventory: Inventory, islands: dict[str, int], health: dict[str, str]) -> Html:
    """The drawing; ``islands`` and ``health`` are by the GPUs' names."""
    # By NUMA node, whatever the PCI order is: each is one box.
    gpus = sorted(inventory.gpus, key=lambda gpu: (gpu.numa_node is None, gpu.numa_node or 0, gpu.pci))
    middles = _middles(gpus)
    tracks = _tracks(wires(inventory), middles)
    width = max(middles.values(), default=0) + CELL // 2 + GAP
    height = TOP + BOX + TRACK * len(tracks) + GAP
    label = f"How {len(gpus)} GPUs are joined: the list below says the same in words"
    return tag(
        "svg",
        tag("title", label),
        *_boxes(gpus, middles),
        *(_wire(wire, middles, TOP + BOX + TRACK * (row + 1)) for row, track in enumerate(tracks) for wire in track),
        *(_gpu(gpu, middles[gpu.uuid], islands.get(gpu.name, 0), health.get(gpu.name, "")) for gpu in gpus),
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
    )


def link_words(inventory: Inventory) -> list[str]:
    """The same in words: one line for each kind of line, with the GPUs that each joins."""
    names = {gpu.uuid: gpu.name for gpu in inventory.gpus}
    kinds: dict[str, list[str]] = {}
    for wire in wires(inventory):
        kinds.setdefault(f"{wire.word}: {wire.meaning}", []).append(" ".join(names[gpu] for gpu in wire.gpus))
    return [f"{kind}: {'; '.join(members)}" for kind, members in kinds.items()]


def _middles(gpus: Sequence[Gpu]) -> dict[GpuUuid, int]:
    """Where the middle of each GPU is; between two NUMA nodes there is a gap."""
    found, left = {}, GAP
    for _, members in groupby(gpus, key=lambda gpu: gpu.numa_node):
        for gpu in members:
            found[gpu.uuid] = left + CELL // 2
            left += CELL
        left += GAP
    return found


def _boxes(gpus: Sequence[Gpu], middles: dict[GpuUuid, int]) -> Iterator[Html]:
    for node, group in groupby(gpus, key=lambda gpu: gpu.numa_node):
        members = list(group)
        left = middles[members[0].uuid] - CELL // 2
        yield tag("rect", x=left, y=TOP - 4, width=CELL * len(members), height=BOX + 4, rx=8, class_="numa")
        yield tag("text", f"NUMA {'?' if node is None else node}", x=left + 4, y=TOP - 8, class_="caption")


def _gpu(gpu: Gpu, middle: int, island: int, health: str) -> Html:
    words = f"{gpu.name}, {gpu.product}, {gpu.pci}, {health}{f', NVLink island {island}' if island else ''}"
    return tag(
        "g",
        tag("title", words),
        tag("rect", x=middle - CELL // 2 + 5, y=TOP + 4, width=CELL - 10, height=BOX - 12, rx=6, class_="gpu"),
        tag("text", gpu.name, x=middle, y=TOP + 24, text_anchor="middle"),
        tag("text", gpu.pci.removeprefix("0000:"), x=middle, y=TOP + 40, text_anchor="middle", class_="caption"),
        class_=f"{health} island-{(island - 1) % 6 + 1}" if island else health,
    )


def _tracks(lines: Sequence[Wire], middles: dict[GpuUuid, int]) -> list[list[Wire]]:
    """The wires on as few tracks as first fit gives, one kind to a track, and no two that touch."""
    tracks: list[list[Wire]] = []
    for wire in lines:
        track = next((one for one in tracks if _fits(wire, one, middles)), None)
        if track is None:
            tracks.append([wire])
        else:
            track.append(wire)
    return tracks


def _fits(wire: Wire, track: Sequence[Wire], middles: dict[GpuUuid, int]) -> bool:
    first, last = _span(wire, middles)
    spans = [_span(other, middles) for other in track]
    return track[0].line is wire.line and all(last < begin or end < first for begin, end in spans)


def _span(wire: Wire, middles: dict[GpuUuid, int]) -> tuple[int, int]:
    ends = [middles[gpu] for gpu in wire.gpus]
    return min(ends), max(ends)


def _wire(wire: Wire, middles: dict[GpuUuid, int], y: int) -> Html:
    first, last = _span(wire, middles)
    rails = (tag("line", x1=middles[gpu], x2=middles[gpu], y1=TOP + BOX, y2=y, class_="rail") for gpu in wire.gpus)
    dots = (tag("circle", cx=middles[gpu], cy=y, r=4) for gpu in wire.gpus)
    word = tag("text", wire.word, x=first + CELL // 2, y=y - 4, text_anchor="middle", class_="caption")
    line = tag("line", x1=first, x2=last, y1=y, y2=y)
    return tag("g", tag("title", wire.meaning), joined(*rails), line, joined(*dots), word, class_=_CLASSES[wire.line])
