"""What is measured, a module each. A new one is a coroutine function as below, and a line in ``SUBJECTS``."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from benchmarks.measure import Effort, Figure
from benchmarks.subjects import (
    allocation,
    cdi,
    claims,
    footprint,
    growth,
    health,
    labels,
    preferred,
    recovery,
    scrape,
    startup,
)

SUBJECTS: Mapping[str, Callable[[Effort], Awaitable[Sequence[Figure]]]] = {
    "start": startup.measure,
    "footprint": footprint.measure,
    "Allocate": allocation.measure,
    "GetPreferredAllocation": preferred.measure,
    "claims": claims.measure,
    "health": health.measure,
    "CDI and inventory": cdi.measure,
    "scrape": scrape.measure,
    "labels": labels.measure,
    "recovery": recovery.measure,
    "a node that grows": growth.measure,
}
