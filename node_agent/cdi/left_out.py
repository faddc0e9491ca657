"""What a spec lacks, and why: reported once by whoever asked for the spec, never a reason to fail."""

from msgspec import Struct

from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import PartitionUuid


class LeftOut(Struct, frozen=True, kw_only=True):
    """``what`` is a file, node or name that is not in the spec.

    ``gpu`` or ``partition`` is what cannot be used because of that.
    """

    what: str
    why: str
    gpu: GpuUuid | None = None
    partition: PartitionUuid | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"
