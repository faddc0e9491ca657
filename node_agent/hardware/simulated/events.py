"""Event sets: what the driver reports by itself, queued until somebody waits for it.

The C functions on top are in ``library/events``; ``faults`` is where events come from.
"""

from collections import deque

import pynvml
from msgspec import Struct, field

from node_agent.hardware.simulated.gpu import SimulatedGpu

# What NVML puts in place of an instance id where an event or a process belongs to the whole GPU.
NO_INSTANCE = 0xFFFFFFFF


class Event(Struct, frozen=True, kw_only=True):
    """``type`` is one NVML event bit; ``data`` the Xid, or 0."""

    gpu: SimulatedGpu
    type: int
    data: int = 0
    instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class EventSet(Struct, kw_only=True, eq=False):
    """``masks`` holds the event bits asked for of each registered GPU."""

    masks: dict[SimulatedGpu, int] = field(default_factory=dict)
    queue: deque[Event] = field(default_factory=deque)

    def register(self, gpu: SimulatedGpu, mask: int) -> None:
        self.masks[gpu] = self.masks.get(gpu, 0) | mask

    def offer(self, event: Event) -> None:
        if self.masks.get(event.gpu, 0) & event.type:
            self.queue.append(event)

    @property
    def has_lost(self) -> bool:
        """Whether a registered GPU is gone; the driver never says which."""
        return not all(gpu.reachable for gpu in self.masks)


def supported_events(gpu: SimulatedGpu) -> int:
    """The event bits that a GPU can report."""
    board = gpu.board
    # Xids are reported by every board that reports anything; guests that report nothing refuse to register at all.
    mask: int = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypePState | pynvml.nvmlEventTypeClock
    if board.ecc:
        mask |= pynvml.nvmlEventTypeSingleBitEccError | pynvml.nvmlEventTypeDoubleBitEccError
    if board.mig:
        mask |= pynvml.nvmlEventMigConfigChange
    if board.recovery_action:
        mask |= pynvml.nvmlEventTypeGpuRecoveryAction
    return mask
