"""Why ``preferred`` chooses what it chooses: the candidates it had, their scores, and the reason in words.

Apart from the choice itself, which must be quick; this may look at more and takes a few times as long.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from msgspec import Struct

from node_agent.model.gpu import Gpu
from node_agent.model.links import Link, PciePath
from node_agent.topology.pairs import positions
from node_agent.topology.preferred import Choice, Policy, Pool, PreferredRequest, Stock, preferred
from node_agent.topology.score import Score, Scores

CANDIDATES = 4
"""How many sets of GPUs are shown; those that differ only by interchangeable GPUs count as one."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A set of GPUs that was there to choose. ``remark`` says what it is like, or why it was not chosen."""

    gpus: tuple[Gpu, ...]
    score: Score
    chosen: bool
    remark: str


class Explanation(Struct, frozen=True, kw_only=True):
    """A choice, the reason in one sentence, and the candidates: the chosen one, then the best others.

    ``exact`` is False where there were too many sets to look at all: then the choice is the best of those looked at.
    """

    choice: Choice
    reason: str
    candidates: tuple[Candidate, ...]
    exact: bool

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The candidates as a table: mark, GPUs, GB/s over all pairs, NUMA nodes, cost of units lost, remark."""
        header = ("", "GPUs", "GB/s", "NUMA nodes", "units lost", "")
        return [header, *map(_row, self.candidates)]

    @property
    def text(self) -> str:
        """The whole explanation for a terminal."""
        doubt = "" if self.exact else "\nToo many sets to look at all of them: this is the best that was found."
        return f"{self.reason}{doubt}\n\n{_aligned(self.rows)}" if self.candidates else self.reason


def explain(request: PreferredRequest, pool: Pool) -> Explanation:
    """Choose as ``preferred`` does, and say why."""
    choice = preferred(request, pool)
    scores, before = pool.scores, Stock(request, pool)
    chosen, available = scores.mask(gpu.uuid for gpu in choice.gpus), before.available
    if not chosen:
        return Explanation(choice=choice, reason="No device is available.", candidates=(), exact=True)
    # The policy's part is told in words; the candidates compare what remains open after it, the sets of as many GPUs.
    found = scores.best(available, before.chosen, chosen.bit_count(), keep=CANDIDATES)
    others = [mask for mask in found.masks if mask != chosen][: CANDIDATES - 1]
    words = describe(scores, chosen, available)
    return Explanation(
        choice=choice,
        reason=_reason(request, pool, choice, words),
        candidates=(
            Candidate(gpus=choice.gpus, score=choice.score, chosen=True, remark="chosen"),
            *(_other(scores, mask, available, choice.score) for mask in others),
        ),
        exact=found.exact,
    )


def describe(scores: Scores, chosen: int, available: int) -> str:
    """A set of GPUs in words: where they are, how they are joined, and what choosing them leaves."""
    gpus = _gpus(scores, chosen)
    links = [scores.inventory.links.between(a.uuid, b.uuid) for a, b in combinations(gpus, 2)]
    place = f"{_count(len(gpus), 'GPU')}{_on_nodes(gpus)}"
    return "; ".join(filter(None, (", ".join(filter(None, (place, _joined(links)))), _left(scores, chosen, available))))


def _other(scores: Scores, mask: int, available: int, best: Score) -> Candidate:
    score = scores.score(mask, available)
    return Candidate(gpus=_gpus(scores, mask), score=score, chosen=False, remark=_drawback(score, best))


def _drawback(score: Score, best: Score) -> str:
    """The first part of the objective that tells a candidate from the chosen set."""
    # Only a policy can prefer a lesser set: by the objective alone none of the others is better.
    if score.rank < best.rank:
        return "better placed, but more in use"
    for differs, words in (
        (score.bandwidth != best.bandwidth, "less bandwidth"),
        (score.numa_nodes != best.numa_nodes, "spans more NUMA nodes"),
        (score.numa_pairs != best.numa_pairs, "more spread over its NUMA nodes"),
        (score.lost != best.lost, "breaks up or uses up more of what is whole"),
        (score.cut != best.cut, "cuts more bandwidth to what stays available"),
        (score.parted != best.parted, "parts more NUMA neighbours"),
    ):
        if differs:
            return words
    return "as good, but later in the order of the PCI addresses"


def _reason(request: PreferredRequest, pool: Pool, choice: Choice, words: str) -> str:
    short = "" if len(choice.ids) == request.size else f" of {request.size} asked for, since there are no more"
    lines = [f"{_names(choice.gpus)}{short}: {words}."]
    if max(pool.totals, default=0) > 1:
        order = "most" if pool.policy is Policy.PACKED else "fewest"
        lines.append(f"The GPUs with the {order} devices in use come first: {_given(request, pool, choice)}.")
    if request.must_include:
        lines.append(f"{_count(len(request.must_include), 'device')} had to be among them.")
    return "\n".join(lines)


def _given(request: PreferredRequest, pool: Pool, choice: Choice) -> str:
    """How many devices each GPU gives and how many of its devices were in use before, those to include not counted."""
    picked = [pool.places[device][0] for device in choice.ids if device in pool.places]
    had = [pool.places[device][0] for device in request.must_include if device in pool.places]
    used = Stock(request, pool).used
    return ", ".join(
        f"{pool.scores.inventory.gpus[i].name} gives {picked.count(i)}"
        f" ({used[i] - had.count(i)} of {pool.totals[i]} in use)"
        for i in sorted(set(picked))
    )


def _on_nodes(gpus: Iterable[Gpu]) -> str:
    counts: dict[int, int] = {}
    for gpu in gpus:
        if gpu.numa_node is not None:
            counts[gpu.numa_node] = counts.get(gpu.numa_node, 0) + 1
    if not counts:
        return ""
    if len(counts) == 1:
        return f" of NUMA node {next(iter(counts))}"
    return f" of NUMA nodes {_listed(map(str, counts))} ({' + '.join(map(str, counts.values()))})"


def _joined(links: list[Link]) -> str:
    if not links:
        return ""
    direct = [link.nvlinks for link in links if link.nvlinks]
    every = "all joined" if len(links) > 1 else "joined"
    if len(direct) == len(links):
        return f"{every} by {_range(sorted(set(direct)))} NVLink{'s' if max(direct) > 1 else ''}"
    paths = _range(_paths(link for link in links if not link.nvlinks))
    if direct:
        return f"{len(direct)} of {len(links)} pairs joined by NVLink, the rest over PCIe ({paths})"
    return f"{every} over PCIe ({paths})"


def _paths(links: Iterable[Link]) -> list[str]:
    """The abbreviations of the PCIe paths, the shortest first; ``?`` for those that the driver cannot tell."""
    paths = {link.path for link in links}
    return [path.short for path in PciePath if path in paths] + ["?"] * (None in paths)


def _left(scores: Scores, chosen: int, available: int) -> str:
    """The largest units that stay whole and, where none does, the largest that is broken up."""
    stays = available & ~chosen
    whole = list(_largest(scores.whole(stays)))
    if whole:
        return f"leaves {_listed([_unit(scores, unit) for unit in whole[:3]])} whole"
    broken = [unit for unit in _largest(scores.whole(available)) if unit & chosen and unit & stays]
    return f"breaks up {_unit(scores, broken[0])}" if broken else ""


def _largest(units: list[int]) -> Iterator[int]:
    """Those that lie within no other."""
    return (unit for unit in units if not any(unit != other and not unit & ~other for other in units))


def _unit(scores: Scores, unit: int) -> str:
    gpus = _gpus(scores, unit)
    if unit in scores.pairs.nodes and gpus[0].numa_node is not None:
        return f"NUMA node {gpus[0].numa_node}"
    kind = "the island of" if unit in scores.pairs.islands else "the group of"
    return f"{kind} {_names(gpus)}" if len(gpus) <= 4 else f"{kind} {len(gpus)} GPUs"


def _gpus(scores: Scores, mask: int) -> tuple[Gpu, ...]:
    return tuple(scores.inventory.gpus[i] for i in positions(mask))


def _names(gpus: Iterable[Gpu]) -> str:
    return " ".join(gpu.name for gpu in gpus)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _range(values: Sequence[object]) -> str:
    """``18``, or ``1 to 2`` where there are several."""
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _row(candidate: Candidate) -> tuple[str, ...]:
    score = candidate.score
    return (
        "→" if candidate.chosen else "",
        _names(candidate.gpus),
        f"{score.bandwidth / 1000:,.0f}",
        str(score.numa_nodes),
        str(score.lost),
        candidate.remark,
    )


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
