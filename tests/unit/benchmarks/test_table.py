"""The table is for people: units that suit, columns that line up; the JSON has the same in plain numbers."""

import json
from dataclasses import replace

import pytest

from benchmarks.measure import Figure, Floor, Of, Target, Unit, single
from benchmarks.table import aligned, document, quantity, render

CALL = Figure(
    name="one GPU",
    samples=(0.0004, 0.0005, 0.0006),
    floor=Floor(name="an empty call", median=0.0004),
    ratio=1.25,
    target=Target(limit=1.3, of=Of.RATIO),
)
MEMORY = single("memory", 80 * 2**20, Unit.BYTES, target=Target(limit=72 * 2**20))
MACHINE = {"processor": "a processor", "load average": "0.10"}


def test_where_a_p99_counts_that_of_the_floor_stands_beside_it() -> None:
    floor = Floor(name="an empty call", median=0.0004, p99=0.0015)
    choice = replace(CALL, floor=floor, samples=CALL.samples * 40, target=Target(limit=2, of=Of.P99))
    (line,) = [line for line in render(MACHINE, [("choice", choice)]).splitlines() if "one GPU" in line]
    assert (
        " ".join(line.split())
        == "one GPU 500 µs 600 µs 600 µs 120 1.25 × an empty call, 400 µs, p99 1.50 ms p99 ≤ 2 × ✓"
    )


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0000123, Unit.SECONDS, "12.3 µs"),
        (0.000999, Unit.SECONDS, "999 µs"),
        (0.00123, Unit.SECONDS, "1.23 ms"),
        (0.0999, Unit.SECONDS, "99.9 ms"),
        (0.5, Unit.SECONDS, "500 ms"),
        (12.34, Unit.SECONDS, "12.3 s"),
        (0.0, Unit.SECONDS, "0.00 µs"),
        (512, Unit.BYTES, "0.5 KiB"),
        (-2048, Unit.BYTES, "-2.0 KiB"),
        (60.25 * 2**20, Unit.BYTES, "60.2 MiB"),
        (13, Unit.COUNT, "13"),
    ],
)
def test_a_quantity_has_a_unit_that_suits_its_size(value: float, unit: Unit, text: str) -> None:
    assert quantity(value, unit) == text


def test_numbers_are_aligned_to_the_right_and_headings_may_be_wider_than_their_column() -> None:
    assert aligned([("a", "1"), ("a heading that is wide",), ("longer", "22")]) == [
        "a        1",
        "\na heading that is wide",
        "longer  22",
    ]


def test_the_page_has_the_machine_the_figures_by_subject_and_whether_targets_are_met() -> None:
    lines = render(MACHINE, [("Allocate", CALL), ("footprint", MEMORY)]).splitlines()
    assert lines[0] == "processor     a processor"
    (call,) = [" ".join(line.split()) for line in lines if "one GPU" in line]
    assert call == "one GPU 500 µs 600 µs 3 1.25 × an empty call, 400 µs ≤ 1.3 × ✓"
    (memory,) = [" ".join(line.split()) for line in lines if line.startswith("  memory")]
    assert memory == "memory 80.0 MiB 1 ≤ 72.0 MiB ✗"
    assert [line for line in lines if line in ("Allocate", "footprint")] == ["Allocate", "footprint"]
    at = lines.index("reached: 1 of 2 targets")
    assert lines[at + 1] == "missed: footprint: memory"


def test_a_subject_is_named_once_however_many_figures_it_has() -> None:
    assert render(MACHINE, [("Allocate", CALL), ("Allocate", MEMORY)]).splitlines().count("Allocate") == 1


def test_the_document_holds_what_the_table_shows_in_plain_numbers() -> None:
    written = json.loads(document(MACHINE, [("Allocate", CALL), ("footprint", MEMORY)]))
    assert written["machine"] == MACHINE
    call, memory = written["figures"]
    assert call == {
        "subject": "Allocate",
        "name": "one GPU",
        "unit": "s",
        "samples": 3,
        "median": 0.0005,
        "p99": None,
        "longest": 0.0006,
        "ratio": 1.25,
        "floor": {"name": "an empty call", "median": 0.0004, "p99": None},
        "target": {"limit": 1.3, "of": "ratio"},
        "met": True,
    }
    assert (memory["unit"], memory["floor"], memory["met"]) == ("B", None, False)
