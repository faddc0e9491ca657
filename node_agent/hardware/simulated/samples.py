"""Samples of a GPU's work, as a C caller allocates, fills and frees them."""

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True, eq=False)
class PerformanceSample:
    """Seconds since the driver was loaded, and of them those at work, weighted by the load that they had."""

    seconds: float = 0.0
    busy: float = 0.0
