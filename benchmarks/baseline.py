"""Ratios that are kept in the tree, ``baseline.json``, to see by them that the agent has become slower.

Ratios hold on other machines and beside other work, but not exactly: what is told of is far off. It is the JSON of a
run, ``make bench ARGS='--json benchmarks/baseline.json'``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.table import Named

FILE = Path(__file__).with_name("baseline.json")

# A machine that is at work makes some ratios twice as large.
TOLERANCE = 3.0

Ratios = Mapping[tuple[str, str], float]
"""By subject and figure."""


def kept(file: Path = FILE) -> Ratios:
    """The ratios of the file. Raises OSError, ValueError and KeyError where it is not what was written."""
    figures = json.loads(file.read_text())["figures"]
    return {(one["subject"], one["name"]): one["ratio"] for one in figures if one["ratio"] is not None}


def warnings(before: Ratios, figures: Iterable[Named]) -> Iterator[str]:
    """A line for each figure whose ratio has grown to more than ``TOLERANCE`` times what it was."""
    for subject, figure in figures:
        was = before.get((subject, figure.name))
        if was is not None and figure.ratio is not None and figure.ratio > TOLERANCE * was:
            yield f"{subject}: {figure.name.strip()}: {figure.ratio:.2f} × its floor, where it was {was:.2f} ×"
