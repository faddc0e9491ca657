"""Which claim was given what, in a file that outlives the process: only from it is known what the last claim leaves.

The file is the truth, and each turn reads it: two agents of a node, as in an update, thus see the same. Claims of
domains come seldom, so nothing is kept in memory.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from node_agent.computedomain.names import Kind
from node_agent.errors import StateError
from node_agent.kit.alone import alone
from node_agent.kit.files import keep_aside, write_atomic
from node_agent.kit.lane import Lane
from node_agent.kit.logs import Log
from node_agent.kit.sealed import seal, unseal

VERSION = 1
LOOK_SECONDS = 0.05

log = Log(__name__)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that holds the node's device of ``kind`` in a domain; ``prepared`` once its pod may have started."""

    uid: str
    namespace: str
    name: str
    domain: str
    kind: Kind
    prepared: bool = False


class Entries:
    """What is in the record during one turn."""

    def __init__(self, found: Iterable[Entry], path: Path, lane: Lane) -> None:
        self._entries = {entry.uid: entry for entry in found}
        self._path = path
        self._lane = lane

    def get(self, uid: str) -> Entry | None:
        return self._entries.get(uid)

    def others(self, uid: str) -> list[Entry]:
        """The entries of all other claims."""
        return [entry for entry in self._entries.values() if entry.uid != uid]

    async def put(self, entry: Entry) -> None:
        """Write an entry down. Raises StateError where that cannot be done."""
        if self._entries.get(entry.uid) != entry:
            await self._write([*self.others(entry.uid), entry])

    async def remove(self, uid: str) -> None:
        """Forget a claim; raises StateError as ``put``."""
        if uid in self._entries:
            await self._write(self.others(uid))

    async def _write(self, entries: list[Entry]) -> None:
        content = seal(msgspec.json.encode(entries), VERSION)
        try:
            await self._lane.run("write the record of domains", partial(write_atomic, self._path, content, mode=0o600))
        except OSError as error:
            raise StateError(f"{self._path} cannot be written: {error.strerror or error}") from error
        self._entries = {entry.uid: entry for entry in entries}


class Record:
    """The file at ``path``; file work is done on ``lane``."""

    def __init__(self, path: Path, lane: Lane) -> None:
        self._path = path
        self._lane = lane

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Entries]:
        """Have the record for oneself while the block runs. Raises StateError where it cannot be read."""
        try:
            async with alone(self._path.with_name(f"{self._path.name}.lock"), every=LOOK_SECONDS):
                yield Entries(await self._lane.run("read the record of domains", self._read), self._path, self._lane)
        except OSError as error:
            raise StateError(f"{self._path} cannot be used: {error.strerror or error}") from error

    async def all(self) -> list[Entry]:
        """All entries as they are now; raises StateError."""
        async with self.turn() as entries:
            return entries.others("")

    def _read(self) -> list[Entry]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        try:
            return msgspec.json.decode(unseal(content, VERSION), type=list[Entry])
        except (ValueError, msgspec.MsgspecError) as error:
            # What stood there cannot be known; a label that is left over is named when the next domain wants the node.
            log.error("the record of domains is damaged and begun anew", kept=keep_aside(self._path), reason=error)
            return []
