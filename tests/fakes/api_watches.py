"""The open watches of the fake API server of ``api_server``."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from node_agent.kit.latest import Latest, changes
from node_agent.kube.resources import Object
from tests.fakes.api_answers import Answers
from tests.fakes.api_requests import Asked
from tests.fakes.api_store import Change, Matches, Place, Refused

NEWEST = ("", "0")
"""The versions from which a watch begins with all that is there."""


class Dropped(Exception):
    """The connection is to break now."""


@dataclass(eq=False)
class Watch:
    """One open watch; ``orders`` has all that it was told: ``cut``, ``end``, ``bookmark``, or an ERROR event's Status.

    They are taken in their order, after the changes that came before.
    """

    asked: Asked
    orders: Latest[tuple[str | Object, ...]] = field(default_factory=lambda: Latest(()))

    def order(self, *orders: str | Object) -> None:
        self.orders.set(self.orders.value + orders)

    async def end_with(self, reader: asyncio.StreamReader) -> None:
        """Break off when the client has closed, or gone without a word; it has nothing to say while it watches."""
        with suppress(OSError):
            await reader.read(1)
        self.order("cut")


async def events(watch: Watch, place: Place, answers: Answers) -> AsyncGenerator[Object, None]:
    """What a watch gets to see, until it has been told to end or its time is over.

    Raises:
        Dropped: it was told to break off.
    """
    store, asked = answers.store, watch.asked
    matches = store.selection(place, asked.query.get("fieldSelector", ""), asked.query.get("labelSelector", ""))
    version = asked.query.get("resourceVersion", "")
    if version not in NEWEST and int(version) < store.forgotten:
        yield {"type": "ERROR", "object": Refused(410, "Expired", f"too old resource version: {version}").status}
        return
    if version in NEWEST:
        for item in store.select(place, matches):
            yield {"type": "ADDED", "object": answers.shown(asked, item)}
    seen, done = store.revision.value if version in NEWEST else int(version), 0
    deadline = time.monotonic() + float(asked.query.get("timeoutSeconds", 1800))
    async with aclosing(changes(store.revision, watch.orders, every=lambda: deadline - time.monotonic())) as wake:  # type: ignore[type-var]
        async for _ in wake:
            for kind, item in _shown_since(seen, place, answers, matches):
                yield {"type": kind, "object": answers.shown(asked, item)}
            seen = store.revision.value
            orders, done = watch.orders.value[done:], len(watch.orders.value)
            for order in orders:
                if order == "cut":
                    raise Dropped
                if order == "end":
                    return
                yield _bookmark(asked, answers, seen) if order == "bookmark" else {"type": "ERROR", "object": order}
            if time.monotonic() >= deadline:
                return


def _shown_since(version: int, place: Place, answers: Answers, matches: Matches) -> Iterator[tuple[str, Object]]:
    for change in tuple(answers.store.since(version, place)):
        if kind := _kind(change, matches):
            yield kind, change.last


def _kind(change: Change, matches: Matches) -> str | None:
    """What a change is to those who select by ``matches``: coming into sight is being added, too."""
    was = change.before is not None and matches(change.before)
    is_ = change.after is not None and matches(change.after)
    return {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get((was, is_))


def _bookmark(asked: Asked, answers: Answers, version: int) -> Object:
    item = {"metadata": {"resourceVersion": str(version), "creationTimestamp": None}}
    return {"type": "BOOKMARK", "object": answers.shown(asked, item)}
