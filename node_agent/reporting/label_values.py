"""How facts become the values of labels: what is legal, and what holds for all. Pure."""

import re
from collections.abc import Iterable
from typing import TypeVar

from node_agent.sharing.shares import Shared

LONGEST = 63
SHARED = "-SHARED"

_LEGAL = re.compile(rf"[A-Za-z0-9]([A-Za-z0-9_.-]{{0,{LONGEST - 2}}}[A-Za-z0-9])?")
_NOT_KEPT = re.compile(r"[^A-Za-z0-9_. -]")

T = TypeVar("T")


def label_value(text: str, longest: int = LONGEST) -> str | None:
    """A name as a label's value: what is not allowed is left out, and words are joined by ``-``.

    As GPU Feature Discovery does it, so that selectors go on matching; but never longer than Kubernetes takes, nor with
    punctuation at an end. None where nothing is left.
    """
    words = _NOT_KEPT.sub("", text).split()
    return "-".join(words).strip("-_.")[:longest].rstrip("-_.") or None


def is_legal(value: str) -> bool:
    """Whether Kubernetes takes it; it would take nothing, too, which says nothing."""
    return _LEGAL.fullmatch(value) is not None


def agreed(values: Iterable[T | None]) -> T | None:
    """The one value that all have who can tell theirs."""
    known = {value for value in values if value is not None}
    return known.pop() if len(known) == 1 else None


def text_of(number: int | None) -> str | None:
    return None if number is None else str(number)


def looks_whole(shared: Shared | None) -> bool:
    """Whether something is shared under a name by which a pod would take it for a whole one: the product tells it."""
    return shared is not None and shared.replicas > 1 and not shared.renamed
