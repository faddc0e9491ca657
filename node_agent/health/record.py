"""What the next agent has to know of the GPUs' health, in a file: a fault that is not over is not forgotten.

``HealthFile`` blocks; ``HealthRecorder`` follows the board and writes on a lane.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from node_agent.health.chart import Chart, Course
from node_agent.kit.files import abandoned, keep_aside, write_atomic
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kit.sealed import seal, unseal
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, Instance, Reason

VERSION = 1

# A write is at once, the next one so much later: Xids may come by the thousand, and each is counted.
REST_SECONDS = 1.0
RETRY_SECONDS = 10.0
END_SECONDS = 3.0

log = Log(__name__)

Charts = Mapping[GpuUuid, Chart]


class _Course(Struct, frozen=True, kw_only=True):
    """The course of the trouble with this key."""

    reason: Reason
    code: int | None = None
    instance: Instance | None = None
    opened: tuple[float, ...] = ()
    boot: str | None = None


class _Gpu(Struct, frozen=True, kw_only=True):
    """A chart as the file has it."""

    uuid: GpuUuid
    causes: tuple[Cause, ...] = ()
    courses: tuple[_Course, ...] = ()
    counts: Mapping[int, int] = msgspec.field(default_factory=dict)
    gone: float | None = None


class _Payload(Struct, frozen=True, kw_only=True):
    gpus: tuple[_Gpu, ...] = ()


def encode(charts: Charts) -> bytes:
    """The content of the file; GPUs of which there is nothing to tell are left out."""
    gpus = tuple(_written(uuid, chart) for uuid, chart in charts.items() if replace(chart, gone=None) != Chart())
    return seal(msgspec.json.encode(_Payload(gpus=gpus)), VERSION)


def decode(content: bytes) -> Charts:
    """The charts that the content of a file tells. Raises ValueError where it is not what was written."""
    payload = msgspec.json.decode(unseal(content, VERSION), type=_Payload)
    return {gpu.uuid: _read(gpu) for gpu in payload.gpus}


def _written(uuid: GpuUuid, chart: Chart) -> _Gpu:
    courses = (
        _Course(reason=reason, code=code, instance=instance, opened=course.opened, boot=course.boot)
        for (reason, code, instance), course in chart.courses.items()
    )
    return _Gpu(uuid=uuid, causes=chart.causes, courses=tuple(courses), counts=chart.counts, gone=chart.gone)


def _read(gpu: _Gpu) -> Chart:
    courses = {(one.reason, one.code, one.instance): Course(opened=one.opened, boot=one.boot) for one in gpu.courses}
    return Chart(causes=gpu.causes, courses=courses, counts=gpu.counts, gone=gpu.gone)


class HealthFile:
    """The file at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Charts:
        """The charts of an earlier agent. A damaged file is set aside, and all that it knew has to be found again."""
        for left in abandoned(self.path.parent, self.path.name):
            left.unlink(missing_ok=True)
        try:
            return decode(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            aside = self._set_aside()
            log.error("faults of the past are lost and have to be found again", file=self.path, reason=error, **aside)
            return {}

    def save(self, charts: Charts) -> None:
        """Make these the charts that survive. Raises OSError."""
        write_atomic(self.path, encode(charts), mode=0o600)

    def _set_aside(self) -> Mapping[str, object]:
        try:
            return {"aside": keep_aside(self.path)}
        except OSError as error:
            return {"aside": f"none: {error}"}


class HealthRecorder:
    """A service: keeps ``file`` as the board's ``record`` is. What cannot be written is tried again."""

    def __init__(self, *, file: HealthFile, record: Latest[Charts], lane: Lane) -> None:
        self._file = file
        self._record = record
        self._lane = lane
        self._kept = record.value
        self._trouble = Steady()

    async def run(self) -> None:
        """Write until cancelled, and then what is still to be written."""
        try:
            async for _ in changes(self._record):
                while self._record.value != self._kept:
                    await asyncio.sleep(REST_SECONDS if await self._keep() else RETRY_SECONDS)
        finally:
            if self._record.value != self._kept:
                # A disk that hangs must not hold up the end of the agent.
                async with asyncio.timeout(END_SECONDS):
                    await self._keep()

    async def _keep(self) -> bool:
        charts = self._record.value
        try:
            await self._lane.run("keep the record of health", lambda: self._file.save(charts))
        except OSError as error:
            if self._trouble.should_say(error.strerror or str(error)):
                log.error("faults are not kept over a restart", file=self._file.path, reason=error)
            return False
        self._kept = charts
        self._trouble.clear()
        return True
