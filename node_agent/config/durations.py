"""Durations as Go writes them: ``30s``, ``1m30s``, ``500ms``."""

import re

PATTERN = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$"

_PART = re.compile(r"([0-9.]+)([a-zµ]+)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(duration: str | float) -> float:
    """The length in seconds of text that follows ``PATTERN``; a bare number counts seconds already."""
    if not isinstance(duration, str):
        return float(duration)
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(duration))
