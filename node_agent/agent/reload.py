"""Puts a configuration that has changed in force while the agent runs; one that cannot be used changes nothing.

What is in force is kept in the state folder, so that an agent that starts beside a bad configuration has it too.
"""

import asyncio
import time
from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from node_agent.agent.label import Labels
from node_agent.agent.live import Live
from node_agent.config.resolve import Resolved, Sources
from node_agent.config.settings import Settings
from node_agent.config.watch import readings
from node_agent.errors import ConfigError
from node_agent.kit import logs
from node_agent.kit.files import write_atomic
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log, Steady
from node_agent.model.inventory import Inventory

KEPT = "config.json"

# The settings that only a new start puts in force, and what people call them.
AFTER_RESTART: Mapping[str, str] = {
    "vendor": "agent.vendor",
    "node_name": "agent.nodeName",
    "pod_name": "agent.podName",
    "rescan_interval": "agent.rescanInterval",
    "registration": "agent.registration",
    "http_address": "agent.http.address",
    "http_page": "agent.http.page",
    "device_list_strategies": "flags.plugin.deviceListStrategy",
    "device_id_strategy": "flags.plugin.deviceIDStrategy",
    "cdi_annotation_prefix": "flags.plugin.cdiAnnotationPrefix",
    "cdi_hook_path": "flags.plugin.nvidiaCTKPath",
    "driver_root": "flags.nvidiaDriverRoot",
    "dev_root": "flags.nvidiaDevRoot",
    "container_driver_root": "flags.plugin.containerDriverRoot",
    "container_dev_root": "agent.paths.devRoot",
    "kubeconfig": "agent.kubeconfig",
    "device_plugin": "agent.frontDoors.devicePlugin",
    "dra": "agent.frontDoors.dra",
    "compute_domains": "agent.frontDoors.computeDomains",
    "compute_domain_namespaces": "agent.frontDoors.computeDomainNamespaces",
    "dra_metadata": "agent.dra.metadata",
    "node_condition": "agent.nodeReports.condition",
    "node_events": "agent.nodeReports.events",
    "node_topology": "agent.nodeReports.topology",
    "kubelet_config": "agent.nodeReports.kubeletConfig",
    "labels": "agent.labels",
    "mig_layouts": "agent.mig.layouts",
    "operator_validations": "agent.gpuOperator.validations",
    "operator_wait_for": "agent.gpuOperator.waitFor",
    "mps_root": "flags.mpsRoot",
    "imex_channels": "imex.channelIDs",
    "imex_required": "imex.required",
    "paths": "agent.paths",
}

log = Log(__name__)


class Configuration(Struct, frozen=True, kw_only=True):
    """What an agent starts with: ``first`` is in force, and ``trouble`` says why it is not what the sources say.

    ``labels`` are all labels of the node where somebody follows them.
    """

    sources: Sources
    label: Latest[str | None]
    first: Resolved
    labels: Labels | None = None
    trouble: str | None = None


class ConfigState(Struct, frozen=True, kw_only=True):
    """Where the configuration in force is from, and ``since`` when, in wall-clock seconds; ``generation`` counts them.

    ``trouble`` says why the newest is not in force, ``refused`` how many were not; ``after_restart`` are the keys of
    the newest that only a new start puts in force.
    """

    source: str
    generation: int = 1
    since: float = 0.0
    trouble: str | None = None
    refused: int = 0
    after_restart: tuple[str, ...] = ()


def first_configuration(sources: Sources, label: Latest[str | None]) -> Configuration:
    """What the sources say, or what was last in force on this node where that cannot be used.

    Raises:
        ConfigError: it cannot be used, and nothing was kept.
    """
    try:
        first = sources.resolve(label.value)
        return Configuration(sources=_settled(sources, first), label=label, first=first)
    except ConfigError as error:
        bare = sources.bare
        kept = bare.resolve().settings.paths.state_dir / KEPT
        if not kept.exists():
            raise
        log.error("configuration refused", reason=error, kept=kept)
        try:
            first = replace(bare, file=kept).resolve()
        except ConfigError as older:
            raise ConfigError(f"{error}\n  and what was last in force is of no use: {older}") from error
        return Configuration(sources=_settled(sources, first), label=label, first=first, trouble=str(error))


def _settled(sources: Sources, first: Resolved) -> Sources:
    """The sources for as long as the agent runs: GPUs that leave the bus or come to it make no other vendor's node."""
    return replace(sources, vendor_of=lambda _: first.settings.vendor)


class Reloader:
    """A service: follows the sources of a configuration, and ``state`` says what came of it."""

    def __init__(self, configuration: Configuration, live: Live, inventory: Latest[Inventory]) -> None:
        self._configuration = configuration
        self._live = live
        self._inventory = inventory
        self._refusals = Steady()
        first, trouble = configuration.first, configuration.trouble
        self.resolved = first
        """The newest that was put in force."""
        self.state = Latest(
            ConfigState(source=_source(first), since=time.time(), trouble=trouble, refused=int(trouble is not None))
        )

    async def run(self) -> None:
        """Follow until cancelled."""
        if self._configuration.trouble is None:
            await asyncio.to_thread(self._keep, self._configuration.first)
        async for found in readings(self._configuration.sources, self._configuration.label):
            if isinstance(found, ConfigError):
                self._refuse(found)
                continue
            try:
                await self._put_in_force(found)
            except ConfigError as error:
                self._refuse(error)

    def _refuse(self, error: ConfigError) -> None:
        before = self.state.value
        if str(error) == before.trouble:
            return
        self.state.set(replace(before, trouble=str(error), refused=before.refused + 1))
        log.error("configuration refused", reason=error, kept=before.source)

    async def _put_in_force(self, found: Resolved) -> None:
        before, running = self.state.value, self._live.settings.value
        settings, waiting = in_force(running, found.settings)
        changed = settings != running
        if changed:
            await self._live.apply(settings, self._inventory.value)
            logs.change(settings.log.level, settings.log.form)
        if before.trouble is not None or changed or waiting != before.after_restart:
            log.info("configuration in force", source=_source(found), changed=changed, after_restart=waiting)
            tell_notices(found)
        self.resolved = found
        self.state.set(
            replace(
                before,
                source=_source(found),
                generation=before.generation + changed,
                since=time.time() if changed else before.since,
                trouble=None,
                after_restart=waiting,
            )
        )
        await asyncio.to_thread(self._keep, found)

    def _keep(self, found: Resolved) -> None:
        path = self._live.settings.value.paths.state_dir / KEPT
        content = msgspec.json.encode(found.said)
        try:
            if not path.exists() or path.read_bytes() != content:
                write_atomic(path, content, mode=0o640)
        except OSError as error:
            if self._refusals.should_say(str(error)):
                log.warning("the configuration in force is not kept for the next start", file=path, reason=error)


def tell_notices(found: Resolved) -> None:
    """Log what the operator should know of a configuration."""
    for notice in found.notices:
        log.warning("configuration notice", notice=notice)


def in_force(running: Settings, wanted: Settings) -> tuple[Settings, tuple[str, ...]]:
    """What comes into force of the wanted settings while those run, and the keys of what does not.

    Nothing does with another vendor: the names of that one's resources are in more than one setting.
    """
    if wanted.vendor != running.vendor:
        return running, (AFTER_RESTART["vendor"],)
    kept = {name: getattr(running, name) for name in AFTER_RESTART}
    waiting = (key for name, key in AFTER_RESTART.items() if getattr(wanted, name) != kept[name])
    return replace(wanted, **kept), tuple(waiting)


def _source(found: Resolved) -> str:
    return "; ".join(found.documents) or "no file"
