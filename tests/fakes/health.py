"""The health of a node of two GPUs, to be set by a test, and the view of it that all others get."""

from node_agent.kit.latest import Latest
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory
from node_agent.reporting.health import Counts
from node_agent.reporting.health_view import HealthView
from tests.fakes.builders import gpu, inventory, uuid

NODE = "n0"


def xid(code: int = 79, severity: Severity = Severity.WITHDRAWN, since: float = 1000.0) -> Cause:
    return Cause(
        reason=Reason.XID,
        code=code,
        severity=severity,
        since=since,
        message=f"Xid {code}",
        clears="back when the driver asks for no recovery",
    )


def remap(since: float = 2000.0) -> Cause:
    return Cause(reason=Reason.RESET_NEEDED, severity=Severity.DEGRADED, since=since, message="a row waits")


NOT_PROBED = Cause(reason=Reason.NOT_PROBED, severity=Severity.WITHDRAWN, since=0.0, message="not looked at yet")


class Ward:
    """``ail`` says what a GPU suffers from, ``clear`` closes causes as the board does, ``take`` takes a GPU away."""

    def __init__(self, gpus: int = 2) -> None:
        self.inventory: Latest[Inventory] = Latest(inventory([gpu(index) for index in range(gpus)]))
        self.report = Latest(HealthReport())
        self.counts: Counts = {}
        names = {one.uuid: one.name for one in self.inventory.value.gpus}
        self.view = HealthView(
            node=NODE,
            inventory=self.inventory,
            report=self.report,
            names=lambda: names,
            counts=lambda: self.counts,
        )

    def ail(self, index: int, *causes: Cause) -> None:
        self._set(uuid(index), causes)

    def take(self, index: int) -> None:
        left = [one for one in self.inventory.value.gpus if one.uuid != uuid(index)]
        self.inventory.set(inventory(left, generation=self.inventory.value.generation + 1))

    def clear(self, gpu: GpuUuid, reason: Reason | None, code: int | None) -> tuple[Cause, ...]:
        open_causes = self.report.value.known_of(gpu).causes
        closed = tuple(one for one in open_causes if reason in (None, one.reason) and code in (None, one.code))
        self._set(gpu, tuple(one for one in open_causes if one not in closed))
        return closed

    def _set(self, gpu: GpuUuid, causes: tuple[Cause, ...]) -> None:
        self.report.set(HealthReport(devices={**self.report.value.devices, gpu: DeviceHealth(causes=causes)}))
