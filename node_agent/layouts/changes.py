"""One GPU's way to what is wanted of it, step by step, and back where a step fails."""

from collections.abc import Awaitable, Callable, Iterable

from msgspec import Struct

from node_agent.errors import HardwareError, InUse
from node_agent.hardware.provider import Partitioning
from node_agent.kit.logs import Log
from node_agent.layouts.reserved import Before, Reserved
from node_agent.layouts.state import GpuChange, Phase
from node_agent.layouts.usage import cut_gpu, is_pending
from node_agent.model.gpu import Gpu, GpuUuid, PartitionMode
from node_agent.model.inventory import Inventory
from node_agent.partition.plan import Action, Step, steps_to

log = Log(__name__)


class Changer(Struct, frozen=True, kw_only=True):
    """Carries steps out. ``look`` has the inventory looked at anew: only then do the front doors get GPUs back."""

    partitioning: Partitioning
    reserved: Reserved
    look: Callable[[], Awaitable[Inventory]]

    async def carry_out(
        self, gpu: Gpu, steps: Iterable[Step], before: Before, goes_on: Callable[[], bool], *, wait: bool = True
    ) -> GpuChange:
        """Take steps that have been begun, as long as it ``goes_on``; where one fails, undo what was done.

        What is held stays so where the mode waits for a reset or, if one may ``wait``, for processes that nobody was
        given the GPU for; and where it does not go on.
        """
        done: list[str] = []
        for step in steps:
            if not goes_on():
                return await self._pending(gpu, "another layout is wanted", done)
            try:
                mode = await self._take(gpu, step)
            except InUse as error:
                if not wait or step.piece is not None:
                    return await self._failed(gpu, step, error, before, tuple(done))
                return await self._pending(gpu, f"cannot {step}: {error}", done)
            except HardwareError as error:
                return await self._failed(gpu, step, error, before, tuple(done))
            done.append(str(step))
            if mode is not None and is_pending(mode):
                waits = f"MIG is {mode}: end what uses the GPU, or reset it (nvidia-smi --gpu-reset)"
                return await self._pending(gpu, waits, done)
        await self._give_back(gpu.uuid)
        return GpuChange(gpu=gpu.name, phase=Phase.SUCCESS, done=tuple(done))

    async def _pending(self, gpu: Gpu, waits: str, done: Iterable[str]) -> GpuChange:
        """Seen as it is by now: what goes on from here may hold less, and nobody must be given what was removed."""
        await self.look()
        return GpuChange(gpu=gpu.name, phase=Phase.PENDING, waits=waits, done=tuple(done))

    async def go_back(self, gpu: Gpu, before: Before) -> GpuChange:
        """Lead a GPU back to what it was before a change that is not wanted any more, and give it back."""
        undone, trouble = await self._undo(gpu, before)
        return GpuChange(
            gpu=gpu.name, phase=Phase.FAILED if trouble else Phase.SUCCESS, trouble=trouble, undone=tuple(undone)
        )

    async def _failed(
        self, gpu: Gpu, step: Step, error: HardwareError, before: Before, done: tuple[str, ...]
    ) -> GpuChange:
        log.error("layout step failed", gpu=gpu.name, step=str(step), reason=error)
        undone, trouble = await self._undo(gpu, before)
        why = "; ".join(filter(None, (f"cannot {step}: {error}", trouble)))
        if isinstance(error, InUse) and not trouble:
            return GpuChange(gpu=gpu.name, phase=Phase.PENDING, waits=why, done=done, undone=tuple(undone))
        return GpuChange(gpu=gpu.name, phase=Phase.FAILED, trouble=why, done=done, undone=tuple(undone))

    async def _undo(self, gpu: Gpu, before: Before) -> tuple[list[str], str]:
        """Back to what was there before; the steps of that, and what could not be undone."""
        undone: list[str] = []
        inventory = await self.look()
        now = inventory.by_uuid.get(gpu.uuid)
        if now is None or gpu.uuid in inventory.unlisted:
            await self.reserved.release(gpu.uuid)
            return undone, f"nothing could be undone: {inventory.unlisted.get(gpu.uuid, 'the GPU is gone')}"
        cut = cut_gpu(now, inventory.profiles.get(gpu.uuid, ()), inventory.instances.get(gpu.uuid, ()))
        trouble = ""
        for step in steps_to(cut.state, before.pieces, enabled=before.enabled):
            try:
                await self._take(now, step)
            except HardwareError as error:
                trouble = f"what was done could not be undone: cannot {step}: {error}"
                log.error("layout step cannot be undone", gpu=gpu.name, step=str(step), reason=error)
                break
            undone.append(str(step))
        await self._give_back(gpu.uuid)
        return undone, trouble

    async def _take(self, gpu: Gpu, step: Step) -> PartitionMode | None:
        """Take one step; the mode where it is about that."""
        log.info("layout step", gpu=gpu.name, step=str(step))
        if step.piece is None:
            return await self.partitioning.set_mode(gpu.uuid, step.action is Action.ENABLE)
        if step.action is Action.CREATE:
            await self.partitioning.create(gpu.uuid, step.piece)
        else:
            await self.partitioning.destroy(gpu.uuid, step.piece)
        return None

    async def _give_back(self, gpu: GpuUuid) -> None:
        """Let the front doors have it again, once they see it as it is."""
        await self.look()
        await self.reserved.release(gpu)
