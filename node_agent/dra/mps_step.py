"""Makes a claim's containers clients of an MPS daemon: a step of its preparation, where its devices are shared so."""

from collections.abc import Callable, Sequence
from typing import Protocol

from node_agent.allocation.grants import Grant, Hold, Notes
from node_agent.cdi.edits import ContainerEdits, Mount
from node_agent.dra.sharing import MPS_MODES, MPS_OF_MANY, Use, limits_of
from node_agent.errors import MpsImpossible
from node_agent.model.claim import Claim
from node_agent.model.gpu import Gpu
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.mps.plan import ClientEdits, Wanted, check_possible, client_limit

# A client writes into both folders, and runs nothing from them.
OPTIONS = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


class Daemons(Protocol):
    """The MPS daemons of the node; see ``sharing.mps.daemons``."""

    async def join(self, user: str, wanted: Wanted) -> ClientEdits: ...

    async def leave(self, user: str) -> None: ...


class MpsStep:
    """Joins and leaves daemons for claims. ``uses`` tells how a claim uses its devices, ``cuda`` the driver's CUDA."""

    name = "mps"

    def __init__(
        self, *, daemons: Daemons, uses: Callable[[Claim], Sequence[Use]], cuda: Callable[[], str | None]
    ) -> None:
        self._daemons = daemons
        self._uses = uses
        self._cuda = cuda

    def applies(self, claim: Claim, grant: Grant) -> bool:
        return any(map(_shared, grant.holds))

    async def do(self, claim: Claim, grant: Grant) -> Notes:
        """Have one daemon for all devices of the claim that are shared so; the notes say how containers reach it."""
        shared = {(hold.request, hold.device, hold.share_id) for hold in grant.holds if _shared(hold)}
        uses = [
            use for use in self._uses(claim) if (use.result.request, use.result.device, use.result.share_id) in shared
        ]
        multi_user = any(hold.mode == MPS_OF_MANY for hold in grant.holds)
        devices, limits = tuple(dict.fromkeys(device for use in uses for device in use.devices)), limits_of(uses)
        _check_one_partition(uses, devices)
        for gpu in (gpu for use in uses for gpu in use.gpus):
            check_possible(gpu.name, gpu.compute_capability, limits, multi_user)
        most = min(
            client_limit(gpu.compute_capability, self._cuda(), _share(use, gpu)) for use in uses for gpu in use.gpus
        )
        wanted = Wanted(devices=devices, limits=limits, multi_user=multi_user, most=most)
        edits = await self._daemons.join(user_of(grant), wanted)
        return {"environment": dict(edits.environment), "mounts": dict(edits.mounts)}

    async def undo(self, grant: Grant) -> None:
        await self._daemons.leave(user_of(grant))

    def edits(self, grant: Grant, hold: Hold) -> ContainerEdits:
        notes = grant.steps.get(self.name, {})
        if not _shared(hold) or not notes:
            return ContainerEdits()
        return ContainerEdits(
            env=tuple(f"{name}={value}" for name, value in notes["environment"].items()),
            mounts=tuple(
                Mount(host_path=host, container_path=place, options=OPTIONS) for host, place in notes["mounts"].items()
            ),
        )


def user_of(grant: Grant) -> str:
    """Under which name a claim uses a daemon: for messages as well, and no other claim's."""
    return str(grant.holder)


def _shared(hold: Hold) -> bool:
    return hold.mode in MPS_MODES


def _check_one_partition(uses: Sequence[Use], devices: Sequence[DeviceUuid]) -> None:
    """Raise MpsImpossible where a daemon would need a partition and something else: CUDA opens one of them alone."""
    if len(devices) > 1 and any(use.is_part for use in uses):
        raise MpsImpossible(
            f"MPS serves one MIG device, and nothing beside it, and the claim has {', '.join(devices)} "
            "shared by it: ask for each in a claim of its own"
        )


def _share(use: Use, gpu: Gpu) -> float:
    """The part of a GPU's multiprocessors that a device has."""
    own = use.partition.multiprocessors if use.partition is not None else None
    return own / gpu.multiprocessors if own and gpu.multiprocessors else 1.0
