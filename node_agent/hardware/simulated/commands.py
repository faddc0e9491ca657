"""The commands that a simulated node takes from outside its process: one structure each, strictly read from JSON.

``{"command": "xid", "gpu": "2", "code": 79}`` names the structure and fills its fields; each structure calls the method
of ``Faults`` that does it. How they travel is in ``control``.
"""

import uuid
from typing import Annotated

import msgspec

from node_agent.errors import SimulationError
from node_agent.hardware.simulated.faults import Faults, GpuSelector
from node_agent.hardware.simulated.gpu import Process

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command"):
    """Base of all commands."""

    def apply(self, faults: Faults) -> None:
        raise NotImplementedError


class Xid(Command, frozen=True, kw_only=True, tag="xid"):
    gpu: GpuSelector
    code: int
    instance: int | None = None
    compute_instance: int | None = None

    def apply(self, faults: Faults) -> None:
        faults.xid(self.gpu, self.code, instance=self.instance, compute_instance=self.compute_instance)


class LoseGpu(Command, frozen=True, kw_only=True, tag="lose-gpu"):
    gpu: GpuSelector
    xid: bool = False

    def apply(self, faults: Faults) -> None:
        faults.lose(self.gpu, xid=self.xid)


class RestoreGpu(Command, frozen=True, kw_only=True, tag="restore-gpu"):
    gpu: GpuSelector

    def apply(self, faults: Faults) -> None:
        faults.restore(self.gpu)


class UnplugGpu(Command, frozen=True, kw_only=True, tag="unplug-gpu"):
    gpu: GpuSelector

    def apply(self, faults: Faults) -> None:
        faults.unplug(self.gpu)


class PlugGpu(Command, frozen=True, kw_only=True, tag="plug-gpu"):
    gpu: GpuSelector

    def apply(self, faults: Faults) -> None:
        faults.plug(self.gpu)


class RecoveryAction(Command, frozen=True, kw_only=True, tag="recovery-action"):
    gpu: GpuSelector
    action: str

    def apply(self, faults: Faults) -> None:
        faults.recovery_action(self.gpu, self.action)


class Load(Command, frozen=True, kw_only=True, tag="load"):
    gpu: GpuSelector
    load: float

    def apply(self, faults: Faults) -> None:
        faults.load(self.gpu, self.load)


class StartProcess(Command, frozen=True, kw_only=True, tag="start-process"):
    """``memory`` is in bytes."""

    gpu: GpuSelector
    pid: Positive
    kind: str = "compute"
    memory: NotNegative | None = None
    instance: NotNegative | None = None
    compute_instance: NotNegative | None = None

    def apply(self, faults: Faults) -> None:
        process = Process(
            pid=self.pid,
            kind=self.kind,
            memory=self.memory,
            instance=self.instance,
            compute_instance=self.compute_instance,
        )
        faults.start_process(self.gpu, process)


class StopProcess(Command, frozen=True, kw_only=True, tag="stop-process"):
    gpu: GpuSelector
    pid: Positive

    def apply(self, faults: Faults) -> None:
        faults.stop_process(self.gpu, self.pid)


class Ecc(Command, frozen=True, kw_only=True, tag="ecc"):
    gpu: GpuSelector
    kind: str
    count: Positive = 1
    location: str = "dram"

    def apply(self, faults: Faults) -> None:
        faults.ecc(self.gpu, self.kind, self.count, location=self.location)


class RemapRows(Command, frozen=True, kw_only=True, tag="remap-rows"):
    gpu: GpuSelector
    correctable: NotNegative | None = None
    uncorrectable: NotNegative | None = None
    pending: bool | None = None
    failure: bool | None = None
    spent: dict[str, NotNegative] | None = None

    def apply(self, faults: Faults) -> None:
        faults.remap_rows(
            self.gpu,
            correctable=self.correctable,
            uncorrectable=self.uncorrectable,
            pending=self.pending,
            failure=self.failure,
            spent=self.spent,
        )


class RetirePages(Command, frozen=True, kw_only=True, tag="retire-pages"):
    gpu: GpuSelector
    cause: str
    addresses: tuple[NotNegative, ...]
    pending: bool = True

    def apply(self, faults: Faults) -> None:
        faults.retire_pages(self.gpu, self.cause, self.addresses, pending=self.pending)


class LinkState(Command, frozen=True, kw_only=True, tag="link"):
    gpu: GpuSelector
    link: int
    up: bool

    def apply(self, faults: Faults) -> None:
        faults.link(self.gpu, self.link, up=self.up)


class LinkErrors(Command, frozen=True, kw_only=True, tag="link-errors"):
    gpu: GpuSelector
    link: int
    counter: str
    count: Positive = 1

    def apply(self, faults: Faults) -> None:
        faults.link_errors(self.gpu, self.link, self.counter, self.count)


class FabricChange(Command, frozen=True, kw_only=True, tag="fabric"):
    gpu: GpuSelector | None = None
    state: str | None = None
    status: str | int | None = None
    summary: str | None = None
    health_mask: NotNegative | None = None
    clique: NotNegative | None = None
    cluster: uuid.UUID | None = None

    def apply(self, faults: Faults) -> None:
        faults.fabric(
            self.gpu,
            state=self.state,
            status=self.status,
            summary=self.summary,
            health_mask=self.health_mask,
            clique=self.clique,
            cluster=self.cluster,
        )


class Fail(Command, frozen=True, kw_only=True, tag="fail"):
    call: str
    code: str | int
    gpu: GpuSelector | None = None
    times: Positive | None = None

    def apply(self, faults: Faults) -> None:
        faults.fail(self.call, self.code, gpu=self.gpu, times=self.times)


class Hang(Command, frozen=True, kw_only=True, tag="hang"):
    call: str
    seconds: Seconds
    gpu: GpuSelector | None = None
    times: Positive | None = None

    def apply(self, faults: Faults) -> None:
        faults.hang(self.call, self.seconds, gpu=self.gpu, times=self.times)


class Clear(Command, frozen=True, kw_only=True, tag="clear"):
    def apply(self, faults: Faults) -> None:
        faults.clear()


class DriverState(Command, frozen=True, kw_only=True, tag="driver"):
    state: str
    version: str | None = None

    def apply(self, faults: Faults) -> None:
        faults.driver(self.state, version=self.version)


COMMANDS: dict[str, type[Command]] = {
    str(kind.__struct_config__.tag): kind for kind in sorted(Command.__subclasses__(), key=lambda kind: kind.__name__)
}


def parse(request: object) -> Command:
    """Read a decoded JSON object; SimulationError says what is wrong and what would be right."""
    name = request.get("command") if isinstance(request, dict) else None
    if name not in COMMANDS:
        raise SimulationError(f"no command is {name!r}; there are {', '.join(sorted(COMMANDS))}")
    kind = COMMANDS[name]
    try:
        return msgspec.convert(request, kind)
    except msgspec.ValidationError as error:
        fields = ", ".join(field.name + ("" if field.required else "?") for field in msgspec.structs.fields(kind))
        raise SimulationError(f"{name}: {error}; its fields are {fields or 'none'}") from error
