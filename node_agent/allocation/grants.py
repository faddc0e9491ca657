"""Grants as values: which devices somebody holds, and how far they are made usable. ``ledger`` keeps them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import Part, Place

Notes = Mapping[str, Any]
"""What a step has to remember for its undo: plain data that JSON can hold."""


class Door(StrEnum):
    """The front door through which devices were asked for: a ResourceClaim, or limits of a container.

    LAYOUT is none of the two: what is held so is kept from both, since the agent is cutting it anew.
    """

    CLAIM = "claim"
    LIMIT = "limit"
    LAYOUT = "layout"


FRONT_DOORS = frozenset({Door.CLAIM, Door.LIMIT})
"""The doors whose holders others know of as well: the API server, and the kubelet."""


class State(StrEnum):
    """How far a grant is: what is not ``PREPARED`` is held all the same, and has to be prepared (again) before use."""

    PREPARING = "preparing"
    PREPARED = "prepared"


class Holder(Struct, frozen=True, kw_only=True):
    """Who holds. A claim: its UID and ``namespace/name``. A limit: ``resource/device id`` and the resource.

    A change of layout: what it changes, and the name of the layout.
    """

    door: Door
    id: str
    name: str

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError(f"a holder needs an id: {self.door} {self.name}")

    def __str__(self) -> str:
        return f"{self.door} {self.name} ({self.id})"


class Hold(Struct, frozen=True, kw_only=True):
    """One device of a grant, by the name that it is offered under, and the GPUs that it stands for; or the ``part``.

    ``share_id`` tells the shares of one device apart. Who has ``admin`` access looks at a device and takes it from
    nobody. ``mode`` says, for people, how the GPUs have to be set for it; empty where they may be as they are.
    ``request`` and ``pool`` are the claim's. ``cdi_ids`` are there once the device is usable.
    """

    device: str
    gpus: tuple[GpuUuid, ...]
    part: Part | None = None
    request: str = ""
    pool: str = ""
    share_id: str | None = None
    admin: bool = False
    mode: str = ""
    cdi_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.gpus or len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"{self.device}: a hold is of one GPU or of several different ones, not of {self.gpus}")
        if self.part is not None and len(self.gpus) > 1:
            raise ValueError(f"{self.device}: a part is of one GPU, not of {self.gpus}")

    @property
    def places(self) -> tuple[Place, ...]:
        """What is taken of the hardware."""
        return tuple(Place(gpu=gpu, part=self.part) for gpu in self.gpus)

    @property
    def unprepared(self) -> "Hold":
        """What is held, whether it is usable or not."""
        return replace(self, cdi_ids=()) if self.cdi_ids else self


class Grant(Struct, frozen=True, kw_only=True):
    """What one holder has. The ledger sets ``boot_id`` and ``since`` (wall-clock seconds).

    ``steps`` are the steps of preparation that have begun, in their order, each with its notes: all that has to be
    undone, whatever happens to the process that began them.
    """

    holder: Holder
    holds: tuple[Hold, ...]
    state: State = State.PREPARING
    boot_id: str = ""
    since: float = 0.0
    steps: Mapping[str, Notes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.holds:
            raise ValueError(f"{self.holder} holds nothing")

    def same_hardware(self, other: "Grant") -> bool:
        """True where both are for the same devices, on the same GPUs, in the same way."""
        return [hold.unprepared for hold in self.holds] == [hold.unprepared for hold in other.holds]

    @property
    def unprepared(self) -> "Grant":
        """The same grant, to be prepared (again)."""
        return replace(self, state=State.PREPARING, holds=tuple(hold.unprepared for hold in self.holds))


class Books(Struct, frozen=True, kw_only=True):
    """All grants, by the id of their holder.

    ``unreconciled`` are the doors whose holders are not known for sure, since the record of them is new or was lost.
    """

    grants: Mapping[str, Grant] = field(default_factory=dict)
    unreconciled: frozenset[Door] = frozenset()
