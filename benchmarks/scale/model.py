"""What follows from the measurements for more nodes than fit on one machine. Pure.

Nothing that an agent does depends on other nodes, so every total is a line: what the cluster has without agents, and
so much for each. ``extrapolated`` takes it from the smaller clusters and holds it to the largest one; ``Cost`` is what
one thing costs that happens on a node, and ``load`` what comes of it where so many things happen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node_agent.kit.backoff import pauses

SECONDS_A_DAY = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A total that grows with the nodes."""

    base: float
    each: float

    def at(self, nodes: int) -> float:
        return self.base + self.each * nodes

    def error(self, nodes: int, measured: float) -> float:
        """By how much of the measured value the line misses it: 0.1 is a tenth too much."""
        return (self.at(nodes) - measured) / measured if measured else self.at(nodes)


def through(points: Mapping[int, float]) -> Line:
    """The line through totals by numbers of nodes; the best one where there are more than two.

    Raises:
        ValueError: there are fewer than two.
    """
    if len(points) < 2:
        raise ValueError(f"a line needs two points: measured was at {sorted(points)} nodes")
    count = len(points)
    middle, mean = sum(points) / count, sum(points.values()) / count
    spread = sum((nodes - middle) ** 2 for nodes in points)
    each = sum((nodes - middle) * (value - mean) for nodes, value in points.items()) / spread
    return Line(base=mean - each * middle, each=each)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one thing that happens on one node costs; ``sent`` are the bytes that the API server sends for it."""

    requests: float
    writes: float
    sent: float


Rates = Mapping[str, float]
"""How often each thing happens on a node in a day."""


def load(nodes: int, rates: Rates, costs: Mapping[str, Cost]) -> Cost:
    """What all nodes together cost in a second."""
    times = {what: nodes * often / SECONDS_A_DAY for what, often in rates.items()}
    return Cost(
        requests=sum(often * costs[what].requests for what, often in times.items()),
        writes=sum(often * costs[what].writes for what, often in times.items()),
        sent=sum(often * costs[what].sent for what, often in times.items()),
    )


def window(away: float, *, first: float, longest: float) -> float:
    """Over how many seconds watches come back to a server that was ``away`` so long: half the pause reached by then.

    Pauses double from ``first`` to ``longest``, and each is something between half of it and all of it.
    """
    passed = 0.0
    for pause in pauses(first=first, longest=longest):
        if passed >= away:
            return pause / 2
        passed += pause * 3 / 4
    raise AssertionError("pauses never end")


def extrapolated(totals: Mapping[str, Mapping[int, float]], further: Sequence[int]) -> list[str]:
    """A row of a table for each total: its line, how far that of the smaller clusters missed the largest, and more."""
    found = []
    for name, points in totals.items():
        largest, whole = max(points), through(points)
        smaller = through({nodes: value for nodes, value in points.items() if nodes != largest})
        values = " | ".join(f"{whole.at(nodes):,.0f}" for nodes in further)
        missed = smaller.error(largest, points[largest])
        found.append(f"| {name} | {whole.base:,.1f} + {whole.each:,.3g} n | {missed:+.0%} | {values} |")
    return found
