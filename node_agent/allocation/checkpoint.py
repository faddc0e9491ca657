"""The file that the ledger survives in: one JSON document, ``{"version": 1, "checksum": …, "payload": {…}}``.

The checksum is over the bytes of the payload as they stand in the file, so no version's idea of how to write them
matters. Keys that are not known are passed over: an older agent reads what a newer one of the same ``version`` wrote.
All calls block; ``record`` makes them.
"""

import hashlib
import os
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec

from node_agent.allocation.grants import Books, Door, Grant
from node_agent.errors import CheckpointDamaged, StateError
from node_agent.kit.files import sync_folder, unfinished, write_atomic

VERSION = 1
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Payload:
    """The books as the file has them: grants as a list, since each of them names its holder."""

    grants: tuple[Grant, ...] = ()
    unreconciled: tuple[Door, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Envelope:
    version: int
    checksum: str
    payload: msgspec.Raw


def encode(books: Books) -> bytes:
    """The content of the file for these books."""
    payload = _Payload(grants=tuple(books.grants.values()), unreconciled=tuple(sorted(books.unreconciled)))
    # Encoded once: the bytes that the checksum is over are the very ones that go into the file.
    raw = msgspec.json.encode(payload)
    return msgspec.json.encode(_Envelope(version=VERSION, checksum=_checksum(raw), payload=msgspec.Raw(raw))) + b"\n"


def decode(content: bytes) -> Books:
    """The books that the content of a file tells. Raises CheckpointDamaged where it is not what was written."""
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        if envelope.version != VERSION:
            raise CheckpointDamaged(f"it is of version {envelope.version}; this agent reads version {VERSION} only")
        if envelope.checksum != _checksum(bytes(envelope.payload)):
            raise CheckpointDamaged("its checksum does not fit: it was changed or cut after it had been written")
        payload = msgspec.json.decode(envelope.payload, type=_Payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointDamaged(f"it is not the JSON of a checkpoint: {error}") from error
    grants = {grant.holder.id: grant for grant in payload.grants}
    return Books(grants=grants, unreconciled=frozenset(payload.unreconciled))


def _checksum(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_boot_id(path: Path = BOOT_ID) -> str:
    """What tells this boot from every other; empty where the system does not tell."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class Checkpoint:
    """The file at ``path``. Whoever reads it to write it, or clears away, keeps others out meanwhile (``custody``)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """What is in the file, for ``decode``; None where there is none. Raises StateError where it cannot be read."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(f"cannot read who holds which GPU from {self.path}: {error.strerror}") from error

    def clear_away(self) -> None:
        """Remove what a killed agent has left of a write."""
        for left in unfinished(self.path.parent, self.path.name):
            left.unlink(missing_ok=True)

    def save(self, books: Books) -> bytes:
        """Make these books the ones that survive; returns what is in the file then. Raises StateError."""
        content = encode(books)
        try:
            write_atomic(self.path, content, mode=0o600)
        except OSError as error:
            raise StateError(
                f"cannot write who holds which GPU to {self.path}: {error.strerror}; nothing was given or taken back"
            ) from error
        return content

    def set_aside(self) -> Path:
        """Keep a damaged file under another name, for people to look at; ``path`` keeps it until the next save.

        So there is no moment without a file, in which a crash would make a lost record look like a new one.
        Raises StateError where it cannot be kept.
        """
        names = (self.path.with_name(f"{self.path.name}.damaged-{number}") for number in count(1))
        aside = next(name for name in names if not name.exists() or name.samefile(self.path))
        try:
            if not aside.exists():
                os.link(self.path, aside)
                sync_folder(aside.parent)
        except OSError as error:
            raise StateError(f"cannot keep the damaged {self.path} as {aside}: {error.strerror}") from error
        return aside
