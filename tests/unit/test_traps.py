"""The table of traps names tests that there are."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
TABLE = TESTS.parent / "docs" / "dev" / "traps.md"

TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows() -> list[str]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| ---", "| what they do"))]


def test_every_trap_has_a_test() -> None:
    assert len(rows()) > 40
    assert [row for row in rows() if not TEST.search(row)] == []


def test_every_test_that_is_named_exists() -> None:
    named = [TEST.findall(row) for row in rows()]
    missing = [
        f"{file}::{name}"
        for tests in named
        for file, name in tests
        if not re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_nothing_in_the_table_looks_like_a_test_and_is_read_as_none() -> None:
    assert [row for row in rows() if row.count("::") != len(TEST.findall(row))] == []
