"""Who keeps the ledger's file: one agent alone or, while one takes over from another, both of them in turns.

Whoever is alone knows what is in the file, and may keep in memory what is not worth a write. One that comes then asks
to be let in. The first writes down all that it has and shares; from there on each change is a turn of its own: read,
change, write. Once one is left, it is alone again.

All of it is locks on single bytes of one file. They end with their process, however that ends.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent.errors import StateError

# The bytes: whoever is inside has the first, for itself if it is alone; whoever is not inside yet asks by the second;
# whoever makes a change while it is not alone has the third.
INSIDE, ASKING, TURN = range(3)


class Custody:
    """One agent's part in keeping the file whose lock is at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def enter(self) -> bool:
        """Get in, alone where nobody is. False while another agent is alone: it sees that somebody asks; try again.

        Raises StateError where there is no place for the lock.
        """
        if self._lock is None:
            self._lock = self._opened()
        inside = self.be_alone() or self._has(INSIDE, fcntl.F_RDLCK)
        self._has(ASKING, fcntl.F_UNLCK if inside else fcntl.F_RDLCK)
        if not inside:
            os.utime(self._lock)  # whoever is inside may wait for a hint that somebody asks
        return inside

    def leave(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    @property
    def asked(self) -> bool:
        """Whether another agent asks to be let in."""
        nobody = self._has(ASKING, fcntl.F_WRLCK)
        return not (nobody and self._has(ASKING, fcntl.F_UNLCK))

    @property
    def adrift(self) -> bool:
        """Whether the lock file was taken away: another agent would not find this one, and must be met anew."""
        try:
            return self._lock is None or not os.path.samestat(os.fstat(self._lock), os.stat(self.path))
        except FileNotFoundError:
            return True

    def share(self) -> None:
        """Let others in."""
        self._has(INSIDE, fcntl.F_RDLCK)

    def be_alone(self) -> bool:
        """Keep others out from now on, if there are none; says whether nobody else is inside."""
        return self._has(INSIDE, fcntl.F_WRLCK)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Have the file for oneself while the block runs; waits for the other agent's turn to end. Blocks."""
        self._set(TURN, fcntl.F_WRLCK, wait=True)
        try:
            yield
        finally:
            self._set(TURN, fcntl.F_UNLCK)

    def _opened(self) -> int:
        # A file of its own: each save replaces the checkpoint, and a lock on it would go with the old one.
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StateError(
                f"cannot open {self.path}: {error.strerror}; the agent needs a folder of its own"
            ) from error

    def _has(self, byte: int, kind: int) -> bool:
        """Change the lock on a byte, if nobody is in the way; what was held before is else held still."""
        try:
            self._set(byte, kind)
        except BlockingIOError:
            return False
        return True

    def _set(self, byte: int, kind: int, *, wait: bool = False) -> None:
        if self._lock is None:
            raise StateError(f"{self.path} was lost, and cannot be made again: nothing is given or taken back")
        # struct flock of fcntl(2): the lock belongs to the open file, so that two in one process exclude each other.
        flock = struct.pack("hhqqi0q", kind, os.SEEK_SET, byte, 1, 0)
        fcntl.fcntl(self._lock, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, flock)
