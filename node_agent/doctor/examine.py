"""Makes all checks of one node, those first that others rest on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from node_agent.agent.build import inventory_once
from node_agent.agent.hardware import driver_roots, provider_of
from node_agent.cdi.nodes import Stat
from node_agent.config.settings import Settings
from node_agent.doctor import amd, cdi, cluster, driver, gpus, kubelet, machine, owners, running
from node_agent.doctor.finding import Examination, Finding, skipped
from node_agent.doctor.place import Place
from node_agent.errors import HardwareError, KubeletError
from node_agent.health.findings import Finding as Wrong
from node_agent.health.findings import findings as wrongs_of
from node_agent.kit.http_client import get
from node_agent.kubelet import podresources
from node_agent.kubelet.podresources import allocatable_devices
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.reporting.status import Status

Check = Callable[[Place], Iterator[Finding]]

# A driver that answers at all answers sooner, also when it has to wake eight GPUs; one that hangs never does.
DRIVER_SECONDS = 20.0

_OF_CUDA: tuple[Check, ...] = (
    driver.module,
    driver.bound,
    driver.library,
    driver.version,
    driver.nodes,
    driver.persistence,
    gpus.present,
    gpus.excluded,
)
_OF_AMD: tuple[Check, ...] = (amd.module, amd.gpus, amd.nodes, gpus.present, gpus.excluded)
_OF_RUNTIME: tuple[Check, ...] = (gpus.mig, cdi.folder, cdi.spec, cdi.kinds, cdi.runtime, kubelet.sockets)
_OF_OTHERS: tuple[Check, ...] = (
    kubelet.registry,
    owners.device_plugin,
    owners.dra_driver,
    owners.feature_discovery,
    machine.state,
    machine.inotify,
)


async def examine(settings: Settings, stat: Stat, socket: Path) -> Examination:
    """Look at the node, and at the agent on ``socket`` if one runs there."""
    status, why = await asyncio.to_thread(_status, socket)
    inventory = await _inventory(settings)
    roots = driver_roots(settings)
    place = Place(
        settings=settings,
        roots=roots,
        stat=stat,
        inventory=inventory,
        status=status,
        host=roots.driver,
        proc=settings.paths.proc_root,
    )
    found = [finding async for finding in _findings(place, why)]
    return Examination(node=settings.node_name, findings=tuple(found))


async def _findings(place: Place, why: str) -> AsyncIterator[Finding]:
    for finding in _all(_OF_CUDA if place.settings.vendor.cuda else _OF_AMD, place):
        yield finding
    wrongs = await _wrongs(place.settings, place.inventory)
    for finding in (*gpus.health(place, wrongs), *gpus.fabric(place, wrongs), *_all(_OF_RUNTIME, place)):
        yield finding
    listed = await _listed(place)
    of_agent = (*running.agent(place.status, why), *running.parts(place), *running.configuration(place))
    for finding in (*of_agent, *kubelet.registration(place, listed), *_all(_OF_OTHERS, place)):
        yield finding
    for finding in (*machine.clock(), *machine.files()):
        yield finding
    async for finding in cluster.cluster(place):
        yield finding


def _all(checks: Sequence[Check], place: Place) -> Iterator[Finding]:
    """What each check says; one that meets a file that it may not read, or that is none, says so."""
    for check in checks:
        try:
            yield from check(place)
        except OSError as error:
            name = f"{check.__module__.rpartition('.')[2]}.{check.__name__.replace('_', '-')}"
            yield skipped(name, f"it cannot be looked at: {error.strerror}", error.filename or "")


def _status(socket: Path) -> tuple[Status | None, str]:
    """What the running agent says, or why it says nothing."""
    try:
        code, body = get(socket, "/status")
        return (msgspec.json.decode(body, type=Status), "") if code == 200 else (None, f"it answers {code}")
    except (OSError, msgspec.DecodeError) as error:
        return None, f"{socket}: {error}"


async def _inventory(settings: Settings) -> Inventory:
    try:
        async with asyncio.timeout(DRIVER_SECONDS):
            return await inventory_once(settings)
    except TimeoutError:
        return Inventory(generation=1, vendor=settings.vendor, problem=_HANGS.format(DRIVER_SECONDS))


_HANGS = "the driver has not answered for {:.0f} s: it hangs"


async def _wrongs(settings: Settings, inventory: Inventory) -> gpus.Wrongs:
    """One look at each GPU, as the health watch makes it."""
    found: dict[GpuUuid, tuple[Wrong, ...] | str] = {}
    if not inventory.gpus:
        return {}
    with suppress(TimeoutError):
        async with asyncio.timeout(DRIVER_SECONDS), provider_of(settings) as provider:
            await provider.discovery.scan()
            for gpu in inventory.gpus:
                try:
                    found[gpu.uuid] = wrongs_of(await provider.readings.read(gpu.uuid))
                except HardwareError as error:
                    found[gpu.uuid] = str(error)
    return dict.fromkeys(inventory.by_uuid, _HANGS.format(DRIVER_SECONDS)) | found


async def _listed(place: Place) -> kubelet.Listed:
    try:
        return await allocatable_devices(place.kubelet / podresources.SOCKET)
    except KubeletError as error:
        return str(error)
