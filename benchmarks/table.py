"""The figures for people, as a table, and for programs, as JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from benchmarks.measure import Figure, Floor, Of, Target, Unit

HEADINGS = ("", "median", "p99", "longest", "n", "ratio", "to", "target")
# The columns of words; the others are of numbers.
LEFT = (0, 6, 7)

NOTE = """\
ratio: subject ÷ floor, measured in turns; the median over the rounds, so that noise that hits both cancels out
p99: given from a hundred samples on; the garbage collector is on, as in the agent; one round of warm-up is left out"""

Named = tuple[str, Figure]
"""A figure and the subject that it belongs to."""


def render(machine: Mapping[str, str], figures: Sequence[Named]) -> str:
    """The whole page: the machine, the table, how to read it."""
    rows: list[Sequence[str]] = [HEADINGS]
    for subject, group in groupby(figures, key=lambda named: named[0]):
        rows += [(subject,), *(_row(figure) for _, figure in group)]
    where = "\n".join(f"{name:<13} {fact}" for name, fact in machine.items())
    return "\n\n".join([where, "\n".join(aligned(rows)), summary(figures), NOTE])


def document(machine: Mapping[str, str], figures: Iterable[Named]) -> str:
    """The same as JSON: seconds, bytes and plain numbers."""
    rows = [{"subject": subject, **_fields(figure)} for subject, figure in figures]
    return json.dumps({"machine": dict(machine), "figures": rows}, indent=2) + "\n"


def quantity(value: float, unit: Unit) -> str:
    """A value with three digits that matter, in the unit that suits its size."""
    if unit is Unit.COUNT:
        return f"{value:.0f}"
    if unit is Unit.BYTES:
        return f"{value / 2**20:.1f} MiB" if abs(value) >= 2**20 else f"{value / 2**10:.1f} KiB"
    for size, name in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{_three_digits(value / size)} {name}"
    return f"{_three_digits(value * 1e6)} µs"


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines with columns of one width; a row of one cell is a heading, and may be wider than its column."""
    rows = list(rows)
    whole = [row for row in rows if len(row) > 1]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    return [_line(row, widths) if len(row) > 1 else f"\n{row[0]}" for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        cell.ljust(width) if column in LEFT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _row(figure: Figure) -> Sequence[str]:
    return (
        f"  {figure.name}",
        quantity(figure.median, figure.unit),
        "" if figure.p99 is None else quantity(figure.p99, figure.unit),
        "" if len(figure.samples) == 1 else quantity(max(figure.samples), figure.unit),
        str(len(figure.samples)),
        "" if figure.ratio is None else f"{_three_digits(figure.ratio)} ×",
        _floor(figure, figure.floor) if figure.floor else "",
        _verdict(figure, figure.target) if figure.target else "",
    )


def _floor(figure: Figure, floor: Floor) -> str:
    """Its median, and its p99 beside a figure whose p99 counts."""
    least = f"{floor.name}, {quantity(floor.median, figure.unit)}"
    if figure.target is None or figure.target.of is not Of.P99 or floor.p99 is None:
        return least
    return f"{least}, p99 {quantity(floor.p99, figure.unit)}"


def _verdict(figure: Figure, target: Target) -> str:
    limit = quantity(target.limit, figure.unit) if target.of is Of.MEDIAN else f"{target.limit:g} ×"
    p99 = "p99 " if target.of is Of.P99 else ""
    return f"{p99}≤ {limit} {'✓' if figure.met else '✗'}"


def summary(figures: Iterable[Named]) -> str:
    """How many targets are reached, and which are missed."""
    judged = [(f"{subject}: {figure.name.strip()}", figure.met) for subject, figure in figures if figure.target]
    missed = [name for name, met in judged if not met]
    return "\n".join(
        [f"reached: {len(judged) - len(missed)} of {len(judged)} targets", *(f"missed: {n}" for n in missed)]
    )


def _fields(figure: Figure) -> dict[str, object]:
    return {
        "name": figure.name,
        "unit": figure.unit.value,
        "samples": len(figure.samples),
        "median": figure.median,
        "p99": figure.p99,
        "longest": max(figure.samples),
        "ratio": figure.ratio,
        "floor": asdict(figure.floor) if figure.floor else None,
        "target": {"limit": figure.target.limit, "of": figure.target.of.value} if figure.target else None,
        "met": figure.met,
    }


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
