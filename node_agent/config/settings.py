"""The resolved configuration in the agent's own words and types; all that the rest of the agent ever sees of it."""

from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from node_agent.config.durations import seconds
from node_agent.config.file import (
    USUAL_XIDS,
    AgentHealth,
    AgentHealthRule,
    File,
    LabelFlags,
    ResourceRule,
    SharedResources,
)
from node_agent.config.file import SharingRule as OwnSharingRule
from node_agent.config.quantities import amount
from node_agent.config.rules import shared_name
from node_agent.model.health import Reason
from node_agent.model.vendor import NVIDIA, Vendor


class Paths(Struct, frozen=True, kw_only=True):
    """Where things are, as the agent sees them."""

    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/gpu-node-agent")
    run_dir: Path = Path("/run/gpu-node-agent")
    sysfs_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")


class AllBut(Struct, frozen=True, kw_only=True):
    """All numbers but the listed ones."""

    numbers: frozenset[int] = frozenset()

    def __contains__(self, number: object) -> bool:
        return number not in self.numbers


class HealthRule(Struct, frozen=True, kw_only=True):
    """What some Xids or reasons cost after being seen ``after`` times ``within`` so many seconds, and what ends it."""

    xids: Container[int] = frozenset()
    reasons: frozenset[Reason] = frozenset()
    action: str | None = None
    cleared_by: str | None = None
    after: int = 1
    within: float = 0.0


class Health(Struct, frozen=True, kw_only=True):
    """What faults cost; ``probe_interval`` are the seconds between two looks at each GPU.

    Xids that are ignored leave their GPU in service, and the others that are enabled withdraw it where no rule says
    otherwise.
    """

    ignored_xids: Container[int] = frozenset()
    enabled_xids: Container[int] = frozenset()
    rules: tuple[HealthRule, ...] = ()
    probe_interval: float = 5.0


class Log(Struct, frozen=True, kw_only=True):
    level: str = "info"
    form: str = "text"


class SharingRule(Struct, frozen=True, kw_only=True):
    """How many shares a GPU is offered in, and how they get along; of several rules that name a GPU the first holds.

    ``devices`` name GPUs by UUID, index, name or product, and MIG devices by UUID or ``GPU:number``. Of those only the
    ``first`` so many are meant where that is set, and only those that would be offered as ``of`` where that is set.
    ``resource`` is what the shares are offered as; None is the name that the GPU would have as a whole.
    ``time_slice`` is for time-slicing; what follows it for MPS: bytes and percent for each share, None where the GPU is
    divided evenly, and whether these may add up to more than the GPU has.
    """

    strategy: Literal["time-slicing", "mps"]
    shares: int
    devices: tuple[str, ...] = ("*",)
    first: int | None = None
    of: str | None = None
    resource: str | None = None
    fail_requests_greater_than_one: bool = False
    time_slice: Literal["Default", "Short", "Medium", "Long"] = "Default"
    memory_per_share: int | None = None
    thread_percentage_per_share: int | None = None
    overcommit: bool = False
    multi_user: bool = False


class Sharing(Struct, frozen=True, kw_only=True):
    """``distinct``: each share of one request is on another GPU, or the request is refused."""

    placement: Literal["spread", "packed", "distinct"] = "spread"
    rules: tuple[SharingRule, ...] = ()


class Rename(Struct, frozen=True, kw_only=True):
    """A product or MIG profile that matches ``pattern``, in which only ``*`` is special, is offered as ``resource``."""

    pattern: str
    resource: str


class Labels(Struct, frozen=True, kw_only=True):
    """Where the labels are written, and what is in them.

    ``file`` is the feature file, the one in NFD's folder where none was named. ``take_over``: also labels that another
    program has set. ``stamped``: with the time at which they last changed. ``machine_file`` has the machine's name,
    None for the firmware's.
    """

    writer: Literal["auto", "node-feature", "nfd-file", "node", "none"] = "auto"
    node_feature: bool = True
    file: Path = Path("/etc/kubernetes/node-feature-discovery/features.d/gpu-node-agent")
    take_over: bool = False
    stamped: bool = True
    machine_file: Path | None = None


class Settings(Struct, frozen=True, kw_only=True):
    """What is in force; intervals are in seconds, None means that nothing was said.

    ``dra`` is ``auto`` where it depends on whether the API server can be reached, by ``kubeconfig`` or from inside the
    cluster. ``driver_root`` and ``dev_root`` are the host's, the ``container_…`` ones where the agent sees the same.
    ``exclude``, ``shareable`` and ``mig_on_demand`` name GPUs by UUID, index, name or product. ``mps_root`` is the
    host's folder for MPS. ``imex_channels`` go to every container with a GPU, which is not given out without them where
    they are ``imex_required``.
    """

    vendor: Vendor = NVIDIA
    node_name: str = ""
    pod_name: str = ""
    rescan_interval: float = 30.0
    registration: Literal["socket", "watcher", "auto"] = "auto"
    http_address: tuple[str, int] | None = None
    http_page: bool = True
    exclude: tuple[str, ...] = ()
    shareable: tuple[str, ...] = ()
    resources: tuple[Rename, ...] = ()
    device_list_strategies: tuple[str, ...] = ("cdi-cri",)
    device_id_strategy: Literal["uuid", "index"] = "uuid"
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    cdi_hook_path: str | None = None
    driver_root: Path = Path("/")
    dev_root: Path | None = None
    container_driver_root: Path = Path("/")
    container_dev_root: Path = Path("/")
    kubeconfig: Path | None = None
    device_plugin: bool = True
    dra: Literal["auto"] | bool = "auto"
    compute_domains: bool = False
    compute_domain_namespaces: tuple[str, ...] = ("dra-driver-nvidia-gpu", "nvidia-dra-driver-gpu")
    dra_groups: bool = False
    dra_metadata: bool = False
    dra_enforce_limits: Literal["auto", "always", "never"] = "auto"
    mig_strategy: Literal["none", "single", "mixed"] = "none"
    mig_resources: tuple[Rename, ...] = ()
    mig_on_demand: tuple[str, ...] = ()
    mig_sweep: bool = True
    mig_layouts: Literal["auto", "always", "never"] = "auto"
    mig_config: str = ""
    mig_config_file: Path | None = None
    mig_when_in_use: Literal["wait", "refuse"] = "wait"
    mig_defragment: Literal["off", "advise", "act"] = "advise"
    mig_keep_room_for: tuple[str, ...] = ()
    node_condition: bool = True
    node_events: bool = True
    metrics_names: Literal["legacy", "current"] = "legacy"
    metrics_per_share: bool = False
    node_topology: bool = False
    operator_validations: Path = Path("/run/nvidia/validations")
    operator_wait_for: tuple[str, ...] = ()
    kubelet_config: Path = Path("/var/lib/kubelet/config.yaml")
    mps_root: Path | None = None
    imex_channels: tuple[int, ...] = ()
    imex_required: bool = False
    labels: Labels = field(default_factory=Labels)
    sharing: Sharing = field(default_factory=Sharing)
    paths: Paths = field(default_factory=Paths)
    health: Health = field(default_factory=Health)
    log: Log = field(default_factory=Log)


def settings(file: File, vendor: Vendor = NVIDIA) -> Settings:
    """The settings that a sound file means on a node with this vendor's GPUs."""
    flags, agent = file.flags, file.agent
    return Settings(
        vendor=vendor,
        node_name=agent.node_name,
        pod_name=agent.pod_name,
        rescan_interval=seconds(agent.rescan_interval),
        registration=agent.registration,
        http_address=_address(agent.http.address),
        http_page=agent.http.page,
        exclude=tuple(str(one) for one in agent.devices.exclude),
        shareable=tuple(str(one) for one in agent.devices.shareable),
        resources=_renames(file.resources.gpus, vendor),
        device_list_strategies=_strategies(flags.plugin.device_list_strategy),
        device_id_strategy=flags.plugin.device_id_strategy,
        cdi_annotation_prefix=flags.plugin.cdi_annotation_prefix,
        cdi_hook_path=flags.plugin.nvidia_ctk_path or None,
        driver_root=Path(flags.nvidia_driver_root),
        dev_root=Path(flags.nvidia_dev_root) if flags.nvidia_dev_root else None,
        container_driver_root=Path(flags.plugin.container_driver_root or flags.nvidia_driver_root),
        container_dev_root=Path(agent.paths.dev_root),
        kubeconfig=Path(agent.kubeconfig) if agent.kubeconfig else None,
        device_plugin=agent.front_doors.device_plugin,
        dra=agent.front_doors.dra,
        compute_domains=agent.front_doors.compute_domains,
        compute_domain_namespaces=agent.front_doors.compute_domain_namespaces,
        dra_groups=agent.dra.groups,
        dra_metadata=agent.dra.metadata,
        dra_enforce_limits=agent.dra.enforce_limits,
        mig_strategy=flags.mig_strategy,
        mig_resources=_renames(file.resources.mig, vendor),
        mig_on_demand=tuple(str(one) for one in agent.mig.on_demand),
        mig_sweep=agent.mig.sweep,
        mig_layouts=agent.mig.layouts if vendor.cuda else "never",
        mig_config=agent.mig.config,
        mig_config_file=Path(agent.mig.config_file) if agent.mig.config_file else None,
        mig_when_in_use=agent.mig.when_in_use,
        mig_defragment=agent.mig.defragment,
        mig_keep_room_for=agent.mig.keep_room_for,
        node_condition=agent.node_reports.condition,
        node_events=agent.node_reports.events,
        metrics_names=agent.metrics.names,
        metrics_per_share=agent.metrics.per_share,
        node_topology=agent.node_reports.topology,
        operator_validations=Path(agent.gpu_operator.validations),
        operator_wait_for=agent.gpu_operator.wait_for,
        kubelet_config=Path(agent.node_reports.kubelet_config),
        mps_root=Path(flags.mps_root) if flags.mps_root else None,
        imex_channels=file.imex.channel_ids,
        imex_required=file.imex.required,
        labels=_labels(file),
        sharing=_sharing(file, vendor),
        paths=_paths(file),
        health=_health(agent.health),
        log=Log(level=agent.log.level, form=agent.log.format),
    )


def _renames(rules: Iterable[ResourceRule], vendor: Vendor) -> tuple[Rename, ...]:
    return tuple(Rename(pattern=rule.pattern, resource=vendor.full(rule.name)) for rule in rules)


def _paths(file: File) -> Paths:
    given = file.agent.paths
    return Paths(
        kubelet_dir=Path(given.kubelet_dir),
        cdi_dir=Path(given.cdi_dir),
        state_dir=Path(given.state_dir),
        run_dir=Path(given.run_dir),
        sysfs_root=Path(given.sysfs_root),
        proc_root=Path(given.proc_root),
    )


def _labels(file: File) -> Labels:
    flags, agent, usual = file.flags, file.agent.labels, LabelFlags()
    named = flags.gfd.output_file not in ("", usual.output_file)
    return Labels(
        writer=agent.writer,
        node_feature=flags.use_node_feature_api,
        file=Path(flags.gfd.output_file) if named else Labels().file,
        take_over=agent.take_over,
        stamped=not flags.gfd.no_timestamp,
        machine_file=None
        if flags.gfd.machine_type_file == usual.machine_type_file
        else Path(flags.gfd.machine_type_file),
    )


def _address(text: str) -> tuple[str, int] | None:
    host, _, port = text.rpartition(":")
    return (host.strip("[]"), int(port)) if text else None


def _strategies(given: str | tuple[str, ...]) -> tuple[str, ...]:
    """The strategies, each once. Two that name CDI devices would have the runtime inject them twice: one is enough."""
    strategies = tuple(dict.fromkeys((given,) if isinstance(given, str) else given))
    if "cdi-cri" in strategies:
        return tuple(one for one in strategies if one != "cdi-annotations")
    return strategies


def _health(given: AgentHealth) -> Health:
    return Health(
        ignored_xids=_ignored(given),
        enabled_xids=_enabled(given),
        rules=tuple(_health_rule(rule) for rule in given.rules),
        probe_interval=seconds(given.probe_interval),
    )


def _health_rule(given: AgentHealthRule) -> HealthRule:
    return HealthRule(
        xids=AllBut() if given.xids == "all" else frozenset(given.xids),
        reasons=frozenset(Reason(cause) for cause in given.causes),
        action=given.action,
        cleared_by=given.cleared_by,
        after=given.after,
        within=seconds(given.within),
    )


def _ignored(given: AgentHealth) -> Container[int]:
    """Those that the operator added to the usual ones, which are ignored anyway and may be had back by a rule."""
    if given.enabled_xids == "all":
        return frozenset()
    if given.ignored_xids == "all":
        return AllBut(numbers=frozenset(given.enabled_xids))
    return frozenset(given.ignored_xids) - frozenset(given.enabled_xids) - frozenset(USUAL_XIDS)


def _enabled(given: AgentHealth) -> Container[int]:
    """Those that the operator named, and of the usual ones those that are not ignored any more."""
    if given.enabled_xids == "all":
        return AllBut()
    kept = USUAL_XIDS if given.ignored_xids == "all" else given.ignored_xids
    return frozenset(given.enabled_xids) | (frozenset(USUAL_XIDS) - frozenset(kept))


def _sharing(file: File, vendor: Vendor) -> Sharing:
    given, policy = file.agent.sharing, file.flags.plugin.shared_devices_allocation_policy
    rules = [
        *(_own_rule(rule, vendor) for rule in given.rules),
        *(rule for strategy, section in _nvidias(file) for rule in _rules(strategy, section, vendor)),
    ]
    return Sharing(placement=given.placement or _PLACEMENTS[policy], rules=tuple(rules))


_PLACEMENTS: Mapping[str, Literal["spread", "packed"]] = {"distributed": "spread", "packed": "packed"}


def _own_rule(given: OwnSharingRule, vendor: Vendor) -> SharingRule:
    return SharingRule(
        devices=tuple(str(word) for word in given.devices),
        strategy=given.strategy,
        shares=given.replicas,
        resource=vendor.full(given.resource) if given.resource else None,
        fail_requests_greater_than_one=_fails(given.strategy, given.fail_requests_greater_than_one),
        time_slice=given.time_slice,
        memory_per_share=None if given.memory_per_share is None else amount(given.memory_per_share),
        thread_percentage_per_share=given.thread_percentage_per_share,
        overcommit=given.overcommit,
        multi_user=given.multi_user,
    )


def _nvidias(file: File) -> Iterator[tuple[Literal["time-slicing", "mps"], SharedResources]]:
    """NVIDIA's two sections, of which rules allow one."""
    if file.sharing.time_slicing:
        yield "time-slicing", file.sharing.time_slicing
    if file.sharing.mps:
        yield "mps", file.sharing.mps


def _rules(strategy: Literal["time-slicing", "mps"], section: SharedResources, vendor: Vendor) -> Iterator[SharingRule]:
    for given in section.resources:
        words = given.devices if isinstance(given.devices, tuple) else ("*",)
        yield SharingRule(
            strategy=strategy,
            shares=given.replicas,
            devices=tuple(str(word) for word in words),
            first=given.devices if isinstance(given.devices, int) else None,
            of=vendor.full(given.name),
            resource=shared_name(given, section, vendor),
            fail_requests_greater_than_one=_fails(strategy, section.fail_requests_greater_than_one),
        )


def _fails(strategy: str, given: bool | None) -> bool:
    """A container can be the client of one MPS daemon only; who takes turns may have two turns."""
    return strategy == "mps" if given is None else given
