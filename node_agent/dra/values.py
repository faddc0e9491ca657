"""Values that the API takes as attributes and capacities of a device. Pure.

The API refuses a whole slice for one bad value, so each is made valid here or is left out: None. ``attributes`` says
which there are.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

Value: TypeAlias = Mapping[str, str | int | bool]
"""An attribute as the API has it: the one key names the type."""

Capacity: TypeAlias = Mapping[str, Any]
"""A capacity as the API has it: ``value``, and where it can be shared a ``requestPolicy``."""

LONGEST_TEXT = 64
MOST_NAMES = 32
_INT64 = 1 << 63

_NAME = re.compile(r"(?:(?=.{1,63}/)[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_SEMVER = re.compile(
    r"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)"
    r"(?:-(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)
# With at most 20 digits each the three of them fit into the 64 bytes.
_NUMBERS = re.compile(r"\d{1,20}(?:\.\d{1,20}){0,2}", re.ASCII)

_DECIMAL = (1000, ("", "k", "M", "G", "T", "P", "E"))
_BINARY = (1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))


def text(value: str | None) -> Value | None:
    """At most 64 bytes of a text, cut between two characters; no attribute where nothing is left."""
    kept = (value or "").encode(errors="ignore")[:LONGEST_TEXT].decode(errors="ignore").strip()
    return {"string": kept} if kept else None


def version(value: str | None) -> Value | None:
    """A version in the strict form that the API wants: ``580.65.06`` is 580.65.6 there, and ``12.8`` is 12.8.0."""
    given = (value or "").strip()
    # Leading zeros and missing parts are mended; a fourth number has no place to go.
    if not _SEMVER.fullmatch(given):
        if not _NUMBERS.fullmatch(given):
            return None
        numbers = [str(int(number)) for number in given.split(".")]
        given = ".".join([*numbers, "0", "0"][:3])
    return {"version": given} if len(given) <= LONGEST_TEXT else None


def number(value: int | None) -> Value | None:
    return {"int": value} if value is not None and -_INT64 <= value < _INT64 else None


def flag(value: bool | None) -> Value | None:
    return {"bool": value} if value is not None else None


def known(values: Mapping[str, Value | None], most: int = MOST_NAMES) -> dict[str, Value]:
    """The first ``most`` attributes with a value, and a name that the API takes: a C identifier, maybe in a domain."""
    good = {name: value for name, value in values.items() if value is not None and _NAME.fullmatch(name)}
    return dict(list(good.items())[:most])


def count(value: int) -> str:
    """A number as a quantity, spelled as the API server spells it: what is sent and what is stored are compared."""
    return _quantity(value, *_DECIMAL)


def size(value: int) -> str:
    """Bytes as a quantity, in the same way: ``143771Mi``."""
    return _quantity(value, *_BINARY) if value % 1024 == 0 else count(value)


def _quantity(value: int, base: int, suffixes: tuple[str, ...]) -> str:
    power = 0
    while value and value % base == 0 and power + 1 < len(suffixes):
        value, power = value // base, power + 1
    return f"{value}{suffixes[power]}"
