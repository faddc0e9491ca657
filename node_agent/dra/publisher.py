"""Keeps the node's slices in the API equal to the pool: ``slices`` says what is in it, ``writes`` what has to be done.

What is stored is adopted at the start and left alone when it is as it should be. What others change or delete is put
right at once (a kubelet that starts deletes all slices of its node), and with growing pauses where somebody keeps at
it. At the end the slices stay: the agent that comes next takes them over.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from node_agent.dra.features import Feature, lacking, not_kept, without
from node_agent.dra.slices import Pool
from node_agent.dra.store import SliceStore
from node_agent.dra.writes import (
    Attempt,
    Objects,
    Times,
    Writes,
    generation_of,
    plan,
    same,
    times_of,
    wanted_objects,
    with_times,
)
from node_agent.errors import Conflict, KubeError, NotFound
from node_agent.kit.backoff import pauses, spread
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kit.tasks import running
from node_agent.kube.client import KubeClient
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import Object

# What changes together is written together.
SETTLE_SECONDS = 0.005
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
# The first repair is made at once, the second so much later; after a calm time it begins anew.
REPAIR_PAUSE, CALM_SECONDS = 0.1, 60.0
# Two are enough for a server that lacks a feature, one more for each further one.
ROUNDS = 5

log = Log(__name__)


class PublisherState(Struct, frozen=True, kw_only=True):
    """What is in the API by now, and what stands in the way of more.

    ``missing`` are features that the server lacks, ``not_kept`` all fields that it did not store as they were sent.
    ``writes`` counts all that was made, changed and deleted, ``repairs`` how often that undid what others had done.
    """

    generation: int = 0
    slices: int = 0
    devices: int = 0
    missing: frozenset[Feature] = frozenset()
    not_kept: frozenset[str] = frozenset()
    writes: int = 0
    repairs: int = 0
    trouble: str | None = None


class SlicePublisher:
    """A service: publishes what ``pool`` holds of ``driver`` for ``node``, from the moment on when it is not None."""

    def __init__(self, *, client: KubeClient, node: str, pool: Latest[Pool | None], driver: str) -> None:
        self._client = client
        self._node = node
        self._driver = driver
        self._pool = pool
        self._node_uid = ""
        self._last = Attempt()
        self._times: Times = {}
        # What was sent of each slice, and what the server made of it: that is as good as what was sent.
        self._answers: dict[str, tuple[Object, Object]] = {}
        self._settled: Pool | None = None
        self._left: Mapping[str, str] = {}
        self._tries, self._trouble = _tries(), Steady()
        self._repair_pauses, self._repaired = _repair_pauses(), 0.0
        self._told = -1
        self.state = Latest(PublisherState())

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            try:
                version = await self._client.newest_version()
                await self._follow(SliceStore(self._client, self._node, version, self._driver))
            except KubeError as error:
                # A server that is away fails in more than one way.
                if self._trouble.should_say(type(error).__name__):
                    log.warning("slices cannot be published", node=self._node, reason=error)
                self._tell(trouble=str(error))
            await asyncio.sleep(spread(next(self._tries)))

    async def _follow(self, store: SliceStore) -> None:
        mirror = store.mirror()
        async with running(mirror.run(), name="mirror of the slices"):
            async for _ in changes(self._pool, mirror.objects, settle=SETTLE_SECONDS):
                if self._pool.value is None or self._seems_true(store, mirror):
                    continue
                if not await self._updated(store, mirror):
                    await self._make_true(store)

    def _seems_true(self, store: SliceStore, mirror: Mirror) -> bool:
        """Whether the pool was published and nothing has changed since. A mirror may be behind: no is only a guess."""
        if self._pool.value is not self._settled:
            return False
        return not mirror.synced.value or not self._writes(store.seen(mirror.objects.value.values()))

    async def _updated(self, store: SliceStore, mirror: Mirror) -> bool:
        """Publish another pool where the mirror shows just what was left: the server refuses it if that is not so.

        While the server is away it is asked for a list, again and again: a write would be of what was wanted then.
        """
        seen = store.seen(mirror.objects.value.values())
        if self._pool.value is self._settled or not mirror.follows or not seen or _versions(seen) != self._left:
            return False
        try:
            await self._write(seen, store)
        except (Conflict, NotFound):
            return False
        return True

    async def _make_true(self, store: SliceStore) -> None:
        """Publish the pool, whatever is stored. A mirror may be behind, so this rests on a listing of its own."""
        stored = await store.list()
        if self._pool.value is self._settled and self._writes(stored):
            log.warning("slices were changed by somebody else and are put right", node=self._node)
            # From here on it is work like any other: a try that fails is no further repair.
            self._settled = None
            await self._keep_calm()
            self._tell(repairs=self.state.value.repairs + 1)
            stored = await store.list()
        await self._write(stored, store)

    async def _write(self, stored: Objects, store: SliceStore) -> None:
        await self._meet_node(stored, store)
        for _ in range(ROUNDS):
            writes = self._writes(stored)
            if not writes:
                self._settle(stored)
                return
            stored = await self._carried_out(writes, stored, store)
        raise KubeError(f"the slices of {self._node} change while they are written, or the server stores others")

    def _writes(self, stored: Objects) -> Writes:
        """What has to be written; always for the newest pool, whatever was wanted when it began."""
        wanted = self._wanted
        times = {**self._times, **times_of(stored.values())}
        equal = {
            name: same(with_times(wanted[name], times), item) or self._is_the_answer(name, wanted[name], item)
            for name, item in stored.items()
            if name in wanted
        }
        return plan(wanted, stored, self._last, equal, times)

    def _is_the_answer(self, name: str, wanted: Object, item: Object) -> bool:
        sent, answer = self._answers.get(name, (None, item))
        return sent == wanted and same(answer, item)

    @property
    def _wanted(self) -> Objects:
        pool = self._pool.value
        assert pool is not None, "nothing is looked at before the pool is known"
        return wanted_objects(without(pool.slices, self.state.value.missing), self._node, self._node_uid, self._driver)

    async def _meet_node(self, stored: Objects, store: SliceStore) -> None:
        """Learn who owns the slices; again when some are gone, since a node that is made anew takes them with it."""
        if not stored:
            # All has to be written anyway: a chance to see what the server can do by now.
            self._tell(missing=frozenset(), not_kept=frozenset())
        if not self._node_uid or self._wanted.keys() - stored.keys():
            self._node_uid = await store.node_uid()

    async def _carried_out(self, writes: Writes, stored: Objects, store: SliceStore) -> Objects:
        """What is stored after the writes, or after some of them where the server turned out to lack a feature."""
        after = dict(stored)
        self._last = writes.attempt
        for item in writes.obsolete:
            await store.delete(item)
            del after[item["metadata"]["name"]]
            log.info("slice removed", slice=item["metadata"]["name"])
            self._tell(writes=self.state.value.writes + 1)
        for item in writes.changed:
            name = item["metadata"]["name"]
            after[name] = answer = await store.write(item)
            self._answers[name] = (writes.attempt.wanted[name], answer)
            self._tell(writes=self.state.value.writes + 1)
            # Counters come first, so no group has been written by now whose GPUs nobody would count.
            if self._has_lost(item, answer):
                break
        return after

    def _has_lost(self, sent: Object, stored: Object) -> bool:
        """Whether the server turned out to lack a feature."""
        before = self.state.value
        fields = before.not_kept | set(not_kept(sent["spec"], stored["spec"]))
        missing = before.missing | lacking(fields)
        if fields != before.not_kept:
            log.warning("the API server does not keep all that is published", fields=fields, off=missing)
            self._tell(not_kept=fields, missing=missing)
        return missing != before.missing

    async def _keep_calm(self) -> None:
        """Who changes slices time and again is another driver of the same name: no use in a race with it."""
        now = time.monotonic()
        if now - self._repaired > CALM_SECONDS:
            self._repair_pauses = _repair_pauses()
        await asyncio.sleep(spread(next(self._repair_pauses)))
        self._repaired = time.monotonic()

    def _settle(self, stored: Objects) -> None:
        self._settled, self._times, self._left = self._pool.value, times_of(stored.values()), _versions(stored)
        self._tries = _tries()
        self._trouble.clear()
        generation = max(map(generation_of, stored.values()))
        devices = sum(len(item["spec"].get("devices") or ()) for item in stored.values())
        self._tell(generation=generation, slices=len(stored), devices=devices, trouble=None)
        if self._told != self.state.value.writes:
            self._told = self.state.value.writes
            log.info("slices published", generation=generation, slices=len(stored), devices=devices)

    def _tell(self, **changes: Any) -> None:
        self.state.set(replace(self.state.value, **changes))


def _versions(stored: Objects) -> Mapping[str, str]:
    return {name: item["metadata"]["resourceVersion"] for name, item in stored.items()}


def _tries() -> Iterator[float]:
    return pauses(first=FIRST_PAUSE, longest=LONGEST_PAUSE)


def _repair_pauses() -> Iterator[float]:
    return chain([0.0], pauses(first=REPAIR_PAUSE, longest=LONGEST_PAUSE))
