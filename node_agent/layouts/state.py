"""What came of a layout that was asked for, for all who tell of it: values."""

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct

from node_agent.model.gpu import DeviceName


class Phase(StrEnum):
    """How far a layout is, in the words of NVIDIA's label: pending also while it waits for somebody to end."""

    SUCCESS = "success"
    PENDING = "pending"
    FAILED = "failed"


class GpuChange(Struct, frozen=True, kw_only=True):
    """One GPU on its way to the layout.

    ``waits`` says what for, ``trouble`` what went wrong; ``done`` are the steps that were taken in the last try, and
    ``undone`` those that took it back.
    """

    gpu: DeviceName
    phase: Phase
    waits: str = ""
    trouble: str = ""
    done: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()

    def __str__(self) -> str:
        undone = f"undone again: {', '.join(self.undone)}" if self.undone else ""
        waits = f"waits: {self.waits}" if self.waits else ""
        return f"{self.gpu}: {'; '.join(filter(None, (self.trouble, undone, waits)))}"


class LayoutState(Struct, frozen=True, kw_only=True):
    """Where the node is with the layout ``name`` that ``source`` asks for.

    ``trouble`` is what concerns the whole node. ``owner`` is who cuts this node's GPUs in the agent's place.
    """

    name: str
    source: str
    phase: Phase = Phase.PENDING
    gpus: tuple[GpuChange, ...] = ()
    trouble: str = ""
    owner: str = ""

    @property
    def reasons(self) -> Iterator[str]:
        """Why it is not done, one line for each thing."""
        if self.trouble:
            yield self.trouble
        yield from (str(one) for one in self.gpus if one.phase is not Phase.SUCCESS)


def node_phase(gpus: tuple[GpuChange, ...]) -> Phase:
    """How far the node is: as far as the GPU that is worst off."""
    phases = {one.phase for one in gpus}
    return next((phase for phase in (Phase.FAILED, Phase.PENDING) if phase in phases), Phase.SUCCESS)
