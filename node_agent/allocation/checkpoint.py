"""The file that the ledger survives in: one JSON document under a checksum (``kit.sealed``).

Keys that are not known are passed over: an older agent reads what a newer one of the same ``version`` wrote. All calls
block; ``record`` makes them.
"""

from pathlib import Path

import msgspec
from msgspec import Struct

from node_agent.allocation.grants import Books, Door, Grant
from node_agent.errors import CheckpointDamaged, StateError
from node_agent.kit.files import keep_aside, unfinished, write_atomic
from node_agent.kit.sealed import seal, unseal

VERSION = 1


class _Payload(Struct, frozen=True, kw_only=True):
    """The books as the file has them: grants as a list, since each of them names its holder."""

    grants: tuple[Grant, ...] = ()
    unreconciled: tuple[Door, ...] = ()


def encode(books: Books) -> bytes:
    """The content of the file for these books."""
    payload = _Payload(grants=tuple(books.grants.values()), unreconciled=tuple(sorted(books.unreconciled)))
    return seal(msgspec.json.encode(payload), VERSION)


def decode(content: bytes) -> Books:
    """The books that the content of a file tells. Raises CheckpointDamaged where it is not what was written."""
    try:
        payload = msgspec.json.decode(unseal(content, VERSION), type=_Payload)
    except msgspec.DecodeError as error:
        raise CheckpointDamaged(f"it is not the JSON of a checkpoint: {error}") from error
    except ValueError as error:
        raise CheckpointDamaged(str(error)) from error
    grants = {grant.holder.id: grant for grant in payload.grants}
    return Books(grants=grants, unreconciled=frozenset(payload.unreconciled))


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
        """Keep a damaged file under another name, for people to look at. Raises StateError where it cannot be kept."""
        try:
            return keep_aside(self.path)
        except OSError as error:
            raise StateError(f"cannot keep the damaged {self.path} under another name: {error.strerror}") from error
