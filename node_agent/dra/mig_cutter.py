"""Makes and removes partitions for claims, and clears away what no claim has made; ``mig_step`` says when.

A GPU that claims cut is whole while none of them has a piece of it: where MIG is turned on without a reset, the first
piece turns it on and the last one off again. All that is done to one GPU is done one thing after the other, whichever
agent of the node does it.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from node_agent.errors import DeviceHeld, HardwareError, InUse, NotSupported
from node_agent.hardware.provider import Partitioning
from node_agent.kit.alone import alone
from node_agent.kit.logs import Log
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.partition import Instance, Part, Partition, Piece, Place

# Another agent of the node seldom cuts the same GPU at the same time, and a pod waits for this one.
LOOK_SECONDS = 0.05

log = Log(__name__)


class Cutter:
    """Cuts GPUs on demand. ``held`` are the places that somebody has, ``changed`` is told after each change.

    ``sweeps`` says whether what no claim has made may be removed; what processes run on never is. ``removed`` is told
    of each instance that is no more, by the driver's id. ``locks`` is a folder that all agents of the node share.
    """

    def __init__(
        self,
        partitioning: Partitioning,
        *,
        held: Callable[[], Awaitable[Collection[Place]]],
        sweeps: Callable[[], bool],
        changed: Callable[[], object],
        removed: Callable[[GpuUuid, int], object],
        locks: Path,
    ) -> None:
        self._partitioning = partitioning
        self._held = held
        self._sweeps = sweeps
        self._changed = changed
        self._removed = removed
        self._locks = locks
        self._turns: dict[GpuUuid, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Those whose MIG mode is on whatever the last look at them said.
        self._cut: set[GpuUuid] = set()

    async def make(self, gpu: Gpu, part: Part) -> Partition:
        """Make a partition exactly there; one that is there already, left by a call that died, is as good.

        Raises:
            DeviceHeld: something lies in the way that no claim has made, and that is not to be removed.
            InUse: MIG cannot be turned on while something uses the GPU.
            NotSupported: it cannot be turned on without a reset.
            HardwareError: the driver refuses.
        """
        piece = Piece(profile=part.profile, placement=part.placement)
        async with self._turn(gpu):
            lying = await self._partitioning.instances(gpu.uuid)
            made = next((one for one in lying if one.piece == piece), None)
            if made is None:
                await self._make_room(gpu, lying, piece)
                made = await self._partitioning.create(gpu.uuid, piece)
                self._changed()
                log.info("partition made", gpu=gpu.name, partition=piece, uuid=made.partitions[0].uuid)
            return made.partitions[0]

    async def remove(self, gpu: Gpu, part: Part) -> None:
        """Remove a partition; none is fine. Raises InUse while processes run on it, HardwareError."""
        async with self._turn(gpu):
            lying = await self._partitioning.instances(gpu.uuid)
            if lying:
                self._cut.add(gpu.uuid)
            for one in (one for one in lying if _is(one, part)):
                await self._destroy(gpu, one)
            if all(_is(one, part) for one in lying):
                await self._rest(gpu, but=Place(gpu=gpu.uuid, part=part))

    async def keep_whole(self, gpu: Gpu) -> None:
        """See that a GPU can be used as a whole.

        Raises DeviceHeld while something lies on it, InUse where MIG cannot be turned off yet, HardwareError.
        """
        if not gpu.partitioned and gpu.uuid not in self._cut:
            return
        async with self._turn(gpu):
            if left := await self._swept(gpu, await self._partitioning.instances(gpu.uuid)):
                raise DeviceHeld(f"{gpu.name} is cut: there is {_said(left)}, which no claim has made")
            await self._set(gpu, on=False)

    async def sweep(self, gpu: Gpu) -> frozenset[Place]:
        """Remove what no claim has made, and turn MIG off where nothing is left; answers the places of what stays."""
        async with self._turn(gpu):
            lying = await self._partitioning.instances(gpu.uuid)
            left = await self._swept(gpu, lying)
            if not left and len(strays(lying, await self._held())) == len(lying):
                await self._rest(gpu)
            return frozenset(map(place_of, left))

    @asynccontextmanager
    async def _turn(self, gpu: Gpu) -> AsyncIterator[None]:
        # Who else has a piece of it, and what is done for that reason, have to be one.
        async with self._turns[gpu.uuid], alone(self._locks / f"cut-{gpu.name}.lock", every=LOOK_SECONDS):
            yield

    async def _make_room(self, gpu: Gpu, lying: Sequence[Instance], piece: Piece) -> None:
        left = await self._swept(gpu, lying)
        # In this claim's own place, and not what it shall be: half made by a call that died.
        for one in (one for one in lying if (one.profile, one.placement) == (piece.profile, piece.placement)):
            await self._destroy(gpu, one)
        if blocking := [one for one in left if one.placement.overlaps(piece.placement)]:
            raise DeviceHeld(
                f"{gpu.name}: there is {_said(blocking)} where {piece} is to be, and no claim has made it: "
                "end what runs on it, remove it with nvidia-smi mig -dci and -dgi, or set agent.mig.sweep"
            )
        if not lying:
            await self._set(gpu, on=True)

    async def _swept(self, gpu: Gpu, lying: Sequence[Instance]) -> list[Instance]:
        """What stays, after as much was removed as may be, of what no claim has made."""
        left = []
        # Asked for after the GPU was: whoever has made something since has held it before that.
        for one in strays(lying, await self._held()):
            # What is half made is of no use to anybody.
            if one.partitions and (one.busy or not self._sweeps()):
                left.append(one)
                continue
            try:
                await self._destroy(gpu, one)
            except InUse:
                left.append(one)
            else:
                log.warning("partition that no claim has made removed", gpu=gpu.name, partition=one.piece)
        return left

    async def _destroy(self, gpu: Gpu, one: Instance) -> None:
        await self._partitioning.destroy(gpu.uuid, one.piece)
        self._removed(gpu.uuid, one.id)
        self._changed()
        log.info("partition removed", gpu=gpu.name, partition=one.piece)

    async def _rest(self, gpu: Gpu, but: Place | None = None) -> None:
        """Make a GPU whole again of which nothing is left, unless a claim is about to have a piece of it."""
        awaited = [one for one in await self._held() if one.gpu == gpu.uuid and one.part is not None and one != but]
        if awaited or not gpu.resetless or not (gpu.partitioned or gpu.uuid in self._cut):
            return
        try:
            await self._set(gpu, on=False)
        except HardwareError as error:
            # Whoever needs it as a whole asks again, and so does the next sweep.
            log.warning("MIG stays on for now", gpu=gpu.name, reason=error)

    async def _set(self, gpu: Gpu, *, on: bool) -> None:
        way = "on" if on else "off"
        if not gpu.resetless:
            if gpu.partitioned is not on:
                raise NotSupported(f"{gpu.name}: MIG cannot be turned {way} without a reset of the GPU")
            return
        mode = await self._partitioning.set_mode(gpu.uuid, on)
        if mode.active is not on:
            # A change that waits would come when nobody wants it any more.
            await self._partitioning.set_mode(gpu.uuid, not on)
            raise InUse(f"{gpu.name}: MIG cannot be turned {way} while something uses the GPU")
        (self._cut.add if on else self._cut.discard)(gpu.uuid)
        self._changed()


def strays(lying: Iterable[Instance], held: Collection[Place]) -> list[Instance]:
    """The instances that are none of those that claims hold."""
    return [one for one in lying if not any(place.gpu == one.gpu and _is(one, place.part) for place in held)]


def place_of(one: Instance) -> Place:
    """What an instance takes of its GPU."""
    return Place(gpu=one.gpu, part=Part(profile=one.profile, placement=one.placement))


def _is(one: Instance, part: Part | None) -> bool:
    return part is not None and (one.profile, one.placement) == part.instance


def _said(instances: Iterable[Instance]) -> str:
    return ", ".join(str(one.piece) for one in instances)
