"""What an MPS daemon of some devices is: its environment, commands and limits, and what its clients need. Pure.

A daemon numbers the devices that it has, and its clients see these numbers: limits go by them, since real daemons do
not heed those by UUID.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from node_agent.config.quantities import MIB
from node_agent.errors import MpsImpossible
from node_agent.model.gpu import ComputeCapability
from node_agent.model.partition import DeviceUuid

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
MEMORY_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
VISIBLE = "CUDA_VISIBLE_DEVICES"

# Where a client finds its daemon. Not the place that CUDA looks at by itself: the host's own daemon may be there.
CLIENT_PIPE, CLIENT_SHM = "/run/nvidia-mps", "/dev/shm"

VOLTA = ComputeCapability(major=7, minor=0)

# How many clients a GPU takes at once: before Volta, since then, and with the newest drivers.
_FEW, _MANY, _MORE = 16, 48, 60
_CUDA_WITH_MORE = (13, 1)


class Limits(Struct, frozen=True, kw_only=True):
    """What each CUDA process of one user may take: bytes of each device's memory, and percent of its threads.

    What is not named is not limited.
    """

    memory: Mapping[DeviceUuid, int] = field(default_factory=dict)
    threads: int | None = None

    def __post_init__(self) -> None:
        if any(value < MIB for value in self.memory.values()):
            raise ValueError(f"a limit of memory is at least 1 MiB, not {min(self.memory.values())} bytes")
        if self.threads is not None and not 1 <= self.threads <= 100:
            raise ValueError(f"a limit of threads is from 1 to 100 percent, not {self.threads}")


NO_LIMITS = Limits()


class Wanted(Struct, frozen=True, kw_only=True):
    """What a user needs: a daemon of exactly these devices. ``multi_user``: clients of several user ids run at once.

    ``most`` is how many users the daemon can have at all.
    """

    devices: tuple[DeviceUuid, ...]
    limits: Limits = NO_LIMITS
    multi_user: bool = False
    most: int = _MANY


class Folders(Struct, frozen=True, kw_only=True):
    """Where a daemon has its pipe, its logs and its shared memory; ``shm`` is None where it uses the host's."""

    pipe: Path
    log: Path
    shm: Path | None

    @classmethod
    def below(cls, folder: Path, *, own_shm: bool) -> "Folders":
        return cls(pipe=folder / "pipe", log=folder / "log", shm=folder / "shm" if own_shm else None)


class ClientEdits(Struct, frozen=True, kw_only=True):
    """What a container needs to be a client: variables, and folders of the host by their place in the container."""

    environment: Mapping[str, str]
    mounts: Mapping[str, str]


def daemon_key(devices: Collection[DeviceUuid]) -> str:
    """What the daemon of a set of devices goes by, whoever asks; short, since sockets' paths must be."""
    return hashlib.sha256("\n".join(sorted(devices)).encode()).hexdigest()[:12]


def daemon_environment(devices: Sequence[DeviceUuid], folders: Folders) -> dict[str, str]:
    """What the daemon and its control program are told; only the given devices exist for it."""
    return {
        PIPE_DIRECTORY: str(folders.pipe),
        LOG_DIRECTORY: str(folders.log),
        VISIBLE: ",".join(devices),
    }


def client_edits(devices: Sequence[DeviceUuid], folders: Folders, limits: Limits) -> ClientEdits:
    """What a container gets. A process may lower the limits that its variables name, and its daemon's hold as well."""
    memory = ",".join(f"{number}={value}" for number, value in _memory(devices, limits))
    return ClientEdits(
        environment={
            PIPE_DIRECTORY: CLIENT_PIPE,
            **({MEMORY_LIMIT: memory} if memory else {}),
            **({THREADS: str(limits.threads)} if limits.threads is not None else {}),
        },
        mounts={str(folders.pipe): CLIENT_PIPE, str(folders.shm or CLIENT_SHM): CLIENT_SHM},
    )


def default_commands(devices: Sequence[DeviceUuid], limits: Limits) -> list[str]:
    """The commands that make a daemon hold its next servers to these limits."""
    memory = {number: value for number, value in _memory(devices, limits)}
    return [
        f"set_default_active_thread_percentage {limits.threads or 100}",
        *(f"set_default_device_pinned_mem_limit {number} {value}" for number, value in memory.items()),
    ]


def server_commands(server: int, devices: Sequence[DeviceUuid], limits: Limits) -> list[str]:
    """The same for a server that runs; only its next clients are held to them."""
    return [
        f"set_active_thread_percentage {server} {limits.threads or 100}",
        *(f"set_device_pinned_mem_limit {server} {number} {value}" for number, value in _memory(devices, limits)),
    ]


def _memory(devices: Sequence[DeviceUuid], limits: Limits) -> list[tuple[int, str]]:
    """The limit of each device that has one, by the daemon's number for it. There is no command to lift a limit."""
    return [(n, f"{limits.memory[one] // MIB}M") for n, one in enumerate(devices) if one in limits.memory]


def of_all(users: Collection[Limits], devices: Iterable[DeviceUuid], sizes: Mapping[DeviceUuid, int]) -> Limits:
    """What a daemon holds all of its clients to: the widest of its users' limits, so that none is cut short.

    Where one has no limit of memory it is the size of the device, from ``sizes`` in bytes: no command lifts a limit.
    """
    memory = {}
    for device in devices:
        named = [user.memory[device] for user in users if device in user.memory]
        widest = max(named) if named and len(named) == len(users) else sizes.get(device)
        if widest is not None:
            memory[device] = widest
    return Limits(memory=memory, threads=max((user.threads or 100 for user in users), default=100))


def client_limit(capability: ComputeCapability | None, cuda: str | None, part: float = 1.0) -> int:
    """How many clients a GPU takes at once, by its compute capability and the driver's CUDA version.

    A MIG device takes fewer: ``part`` is its share of the GPU's multiprocessors. NVIDIA says "in proportion" and gives
    no figures, so this is a bound and no promise.
    """
    if capability is not None and capability < VOLTA:
        return _FEW
    major, _, minor = (cuda or "0").partition(".")
    whole = _MORE if (int(major or 0), int(minor or 0)) >= _CUDA_WITH_MORE else _MANY
    return max(1, int(whole * part))


def check_possible(name: str, capability: ComputeCapability | None, limits: Limits, multi_user: bool) -> None:
    """Raise MpsImpossible where a GPU is too old for what is wanted: before Volta clients cannot be limited."""
    if capability is None or capability >= VOLTA:
        return
    if limits != NO_LIMITS or multi_user:
        raise MpsImpossible(
            f"{name} has compute capability {capability}; MPS holds clients to limits and serves several users at once "
            f"from {VOLTA} on: ask for MPS without these, or for another GPU"
        )
