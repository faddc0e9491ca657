"""Keeps the inventory: looks at the hardware again and again and publishes what differs.

Everything above works from ``InventoryKeeper.inventory``; rescan, hot-plug, a lost GPU and a driver that comes and goes
are one mechanism. What one look comes to is decided by the pure functions at the end.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from node_agent.errors import DriverUnavailable, LibraryUnusable
from node_agent.hardware.cuts import CutReader, Cuts
from node_agent.hardware.names import NameFile, Names, named
from node_agent.hardware.provider import GpuFacts, Provider, Scan
from node_agent.hardware.sysfs import Sysfs
from node_agent.hardware.validations import Validations
from node_agent.kit.backoff import pauses
from node_agent.kit.lane import Busy
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log, Steady
from node_agent.kit.tasks import running
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.links import LinkGraph
from node_agent.model.vendor import NVIDIA, Vendor

log = Log(__name__)

# However often a rescan is asked for, looks are at least so far apart.
_REST_SECONDS = 0.1

_NOT_LISTED = "the driver does not list it any more"
_NOT_TOLD = "neither the driver nor /sys tells"


class InventoryKeeper:
    """A service. ``inventory`` has generation 0 until the first look is over; ``names`` outlive the agent.

    ``period`` is the time between looks that nobody asked for, and the longest one between tries to reach what is not
    there; a call that takes longer than ``stall_seconds`` counts as hanging. ``validations`` says before each look
    whether the driver may be asked at all.
    """

    def __init__(
        self,
        *,
        provider: Provider,
        sysfs: Sysfs,
        names: NameFile,
        period: float = 30.0,
        stall_seconds: float = 5.0,
        validations: Validations | None = None,
        vendor: Vendor = NVIDIA,
    ) -> None:
        self.inventory = Latest(Inventory(vendor=vendor))
        self._provider = provider
        self._sysfs = sysfs
        self._file = names
        self._period = period
        self._stall_seconds = stall_seconds
        self._names: Names = {}
        self._unknown: Mapping[str, Mapping[str, str]] = {}
        self._asked = asyncio.Event()
        self._begun, self._over = 0, Latest(0)
        self._cuts = CutReader(provider.partitioning)
        self._validations = validations or Validations()

    @property
    def names(self) -> Names:
        """The name of every GPU that was ever here."""
        return self._names

    @property
    def stalled(self) -> Busy | None:
        """The driver call that hangs, if one does; whoever asks the driver waits behind it meanwhile."""
        busy = self._provider.discovery.busy
        return busy if busy and busy.seconds >= self._stall_seconds else None

    def rescan(self) -> None:
        """Look again soon. Asking many times before that is one look."""
        self._asked.set()

    async def look(self) -> Inventory:
        """Look again, and wait for that: what had changed before the call is in the answer. Needs ``run``."""
        awaited = self._begun + 1
        self.rescan()
        async for over in self._over.watch():
            if over >= awaited:
                break
        return self.inventory.value

    async def run(self) -> None:
        """Look until cancelled; sooner again, with growing pauses, while the driver or a GPU is missing."""
        self._names = await asyncio.to_thread(self._file.load)
        tries = pauses(longest=self._period)
        async with running(self._report_stalls(), name="driver stalls"):
            while True:
                self._asked.clear()
                before = self.inventory.value
                self._begun += 1
                await self._look()
                self._over.set(self._begun)
                if self.inventory.value.generation != before.generation:
                    tries = pauses(longest=self._period)
                pause = next(tries) if self._incomplete else self._period
                await asyncio.sleep(_REST_SECONDS)
                with suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it drops a cancellation that comes together with what it waits for.
                    async with asyncio.timeout(pause):
                        await self._asked.wait()

    @property
    def _incomplete(self) -> bool:
        """Whether something that should be there was not, at the last look."""
        return bool(self.inventory.value.problem or self.inventory.value.missing)

    async def _look(self) -> None:
        """Look once and publish."""
        previous = self.inventory.value
        try:
            self._validations.check()
            scan = await self._provider.discovery.scan()
            links = await self._provider.topology.links([gpu.uuid for gpu in scan.gpus])
            cuts = await self._cuts.read(scan.gpus)
        except DriverUnavailable as error:
            self._cuts.forget()
            self._publish(unreachable(previous, error))
            return
        # Kept before they are published: a name that was seen must be the same after a crash.
        self._names = named(self._names, scan.gpus)
        await asyncio.to_thread(self._file.keep, self._names)
        inventory = replace(
            joined(previous, scan, links, self._names, self._sysfs),
            profiles=cuts.profiles,
            instances=cuts.instances,
            unlisted=cuts.unlisted,
        )
        self._report_unknown(inventory, scan, cuts)
        self._publish(inventory)

    def _publish(self, inventory: Inventory) -> None:
        previous = self.inventory.value
        if previous.generation and inventory.same_content(previous):
            return
        self._report_change(previous, inventory)
        self.inventory.set(replace(inventory, generation=previous.generation + 1))

    def _report_change(self, previous: Inventory, inventory: Inventory) -> None:
        if inventory.problem and inventory.problem != previous.problem:
            log.error("driver unavailable", reason=inventory.problem)
        for missing in inventory.missing:
            if missing not in previous.missing and not inventory.problem:
                name = self._names.get(missing.uuid) if missing.uuid else None
                log.warning("gpu missing", gpu=name, uuid=missing.uuid, index=missing.index, reason=missing.reason)
        log.info(
            "inventory changed",
            generation=previous.generation + 1,
            gpus=len(inventory.gpus),
            missing=len(inventory.missing),
            driver=inventory.driver.version,
        )

    def _report_unknown(self, inventory: Inventory, scan: Scan, cuts: Cuts) -> None:
        """Say once what cannot be told, and again when it is something else."""
        failed = {facts.uuid: {**facts.failed, **cuts.failed.get(facts.uuid, {})} for facts in scan.gpus}
        unknown: dict[str, Mapping[str, str]] = {"driver": scan.failed}
        unknown |= {gpu.name: {**unknown_facts(gpu), **failed[gpu.uuid]} for gpu in inventory.gpus}
        for name, facts in unknown.items():
            if facts and facts != self._unknown.get(name):
                log.warning("facts left out", of=name, **facts)
        self._unknown = unknown

    async def _report_stalls(self) -> None:
        trouble = Steady()
        while True:
            await asyncio.sleep(self._stall_seconds)
            if (busy := self.stalled) is None:
                trouble.clear()
            elif trouble.should_say(busy.call):
                log.error("driver call hangs", call=busy.call, seconds=round(busy.seconds))


def joined(previous: Inventory, scan: Scan, links: LinkGraph, names: Names, sysfs: Sysfs) -> Inventory:
    """The inventory after a look, with the GPUs of before that are gone among the missing."""
    gpus = [_gpu(facts, names, sysfs) for facts in scan.gpus]
    return Inventory(
        vendor=previous.vendor,
        driver=scan.driver,
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.pci)),
        links=links,
        missing=_missing(previous, scan),
    )


def unreachable(previous: Inventory, error: DriverUnavailable) -> Inventory:
    """The inventory while the driver as a whole cannot be asked: the GPUs known until now are missing."""
    problem = str(error)
    gone = [MissingGpu(index=index, uuid=uuid, reason=problem) for uuid, index in _known(previous).items()]
    return Inventory(
        vendor=previous.vendor,
        missing=tuple(sorted(gone, key=_order)),
        problem=problem,
        without_library=isinstance(error, LibraryUnusable),
    )


def unknown_facts(gpu: Gpu) -> dict[str, str]:
    """What most platforms tell of a GPU and this one does not, with the reason."""
    return {fact: _NOT_TOLD for fact in ("memory", "numa_node", "pcie_root") if getattr(gpu, fact) is None}


def _gpu(facts: GpuFacts, names: Names, sysfs: Sysfs) -> Gpu:
    return Gpu(
        uuid=facts.uuid,
        name=names[facts.uuid],
        index=facts.index,
        product=facts.product,
        pci=facts.pci,
        minor=facts.minor,
        brand=facts.brand,
        architecture=facts.architecture,
        compute_capability=facts.compute_capability,
        memory=facts.memory,
        multiprocessors=facts.multiprocessors,
        numa_node=sysfs.numa_node(facts.pci),
        pcie_root=sysfs.pcie_root(facts.pci),
        partition_mode=facts.partition_mode,
        nvlink_domain=facts.nvlink_domain,
        ecc_enabled=facts.ecc_enabled,
        addressing_mode=facts.addressing_mode,
        nvlink_generation=facts.nvlink_generation,
        power_limit=facts.power_limit,
        device_id=facts.device_id,
        subsystem_id=facts.subsystem_id,
        serial=facts.serial,
        vbios=facts.vbios,
    )


def _missing(previous: Inventory, scan: Scan) -> tuple[MissingGpu, ...]:
    """What the driver counts but cannot read, named by who was there before, and who is not even counted any more."""
    # An unreadable GPU does not say who it is; most likely it is the one that had its index before.
    told = {gpu.uuid for gpu in scan.gpus} | {missing.uuid for missing in scan.missing}
    absent = {uuid: index for uuid, index in _known(previous).items() if uuid not in told}
    holders = {index: uuid for uuid, index in absent.items()}
    found = [replace(missing, uuid=missing.uuid or holders.get(missing.index)) for missing in scan.missing]
    claimed = {missing.uuid for missing in found}
    found += [
        MissingGpu(index=index, uuid=uuid, reason=_NOT_LISTED) for uuid, index in absent.items() if uuid not in claimed
    ]
    return tuple(sorted(found, key=_order))


def _known(inventory: Inventory) -> dict[GpuUuid, int]:
    """The GPUs that have been seen, with the index at which they were seen last."""
    missing = {missing.uuid: missing.index for missing in inventory.missing if missing.uuid}
    return missing | {gpu.uuid: gpu.index for gpu in inventory.gpus}


def _order(missing: MissingGpu) -> tuple[int, str]:
    return missing.index, missing.uuid or ""
