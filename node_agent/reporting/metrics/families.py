"""Families of series as text, in the form of Prometheus and in that of OpenMetrics.

The families of DCGM-exporter have names that no client library would write: counters without ``_total``. Here they are
written as they have to read.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

Number = int | float


class Series(Struct, frozen=True, kw_only=True):
    """``labels`` as they stand between the braces."""

    labels: str
    value: Number


class Family(Struct, frozen=True, kw_only=True):
    """One name with all its series."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    series: tuple[Series, ...]


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as they stand between the braces, without those that are empty: to Prometheus that is the same."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items() if value)


def text(families: Iterable[Family], *, openmetrics: bool = False) -> str:
    """The families that have series.

    OpenMetrics has no counter that is not called ``_total``; a counter of another name is of an unknown type there, and
    keeps its name.
    """
    return "".join(_lines(family, openmetrics) for family in families if family.series)


def _lines(family: Family, openmetrics: bool) -> str:
    kind = "unknown" if openmetrics and family.kind == "counter" else family.kind
    head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {kind}\n"
    return head + "".join(f"{family.name}{{{one.labels}}} {_number(one.value)}\n" for one in family.series)


def _number(value: Number) -> str:
    """As DCGM-exporter writes it: figures that are counted as they are, all others with six decimals."""
    return str(value) if isinstance(value, int) else f"{value:.6f}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
