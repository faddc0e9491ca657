"""Samples of a GPU's work, as a C caller allocates, fills and frees them."""

from msgspec import Struct


class PerformanceSample(Struct, kw_only=True, eq=False):
    """Seconds since the driver was loaded, and of them those at work, weighted by the load that they had."""

    seconds: float = 0.0
    busy: float = 0.0
