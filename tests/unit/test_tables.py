"""The tables of the documents name tests that there are; the one of faults has each fault that a test speaks of."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"
TABLES = {"dev/traps.md": 40, "dev/faults.md": 70, "user/when-things-fail.md": 20}
"""The documents whose every row names its tests, with the least number of rows."""

TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
FAULT = re.compile(r"\bB\d\d\b")


def rows(table: str) -> list[str]:
    """The rows of all tables of a document, without their heads."""
    lines = (DOCS / table).read_text().splitlines()
    heads = {before for before, line in pairwise(lines) if line.startswith("| ---")}
    return [line for line in lines if line.startswith("| ") and not line.startswith("| ---") and line not in heads]


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_a_test(table: str) -> None:
    assert len(rows(table)) > TABLES[table]
    assert [row for row in rows(table) if not TEST.search(row)] == []


@pytest.mark.parametrize("table", TABLES)
def test_every_test_that_is_named_exists(table: str) -> None:
    missing = [
        f"{file}::{name}"
        for row in rows(table)
        for file, name in TEST.findall(row)
        if not re.search(rf"^ *(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


@pytest.mark.parametrize("table", TABLES)
def test_nothing_in_the_table_looks_like_a_test_and_is_read_as_none(table: str) -> None:
    assert [row for row in rows(table) if row.count("::") != len(TEST.findall(row))] == []


def test_the_faults_that_tests_speak_of_have_one_row_each_and_there_is_no_other() -> None:
    spoken = {fault for file in (TESTS / "faults").glob("test_*.py") for fault in FAULT.findall(file.read_text())}
    numbers = [row.split()[1] for row in rows("dev/faults.md")]
    assert sorted(number for number in numbers if FAULT.fullmatch(number)) == sorted(spoken)
