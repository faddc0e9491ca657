"""The resolved configuration in the agent's own words and types; all that the rest of the agent ever sees of it."""

from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from node_agent.config.durations import seconds
from node_agent.config.file import USUAL_XIDS, AgentHealth, File, SharedResource
from node_agent.config.rules import resource_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Paths:
    """Where things are, as the agent sees them."""

    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/gpu-node-agent")
    run_dir: Path = Path("/run/gpu-node-agent")
    sysfs_root: Path = Path("/sys")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllBut:
    """All numbers but the listed ones."""

    numbers: frozenset[int] = frozenset()

    def __contains__(self, number: object) -> bool:
        return number not in self.numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Xids after which a GPU stays in service, and the seconds between two looks at each GPU."""

    ignored_xids: Container[int] = frozenset(USUAL_XIDS)
    probe_interval: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    level: str = "info"
    form: str = "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """One resource whose devices are each given out ``replicas`` times; ``devices`` as in the file."""

    resource: str
    replicas: int
    rename: str | None
    devices: str | int | tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharing:
    strategy: Literal["time-slicing", "mps"]
    rename_by_default: bool
    fail_requests_greater_than_one: bool
    shares: tuple[Share, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rename:
    """GPUs whose product matches ``pattern``, in which only ``*`` is special, are offered as ``resource``."""

    pattern: str
    resource: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What is in force; intervals are in seconds, None means that nothing was said.

    ``dra`` is ``auto`` where it depends on whether the API server can be reached, by ``kubeconfig`` or from inside the
    cluster. ``driver_root`` and ``dev_root`` are the host's, the ``container_…`` ones where the agent sees the same.
    ``exclude`` and ``shareable`` name GPUs by UUID, index, name or product.
    """

    node_name: str = ""
    rescan_interval: float = 30.0
    registration: Literal["socket", "watcher", "auto"] = "auto"
    http_address: tuple[str, int] | None = None
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
    dra_groups: bool = False
    dra_metadata: bool = False
    sharing: Sharing | None = None
    paths: Paths = field(default_factory=Paths)
    health: Health = field(default_factory=Health)
    log: Log = field(default_factory=Log)


def settings(file: File) -> Settings:
    """The settings that a sound file means."""
    flags, agent = file.flags, file.agent
    return Settings(
        node_name=agent.node_name,
        rescan_interval=seconds(agent.rescan_interval),
        registration=agent.registration,
        http_address=_address(agent.http.address),
        exclude=tuple(str(one) for one in agent.devices.exclude),
        shareable=tuple(str(one) for one in agent.devices.shareable),
        resources=tuple(
            Rename(pattern=rule.pattern, resource=resource_name(rule.name)) for rule in file.resources.gpus
        ),
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
        dra_groups=agent.dra.groups,
        dra_metadata=agent.dra.metadata,
        sharing=_sharing(file),
        paths=_paths(file),
        health=Health(ignored_xids=_ignored(agent.health), probe_interval=seconds(agent.health.probe_interval)),
        log=Log(level=agent.log.level, form=agent.log.format),
    )


def _paths(file: File) -> Paths:
    given = file.agent.paths
    return Paths(
        kubelet_dir=Path(given.kubelet_dir),
        cdi_dir=Path(given.cdi_dir),
        state_dir=Path(given.state_dir),
        run_dir=Path(given.run_dir),
        sysfs_root=Path(given.sysfs_root),
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


def _ignored(given: AgentHealth) -> Container[int]:
    if given.enabled_xids == "all":
        return frozenset()
    if given.ignored_xids == "all":
        return AllBut(numbers=frozenset(given.enabled_xids))
    return frozenset(given.ignored_xids) - frozenset(given.enabled_xids)


def _sharing(file: File) -> Sharing | None:
    given = file.sharing.mps or file.sharing.time_slicing
    if given is None:
        return None
    is_mps, fails = file.sharing.mps is not None, given.fail_requests_greater_than_one
    return Sharing(
        strategy="mps" if is_mps else "time-slicing",
        rename_by_default=given.rename_by_default,
        fail_requests_greater_than_one=is_mps if fails is None else fails,
        shares=tuple(_share(one) for one in given.resources),
    )


def _share(given: SharedResource) -> Share:
    return Share(
        resource=resource_name(given.name),
        replicas=given.replicas,
        rename=resource_name(given.rename) if given.rename else None,
        devices=given.devices,
    )
