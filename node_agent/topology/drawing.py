"""A drawing of the node for the terminal: NUMA nodes as boxes with their GPUs in, and below them what joins the GPUs.

A line joins the GPUs that have a dot on it and passes the others. ``wires`` says which lines there are; ``render`` has
the same links as a table.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from msgspec import Struct

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.topology.render import LEGEND, link_word
from node_agent.topology.wires import Line, Wire, wires

WIDTH = 100
"""Columns that a drawing may take, the margin included in which a fabric goes on to the next row."""

_MARGIN, _GAP = 2, 2
_CROSSING = {Line.FABRIC: "╪", Line.STRONG: "┿", Line.LIGHT: "┼", Line.PCIE: "┼"}


def draw(inventory: Inventory) -> str:
    """The drawing and what its lines mean."""
    parts = [_title(inventory)]
    if inventory.gpus:
        rows, lines = _rows(inventory), wires(inventory)
        parts += [_Picture(rows, lines).text(), "", *_legend(inventory, rows, lines)]
    parts += [f"missing: GPU {gone.index}, {gone.reason}" for gone in inventory.missing]
    return "\n".join(parts).rstrip()


def _title(inventory: Inventory) -> str:
    if inventory.problem is not None:
        return f"No GPUs: {inventory.problem}"
    counts = Counter(gpu.product for gpu in inventory.gpus)
    return ", ".join(f"{count} × {product}" for product, count in counts.items()) or "No GPUs."


def _legend(inventory: Inventory, rows: Sequence["_Row"], lines: Sequence[Wire]) -> Iterator[str]:
    """What the lines mean, what GPUs without a line between them have, and which lines did not fit."""
    joined = {frozenset(pair) for wire in lines for pair in combinations(wire.gpus, 2)}
    others = [(a, b) for a, b in combinations(inventory.gpus, 2) if frozenset((a.uuid, b.uuid)) not in joined]
    rest = {link_word(inventory.links.between(a.uuid, b.uuid)) for a, b in others}
    meanings = {f"{wire.line} {wire.word}": wire.meaning for wire in lines}
    meanings |= {f"  {word}": f"{meaning}: no line" for word, meaning in LEGEND.items() if word in rest}
    widest = max(map(len, meanings), default=0)
    yield from (f"{sign.ljust(widest)}  {meaning}" for sign, meaning in meanings.items())
    for wire in lines:
        if not any(row.shows(wire) for row in rows):
            names = [inventory.by_uuid[gpu].name for gpu in wire.gpus]
            yield f"not drawn: {wire.word} {' '.join(names[:4])}{f' and {len(names) - 4} more' if names[4:] else ''}"


class _Box(Struct, frozen=True, kw_only=True):
    """A NUMA node, or a part of one that is too wide; ``left`` is the column where its frame begins."""

    title: str
    gpus: tuple[Gpu, ...]
    left: int
    cell: int

    @property
    def inside(self) -> int:
        return self.cell * len(self.gpus)

    @property
    def right(self) -> int:
        return self.left + self.inside + 1

    @property
    def columns(self) -> dict[GpuUuid, int]:
        """Where the middle of each GPU is."""
        start = self.left + 1 + self.cell // 2
        return {gpu.uuid: start + number * self.cell for number, gpu in enumerate(self.gpus)}


class _Row(Struct, frozen=True, kw_only=True):
    """Boxes side by side, and the columns of their GPUs."""

    boxes: tuple[_Box, ...]
    columns: dict[GpuUuid, int]

    def ends(self, wire: Wire) -> list[int]:
        """The columns that a wire joins in this row."""
        return sorted(self.columns[gpu] for gpu in wire.gpus if gpu in self.columns)

    def shows(self, wire: Wire) -> bool:
        """A fabric shows in every row that it reaches, another wire only where all of its GPUs are."""
        return len(self.ends(wire)) >= (1 if wire.line is Line.FABRIC else len(wire.gpus))


def _rows(inventory: Inventory) -> list[_Row]:
    """The NUMA nodes in the order of their first GPUs, as many in a row as fit."""
    cell = _cell(inventory.gpus)
    rows: list[list[_Box]] = []
    left = WIDTH
    for title, gpus in _nodes(inventory, most=(WIDTH - _MARGIN - 2) // cell):
        if left + cell * len(gpus) + 2 > WIDTH - _MARGIN:
            rows.append([])
            left = 0
        rows[-1].append(_Box(title=title, gpus=gpus, left=left, cell=cell))
        left = rows[-1][-1].right + 1 + _GAP
    return [
        _Row(boxes=tuple(boxes), columns={gpu: x for box in boxes for gpu, x in box.columns.items()}) for boxes in rows
    ]


def _nodes(inventory: Inventory, *, most: int) -> Iterator[tuple[str, tuple[Gpu, ...]]]:
    """Titles and GPUs of the boxes; a NUMA node of more than ``most`` GPUs takes several boxes of up to eight."""
    nodes: dict[int | None, list[Gpu]] = {}
    for gpu in inventory.gpus:
        nodes.setdefault(gpu.numa_node, []).append(gpu)
    for node, gpus in nodes.items():
        # Eight and eight is easier to read than as many as fit and the rest.
        step = len(gpus) if len(gpus) <= most else min(most, 8)
        for start in range(0, len(gpus), step):
            yield "NUMA ?" if node is None else f"NUMA {node}", tuple(gpus[start : start + step])


def _labels(gpu: Gpu) -> list[str]:
    address = gpu.pci.removeprefix("0000:").removesuffix(".0")
    return [gpu.name, address, *(["MIG"] if gpu.partitioned else [])]


def _cell(gpus: Iterable[Gpu]) -> int:
    """The width of a GPU: odd, so that it has a middle, and wide enough for a word on a line between two."""
    return max(9, *(len(label) + 2 for gpu in gpus for label in _labels(gpu))) | 1


class _Canvas:
    """Characters at places: ``x`` grows to the right, ``y`` downwards."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = []

    @property
    def height(self) -> int:
        return len(self._lines)

    def put(self, x: int, y: int, text: str) -> None:
        while len(self._lines) <= y:
            self._lines.append([])
        line = self._lines[y]
        line.extend(" " * (x + len(text) - len(line)))
        line[x : x + len(text)] = text

    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self._lines)


class _Picture:
    """Row below row, each with the wires that show in it."""

    def __init__(self, rows: Sequence[_Row], lines: Sequence[Wire]) -> None:
        self._canvas = _Canvas()
        self._fabrics: dict[Wire, list[tuple[int, int]]] = {}
        for row in rows:
            shown = [wire for wire in lines if row.shows(wire)]
            self._draw_boxes(row, {gpu for wire in shown for gpu in wire.gpus})
            self._draw_tracks(row, _tracks(row, shown))
        margin = max(row.boxes[-1].right for row in rows) + _MARGIN
        for number, places in enumerate(places for places in self._fabrics.values() if len(places) > 1):
            self._draw_spine(places, margin + number)

    def text(self) -> str:
        return self._canvas.text()

    def _draw_boxes(self, row: _Row, joined: set[GpuUuid]) -> None:
        put, top = self._canvas.put, self._canvas.height
        bottom = top + 1 + max(len(_labels(gpu)) for box in row.boxes for gpu in box.gpus)
        for box in row.boxes:
            put(box.left, top, f"┌{f' {box.title} '.ljust(box.inside, '─')}┐")
            for y in range(top + 1, bottom):
                put(box.left, y, f"│{' ' * box.inside}│")
            put(box.left, bottom, f"└{'─' * box.inside}┘")
            for gpu, x in zip(box.gpus, box.columns.values(), strict=True):
                for y, label in enumerate(_labels(gpu), start=top + 1):
                    put(x - len(label) // 2, y, label)
                if gpu.uuid in joined:
                    put(x, bottom, "┬")

    def _draw_tracks(self, row: _Row, tracks: list[list[Wire]]) -> None:
        """Rails come down from the GPUs to the last track that joins them; the wires cross those of other GPUs."""
        for number, track in enumerate(tracks):
            y = self._canvas.height
            # A rail ends with the last wire on it, which keeps the lower tracks free of lines that lead nowhere.
            rails = {x for later in tracks[number:] for wire in later for x in row.ends(wire)}
            for x in rails:
                self._canvas.put(x, y, "│")
            for wire in track:
                self._draw_wire(row, wire, y, rails)

    def _draw_wire(self, row: _Row, wire: Wire, y: int, rails: set[int]) -> None:
        put, ends = self._canvas.put, row.ends(wire)
        put(ends[0], y, wire.line * (ends[-1] - ends[0] + 1))
        for x in rails:
            if ends[0] < x < ends[-1]:
                put(x, y, _CROSSING[wire.line])
        for x in ends:
            put(x, y, "●")
        if len(ends) > 1:
            # In the first gap between two GPUs, where no rail runs.
            gap = min(x for x in row.columns.values() if x > ends[0]) - ends[0]
            put(ends[0] + (gap - len(wire.word)) // 2, y, f" {wire.word} ")
        if wire.line is Line.FABRIC:
            self._fabrics.setdefault(wire, []).append((ends[-1], y))

    def _draw_spine(self, places: list[tuple[int, int]], x: int) -> None:
        """Join the lines of one fabric in several rows, to the right of all boxes."""
        first, last = places[0][1], places[-1][1]
        # The corners come last, over the line.
        for y in range(first, last):
            self._canvas.put(x, y, "║")
        for end, y in places:
            self._canvas.put(end + 1, y, Line.FABRIC * (x - end - 1) + {first: "╗", last: "╝"}.get(y, "╣"))


def _tracks(row: _Row, lines: Iterable[Wire]) -> list[list[Wire]]:
    """The wires on as few tracks as first fit gives: one kind to a track, and no two that touch."""
    tracks: list[list[Wire]] = []
    for wire in lines:
        track = next((track for track in tracks if _fits(row, wire, track)), None)
        if track is None:
            tracks.append([wire])
        else:
            track.append(wire)
    return tracks


def _fits(row: _Row, wire: Wire, track: list[Wire]) -> bool:
    mine = row.ends(wire)
    spans = [row.ends(other) for other in track]
    return track[0].line is wire.line and all(mine[-1] < span[0] or span[-1] < mine[0] for span in spans)
