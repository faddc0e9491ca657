"""Writes what pods get by their limits into the ledger, and takes it out when no pod has it any more.

The kubelet says when it gives a device out and never when it is given back, so who holds what is asked of it now and
then. What a pod got is on disk a second later, and no pod waits for that: after a restart of the agent the kubelet
still knows, unless it was restarted too and has not heard of its pods yet.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.allocation.ledger import Ledger
from node_agent.deviceplugin.offer import OfferedDevice, is_ours, place_of
from node_agent.errors import DeviceHeld, DeviceWithdrawn, HoldersUnknown, KubeletError, StateError
from node_agent.kit.ages import Ages
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log, Steady
from node_agent.kubelet import written
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Place
from node_agent.sharing.shares import parts_of

Held = Callable[[], Awaitable[Mapping[str, Collection[str]]]]
"""The ids of the devices that pods hold, by resource; raises KubeletError while nobody tells."""

Written = Callable[[], Awaitable[written.Written]]
"""What the kubelet has written down of it; raises KubeletError where that cannot be read."""

# A device that was just allocated is not in the kubelet's list before its pod is admitted, and nothing is in that of a
# kubelet that was just started. What such a list lacks is held for so long.
ADMISSION_SECONDS = 30.0
# So long after a device was given out the next look is: once its pod was listed, its end is known for sure.
SOON_SECONDS = 1.0
# Longer than the kubelet takes to tell what pods hold, and short enough for its main loop, which waits for Allocate.
FIRST_ANSWER_SECONDS = 5.0
# So often what it has written down is looked up again, of what it does not tell.
LOOK_UP_SECONDS = 30.0
# So long Allocate waits for a write that is under way; on a disk that hangs the kubelet's main loop would hang, too.
DISK_SECONDS = 5.0

log = Log(__name__)


async def nobody_writes() -> written.Written:
    """Of a kubelet that writes nothing down."""
    return written.NOTHING


class LimitDoor:
    """The ledger's side of the device plugins: ``take`` before a device is given out, ``run`` gives it back.

    ``inventory`` says which GPU a partition is on. ``held`` is what the kubelet tells of its pods, ``written`` what it
    writes down, which has their init containers too and takes longer to learn. ``told_since`` says since when the
    present kubelet tells of its pods, in wall-clock seconds, None before it does. ``synced`` is set once the ledger has
    all that pods hold: before that no claim may be prepared.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        held: Held,
        inventory: Latest[Inventory],
        written: Written = nobody_writes,
        told_since: Callable[[], float | None] = lambda: 0.0,
        every_seconds: float = 5.0,
        admission_seconds: float = ADMISSION_SECONDS,
        first_answer_seconds: float = FIRST_ANSWER_SECONDS,
        look_up_seconds: float = LOOK_UP_SECONDS,
    ) -> None:
        self._ledger = ledger
        self.held = held
        self._inventory = inventory
        self._written = written
        self._told_since = told_since
        self._told_by: float | None = None
        self._first_claim: tuple[float | None, float] = None, math.inf
        self._ages = Ages()
        self._every_seconds = every_seconds
        self._admission_seconds = admission_seconds
        self._first_answer_seconds = first_answer_seconds
        self._first_answer_by = 0.0
        self._look_up_seconds = look_up_seconds
        self._untold: Mapping[str, float] = {}
        self._written_of: Mapping[str, float] = {}
        self._looked_up = -math.inf
        self._trouble, self._conflict, self._strange = Steady(), Steady(), Steady()
        self._listed: Mapping[str, float] = {}
        self._news, self._turn, self._looked = asyncio.Event(), asyncio.Lock(), -math.inf
        self.synced = asyncio.Event()

    async def take(self, resource: str, devices: Sequence[OfferedDevice]) -> None:
        """Hold devices for a pod. None is held where that raises: DeviceHeld where somebody else has one of them,
        DeviceWithdrawn where one is not there any more, StateError where the disk hangs.

        An agent that was just started waits a moment for what pods hold: of a GPU that is shared in another way than
        before, the kubelet does not know that its new devices are the old ones.
        """
        if not self.synced.is_set():
            await self._first_answer()
        await self._ledger.look()
        grants = [_grant(resource, device.id, _place(device)) for device in devices]
        if any(self._ledger.grant_of(grant.holder.id) for grant in grants):
            await self._refuse_again(resource, [device.id for device in devices])
        await self._reserve(grants)
        # A GPU that is cut in another way is looked at before it is given back, and is not cut again while it is held.
        if gone := [device.id for device in devices if not self._inventory.value.has(_place(device))]:
            for grant in grants:
                await self._ledger.release(grant.holder.id, durable=False)
            raise DeviceWithdrawn(f"{gone[0]} is not there any more: its GPU was just partitioned in another way")
        for grant in grants:
            self._ages.of(grant.holder.id, self._ledger.grants.value[grant.holder.id].since)
        self._news.set()

    async def be_sure(self) -> None:
        """Know what pods hold by now, before a claim gets devices. Raises HoldersUnknown while nobody tells.

        A kubelet that was just started lists no pod before it has read them, so an agent that was started with it may
        have learned nothing of those that went on: it asks again when the kubelet has come so far as to want a claim,
        and for a while from then on.
        """
        now, told_since = time.monotonic(), self._told_since()
        if self._first_claim[0] != told_since:
            self._first_claim = told_since, now
        if told_since is not None and now - self._first_claim[1] > self._admission_seconds:
            return
        try:
            await self._look(since=now)
        except KubeletError as error:
            raise HoldersUnknown(f"what pods hold by their limits is not known: {error}") from error

    async def run(self) -> None:
        """Keep the ledger's limits those of the kubelet until cancelled."""
        self._first_answer_by = time.monotonic() + self._first_answer_seconds
        while True:
            self._news.clear()
            troubles = [str(error) for step in self._steps if (error := await _error_of(step))]
            if not troubles:
                self._trouble.clear()
            elif self._trouble.should_say(reason := "; ".join(troubles)):
                log.warning("what pods hold by their limits is not followed", reason=reason)
            await self._pause()

    @property
    def _steps(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return self._look, self._ledger.store, self._look_up

    async def _pause(self) -> None:
        """Wait for the next look; after news a moment more, since the kubelet may forget what it is just giving out."""
        soon = min(SOON_SECONDS, self._every_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._every_seconds - soon):
                await self._news.wait()
        await asyncio.sleep(soon)

    async def _first_answer(self) -> None:
        """Wait until it is known what pods hold; not for ever, since not every kubelet tells."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._first_answer_by - time.monotonic())):
                await self.synced.wait()

    async def _reserve(self, grants: Sequence[Grant]) -> None:
        try:
            async with asyncio.timeout(DISK_SECONDS):
                await self._ledger.reserve_all(grants, durable=False)
        except TimeoutError as error:
            raise StateError(
                f"{grants[0].holder} gets nothing: the disk with the ledger has not answered for {DISK_SECONDS:g} s"
            ) from error

    async def _refuse_again(self, resource: str, devices: Iterable[str]) -> None:
        """Raise DeviceHeld where a pod that is there has one of the devices already, by the kubelet's own word.

        It may give a device to two pods (at least up to 1.37): what it is just giving out it forgets where it is asked
        meanwhile what pods hold, and another pod has ended. One that cannot be asked is believed.
        """
        try:
            twice = set(devices).intersection((await self.held()).get(resource, ()))
        except KubeletError as error:
            log.warning("whether a device is given out twice is not known", devices=list(devices), reason=error)
            return
        if twice:
            raise DeviceHeld(f"{min(twice)} is held by a pod that is still there: the kubelet has given it out twice")

    async def _look(self, since: float = math.inf) -> None:
        """Take into the ledger what the kubelet has given out, and out of it what no pod has any more.

        A look that somebody else has begun ``since`` is as good as one's own.
        """
        async with self._turn:
            if self._looked < since:
                begun = time.monotonic()
                await self._follow()
                self._looked = begun

    async def _follow(self) -> None:
        before = self._ledger.grants.value
        held = await self.held()
        if (begun := self._told_since()) != self._told_by:
            self._told_by, self._listed = begun, {}
        vendor = self._inventory.value.vendor
        ours = [
            (resource, name) for resource, names in held.items() for name in names if is_ours(resource, name, vendor)
        ]
        holders = {_holder(*one).id for one in ours}
        await self._ledger.look()
        places = {one: place_of(one[1], self._inventory.value) for one in ours}
        if not self._are_known(device for (_, device), place in places.items() if place is None):
            self._news.set()
            return
        live = [_grant(*one, place) for one, place in places.items() if place is not None]
        known = await self._learn_all({grant.holder.id: grant for grant in live})
        told_for = 0.0 if begun is None else self._ages.of("", begun)
        untold: dict[str, float] = {}
        for holder, grant in known.items():
            if holder in holders:
                continue
            if self._listed.get(holder) == grant.since:
                await self._give_back(holder, grant.since)
            elif min(self._ages.of(holder, grant.since), told_for) > self._admission_seconds:
                untold[holder] = grant.since
        self._untold = untold
        # The kubelet may speak of the last pod of a device that has the next one since: what it says counts for a
        # grant that was there before it was asked.
        self._listed = {
            holder: grant.since
            for holder, grant in known.items()
            if holder in holders and holder in before and before[holder].since == grant.since
        }
        self._ages.keep({"", *self._ledger.grants.value})
        self.synced.set()
        if {one.holder.id for one in self._ledger.grants_of(Door.LIMIT)} - self._listed.keys() - untold.keys():
            self._news.set()

    async def _look_up(self) -> None:
        """Give back what the kubelet had the time to tell of and does not, unless it has it in writing.

        An init container has it then. Else it was that of a pod that ended before anybody asked. Of two agents none
        has the kubelet write: each would send it its own list.
        """
        untold, now = self._untold, time.monotonic()
        is_known = untold.items() <= self._written_of.items() and now - self._looked_up < self._look_up_seconds
        if not untold or is_known or not self._ledger.is_alone:
            return
        self._written_of, self._looked_up = untold, now
        found = await self._written()
        named = {_holder(resource, name).id for resource, names in found.devices.items() for name in names}
        self._written_of = {
            holder: since
            for holder, since in untold.items()
            if holder in named or not (found.is_new or found.at > since)
        }
        for holder, since in untold.items() - self._written_of.items():
            await self._give_back(holder, since)

    async def _give_back(self, holder: str, since: float) -> None:
        log.info("given back", device=holder)
        await self._ledger.release(holder, since=since, durable=False)

    async def _learn_all(self, live: Mapping[str, Grant]) -> Mapping[str, Grant]:
        """Take in what is not in the ledger yet; returns the grants that were."""
        await self._ledger.reconcile(Door.LIMIT, live.values())
        recorded = {grant.holder.id: grant for grant in self._ledger.grants_of(Door.LIMIT)}
        # Who has a whole GPU had it before it was shared; the other way round the ledger would not take both.
        for holder, grant in sorted(live.items(), key=lambda one: one[1].holds[0].share_id is not None):
            if holder not in recorded:
                await self._learn(grant)
        return recorded

    def _are_known(self, gone: Iterable[str]) -> bool:
        """Whether it is known what pods hold, as far as it can be: of partitions that are gone the ledger may know."""
        strange = sorted(
            set(gone) - {hold.device for grant in self._ledger.grants_of(Door.LIMIT) for hold in grant.holds}
        )
        inventory = self._inventory.value
        if strange and (not inventory.generation or inventory.problem):
            return False
        if strange and self._strange.should_say(str(strange)):
            log.warning("pods hold MIG devices that are gone, of which nobody knows the GPU", devices=strange)
        return True

    async def _learn(self, grant: Grant) -> None:
        try:
            await self._ledger.reserve(grant, durable=False)
        except DeviceHeld as error:
            if self._conflict.should_say(str(error)):
                log.error("a pod has what another holds: end one of the two", reason=error)


async def _error_of(step: Callable[[], Awaitable[None]]) -> Exception | None:
    """Take a step, and return what it has failed with where that may pass."""
    try:
        await step()
    except (KubeletError, StateError) as error:
        return error
    return None


def _place(device: OfferedDevice) -> Place:
    return Place(gpu=device.gpu, part=device.part)


def _holder(resource: str, device: str) -> Holder:
    return Holder(door=Door.LIMIT, id=f"{resource}/{device}", name=resource)


def _grant(resource: str, device: str, place: Place) -> Grant:
    hold = Hold(device=device, gpus=(place.gpu,), part=place.part, share_id=parts_of(device)[1])
    return Grant(holder=_holder(resource, device), holds=(hold,))
