"""The agent's own metrics, by Prometheus' client library: what it does, and what it knows beyond a GPU's figures.

Loaded at the first scrape: an agent that nobody scrapes does without the library.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric
from prometheus_client import generate_latest as as_text
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.process_collector import ProcessCollector

from node_agent.allocation.grants import Grant
from node_agent.model.gpu import GpuUuid
from node_agent.reporting.metrics.devices import Device, device_labels
from node_agent.reporting.metrics.families import Number
from node_agent.reporting.metrics.sources import Sources
from node_agent.reporting.status import Status
from node_agent.telemetry.catalogue import INSTRUMENTS
from node_agent.telemetry.instruments import BUCKETS, Count, Instrument, Timing

Rows = Iterable[tuple[tuple[str, ...], Number]]
"""Values of labels, and the value."""


class Own(Struct, frozen=True, kw_only=True):
    """One family: ``rows`` makes its series of what is known at a scrape."""

    name: str
    help: str
    rows: Callable[["View"], Rows]
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")

    def metric(self, view: "View") -> Metric:
        family = (CounterMetricFamily if self.is_counter else GaugeMetricFamily)(
            self.name, self.help, labels=self.labels
        )
        for labels, value in self.rows(view):
            family.add_metric(labels, value)
        return family


class View(Struct, frozen=True, kw_only=True):
    """All that is known at one scrape; ``gpus`` are those that are here and those that are gone, with their index."""

    sources: Sources
    status: Status
    devices: tuple[Device, ...]
    gpus: Mapping[GpuUuid, str]


class OwnMetrics:
    """Renders them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._view: View | None = None
        self._gpus: Mapping[GpuUuid, str] = {}

    def collect(self) -> Iterator[Metric]:
        """What the library asks for."""
        if self._view is not None:
            yield from (own.metric(self._view) for own in OWN)
            yield from map(_of_instrument, INSTRUMENTS)

    def text(self, sources: Sources, status: Status, devices: tuple[Device, ...], *, openmetrics: bool) -> str:
        self._gpus = _known_gpus(sources, self._gpus)
        self._view = View(sources=sources, status=status, devices=devices, gpus=self._gpus)
        try:
            return (as_openmetrics if openmetrics else as_text)(self._registry).decode()
        finally:
            self._view = None


def _known_gpus(sources: Sources, before: Mapping[GpuUuid, str]) -> Mapping[GpuUuid, str]:
    """The GPUs by their index. One that is gone keeps its last: its series must not end when it is lost."""
    found = sources.inventory.value
    here = {gpu.uuid: str(gpu.index) for gpu in found.gpus}
    last = {one.uuid: str(one.index) for one in found.missing if one.uuid is not None} | dict(before)
    return {**here, **{gpu: last.get(gpu, "") for gpu in sources.report.value.devices if gpu not in here}}


def _of_instrument(instrument: Instrument) -> Metric:
    if isinstance(instrument, Timing):
        timing = HistogramMetricFamily(instrument.name, instrument.help, labels=instrument.labels)
        for labels, times in instrument.values.items():
            bounds = [*map(str, BUCKETS), "+Inf"]
            reached = [sum(times.buckets[: number + 1]) for number in range(len(bounds))]
            timing.add_metric(labels, list(zip(bounds, reached, strict=True)), times.seconds)
        return timing
    assert isinstance(instrument, Count)
    count = CounterMetricFamily(instrument.name, instrument.help, labels=instrument.labels)
    for labels, value in instrument.values.items():
        count.add_metric(labels, value)
    return count


def _one(value: Callable[[View], Number]) -> Callable[[View], Rows]:
    return lambda view: [((), value(view))]


def _counted(keys: Iterable[tuple[str, ...]]) -> Rows:
    return Counter(keys).items()


def _unhealthy(view: View) -> Rows:
    report, found = view.sources.report.value, view.sources.inventory.value
    for gpu, index in view.gpus.items():
        yield (index, gpu), int(gpu not in found.by_uuid or report.of(gpu).withdrawn)
    # One that could never be read has no name but its place.
    yield from (((str(one.index), one.uuid or ""), 1) for one in found.missing if one.uuid not in view.gpus)


def _causes(view: View) -> Rows:
    report = view.sources.report.value
    found = {
        (index, gpu, cause.reason.value, cause.severity.name.lower(), "" if cause.code is None else str(cause.code))
        for gpu, index in view.gpus.items()
        for cause in report.of(gpu).causes
    }
    return [(labels, 1) for labels in sorted(found)]


def _xids(view: View) -> Rows:
    counts = view.sources.counts()
    return [((view.gpus[gpu], gpu, str(code)), count) for (gpu, code), count in counts.items() if gpu in view.gpus]


def _unread(view: View) -> Rows:
    failed = {
        (str(device.gpu.index), device.gpu.uuid, name)
        for device in view.devices
        for name in (*device.look.readings.failed, *device.figures.failed)
    }
    return [(labels, 1) for labels in sorted(failed)]


def _resources(view: View) -> Rows:
    for one in view.status.resources:
        yield (one.name, "healthy"), one.healthy
        yield (one.name, "unhealthy"), one.devices - one.healthy


def _grants(view: View) -> Rows:
    grants: Mapping[str, Grant] = view.sources.grants.value
    return _counted((grant.holder.door.value,) for grant in grants.values())


HOLDER_LABELS = ("gpu", "UUID", "GPU_I_PROFILE", "GPU_I_ID", "share", "door", "of", "namespace", "pod", "container")


def _holders(view: View) -> Rows:
    found = {}
    for device in view.devices:
        labels = device_labels(device)
        own = tuple(labels[name] for name in HOLDER_LABELS[:4])
        for holding, pod in device.containers:
            held = (holding.hold.share_id or "", holding.holder.door.value, holding.holder.name)
            found[(*own, *held, pod.namespace, pod.pod, pod.container)] = 1
    return found.items()


def _config(name: str) -> Callable[[View], Rows]:
    def rows(view: View) -> Rows:
        config = view.status.config
        return [] if config is None else [((), getattr(config, name))]

    return rows


def _config_trouble(view: View) -> Rows:
    config = view.status.config
    return [] if config is None else [((), int(config.trouble is not None))]


OWN: tuple[Own, ...] = (
    Own(
        name="node_agent_build_info",
        help="The agent's version.",
        labels=("version",),
        rows=lambda view: [((view.status.version,), 1)],
    ),
    Own(
        name="node_agent_driver_info",
        help="The driver's version, and the CUDA version that it serves.",
        labels=("version", "cuda"),
        rows=lambda view: [((view.status.driver or "", view.status.cuda or ""), 1)],
    ),
    Own(
        name="node_agent_ready",
        help="Whether the agent can do its work.",
        rows=_one(lambda view: int(view.status.ready)),
    ),
    Own(
        name="node_agent_gpus",
        help="GPUs that can be read.",
        rows=_one(lambda view: len(view.sources.inventory.value.gpus)),
    ),
    Own(
        name="node_agent_gpus_missing",
        help="GPUs that the driver counts and that cannot be read.",
        rows=_one(lambda view: len(view.sources.inventory.value.missing)),
    ),
    Own(
        name="node_agent_gpu_unhealthy",
        help="Whether a GPU is out of service or gone at this moment.",
        labels=("gpu", "UUID"),
        rows=_unhealthy,
    ),
    Own(
        name="node_agent_gpu_health_cause",
        help="1 for each open cause of a GPU.",
        labels=("gpu", "UUID", "reason", "severity", "code"),
        rows=_causes,
    ),
    Own(
        name="node_agent_xids_total",
        help="Xids that a GPU has reported, by their number, since the agent's state was made.",
        labels=("gpu", "UUID", "xid"),
        rows=_xids,
    ),
    Own(
        name="node_agent_reading_failed",
        help="1 for each figure that a GPU has and that could not be read.",
        labels=("gpu", "UUID", "reading"),
        rows=_unread,
    ),
    Own(
        name="node_agent_resource_devices",
        help="Devices that a resource lists at the kubelet.",
        labels=("resource", "state"),
        rows=_resources,
    ),
    Own(
        name="node_agent_grants",
        help="Grants in the ledger, by the door through which they were asked for.",
        labels=("door",),
        rows=_grants,
    ),
    Own(
        name="node_agent_device_holder_info",
        help="1 for each container that has a device or a share of it; of is the resource, or the claim.",
        labels=HOLDER_LABELS,
        rows=_holders,
    ),
    Own(
        name="node_agent_mps_daemons",
        help="MPS daemons, by phase.",
        labels=("phase",),
        rows=lambda view: _counted((phase,) for phase in view.sources.mps_phases()),
    ),
    Own(
        name="node_agent_time_slice_troubles",
        help="GPUs whose time slices are not as configured.",
        rows=_one(lambda view: view.sources.time_slice_troubles()),
    ),
    Own(
        name="node_agent_config_generation",
        help="Configurations that were in force since the agent started.",
        rows=_config("generation"),
    ),
    Own(
        name="node_agent_config_refused_total",
        help="Configurations that could not be put in force.",
        rows=_config("refused"),
    ),
    Own(
        name="node_agent_config_trouble",
        help="Whether the newest configuration is not in force.",
        rows=_config_trouble,
    ),
    Own(
        name="node_agent_service_restarts_total",
        help="How often a part of the agent has failed and was started again.",
        labels=("service",),
        rows=lambda view: [((one.name,), one.restarts) for one in view.status.services],
    ),
)
