"""Who compares with what was kept hears of what has become much slower, and of nothing else."""

from pathlib import Path

from benchmarks import baseline
from benchmarks.measure import Figure, Floor, Unit, single
from benchmarks.subjects import SUBJECTS
from benchmarks.table import document


def call(ratio: float, name: str = "  one GPU") -> Figure:
    return single(name, ratio, Unit.SECONDS, Floor(name="an empty call", median=1.0))


def test_what_takes_more_than_three_times_as_long_as_before_is_told_by_its_name() -> None:
    before = {("Allocate", "  one GPU"): 1.2, ("claims", "  one GPU"): 1.2}
    told = list(baseline.warnings(before, [("Allocate", call(3.61)), ("claims", call(3.59))]))
    assert told == ["Allocate: one GPU: 3.61 × its floor, where it was 1.20 ×"]


def test_what_is_new_or_has_no_floor_is_not_compared() -> None:
    alone = single("threads", 100, Unit.COUNT)
    before = {("footprint", "threads"): 1.0}
    assert not list(baseline.warnings(before, [("footprint", alone), ("Allocate", call(100.0))]))


def test_what_a_run_has_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(document({}, [("Allocate", call(1.5)), ("footprint", single("threads", 9, Unit.COUNT))]))
    assert baseline.kept(file) == {("Allocate", "  one GPU"): 1.5}


def test_the_baseline_in_the_tree_knows_figures_of_what_is_measured() -> None:
    kept = baseline.kept()
    assert kept
    assert {subject for subject, _ in kept} <= set(SUBJECTS)
