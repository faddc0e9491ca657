"""Who uses which MPS daemon, on disk: what has to be kept running, and what has to be undone whatever dies.

One file a daemon. A change is one turn: lock, read, change, write. So two agents of a node, as in a rolling update,
lose nothing of each other.
"""

import fcntl
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.errors import MpsImpossible, StateError
from node_agent.hardware.provider import ComputeMode
from node_agent.kit.files import remove, write_atomic
from node_agent.kit.logs import Log, Steady
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.mps.plan import Limits, Wanted, daemon_key
from node_agent.sharing.mps.processes import Process

log = Log(__name__)


class Record(Struct, frozen=True, kw_only=True):
    """One daemon. ``users`` have their limits; without users it is to go, and ``leaving`` are those who wait for that.

    ``modes`` are those of the devices before, ``own_shm`` says whether it has a /dev/shm of its own; ``process`` is the
    daemon once it was started.
    """

    devices: tuple[DeviceUuid, ...]
    users: Mapping[str, Limits] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    multi_user: bool = False
    own_shm: bool = False
    modes: Mapping[DeviceUuid, ComputeMode] = field(default_factory=dict)
    process: Process | None = None


class Records:
    """The files in ``folder``. All methods block for a moment, and raise StateError where that cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._damages: defaultdict[Path, Steady] = defaultdict(Steady)

    def lock_of(self, key: str) -> Path:
        """The file whose lock an agent has while it starts or ends a daemon. It stays: a lock goes with its file."""
        return self._folder / f"{key}.lock"

    def all(self) -> dict[str, Record]:
        """Every daemon by its key, but those whose file is damaged: these must not keep the others from their work."""
        found = {path.stem: self._legible(path) for path in self._folder.glob("*.json")}
        return {key: record for key, record in found.items() if record is not None}

    def _legible(self, path: Path) -> Record | None:
        try:
            return self._read(path)
        except StateError as error:
            if self._damages[path].should_say(str(error)):
                log.error("an MPS daemon is left as it is", reason=error)
            return None

    def join(self, user: str, wanted: Wanted, *, own_shm: bool) -> Record:
        """Make somebody a user of the daemon of some devices, which may be none yet.

        Raises MpsImpossible where another daemon has one of the devices, or this one is run in another way, and
        StateError where its own file is damaged.
        """
        key = daemon_key(wanted.devices)
        with self._turn():
            known = self.all()
            _check_overlap(user, wanted, {name: record for name, record in known.items() if name != key})
            new = Record(devices=wanted.devices, multi_user=wanted.multi_user, own_shm=own_shm)
            record = self._read(self._folder / f"{key}.json") or new
            _check_agreement(user, wanted, record)
            _check_room(user, wanted, record)
            record = replace(record, users={**record.users, user: wanted.limits}, leaving=())
            self._write(key, record)
            return record

    def leave(self, user: str) -> list[str]:
        """Make somebody no user of any daemon; answers the keys of those that have none left, and are to end."""
        with self._turn():
            ending = []
            for key, record in self.all().items():
                rest = _without(record, user)
                if rest != record:
                    self._write(key, rest)
                if user in rest.leaving and not rest.users:
                    ending.append(key)
            return ending

    def change(self, key: str, change: Callable[[Record], Record]) -> Record | None:
        """Change a record, unless there is none; answers what it is by now."""
        with self._turn():
            record = self._read(self._folder / f"{key}.json")
            if record is None:
                return None
            changed = change(record)
            if changed != record:
                self._write(key, changed)
            return changed

    def forget(self, key: str) -> bool:
        """Remove a record, unless somebody uses the daemon again; True where it is gone."""
        path = self._folder / f"{key}.json"
        with self._turn():
            record = self._read(path)
            if record is not None and record.users:
                return False
            remove(path)
            return True

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self, path: Path) -> Record | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise StateError(f"{path} is not the record of an MPS daemon: {error}; remove it") from error
        except OSError as error:
            raise self._unusable(error) from error

    def _write(self, key: str, record: Record) -> None:
        try:
            write_atomic(self._folder / f"{key}.json", msgspec.json.encode(record), mode=0o600)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StateError:
        return StateError(f"cannot keep who uses which MPS daemon in {self._folder}: {error.strerror}")


def _without(record: Record, user: str) -> Record:
    if user not in record.users:
        return record
    users = {name: limits for name, limits in record.users.items() if name != user}
    return replace(record, users=users, leaving=(*record.leaving, user))


def _check_overlap(user: str, wanted: Wanted, others: Mapping[str, Record]) -> None:
    for record in others.values():
        common = sorted(set(record.devices) & set(wanted.devices))
        if common:
            raise MpsImpossible(
                f"{user} wants MPS on {', '.join(sorted(wanted.devices))}, of which {', '.join(common)} has a daemon "
                f"together with other devices, for {_users(record)}: a GPU can have one daemon only"
            )


def _check_agreement(user: str, wanted: Wanted, record: Record) -> None:
    if record.multi_user == wanted.multi_user:
        return
    mine, theirs = ("with", "without") if wanted.multi_user else ("without", "with")
    raise MpsImpossible(
        f"{user} wants the MPS daemon of {', '.join(sorted(wanted.devices))} {mine} multiUser, and {_users(record)} "
        f"has it {theirs}: ask for the same, or for another GPU"
    )


def _check_room(user: str, wanted: Wanted, record: Record) -> None:
    others = record.users.keys() - {user}
    if len(others) >= wanted.most:
        raise MpsImpossible(
            f"{user} wants the MPS daemon of {', '.join(sorted(wanted.devices))}, which has {len(others)} users: "
            f"it takes {wanted.most} clients at once; ask for another GPU"
        )


def _users(record: Record) -> str:
    return ", ".join(sorted(record.users)) or "nobody any more; it is about to end"
