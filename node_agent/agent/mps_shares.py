"""Keeps an MPS daemon for each GPU or partition whose shares are offered by it, and tells how each fares."""

import asyncio
import time
from collections.abc import Iterable, Mapping

from node_agent.allocation.conflicts import held_places
from node_agent.allocation.grants import Door, Grant
from node_agent.deviceplugin.offer import OfferedDevice
from node_agent.deviceplugin.selection import Form, Selection
from node_agent.errors import MpsError, MpsImpossible, StateError
from node_agent.kit.latest import SETTLE_SECONDS, Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.mps.daemon import Phase, State
from node_agent.sharing.mps.daemons import MpsDaemons
from node_agent.sharing.mps.plan import ClientEdits, Wanted, daemon_key
from node_agent.sharing.mps.shares import wanted_for
from node_agent.sharing.shares import Strategy, parts_of

# What could not be done is tried again after so long, and at each change.
AGAIN_SECONDS = 30.0

_USER = "shares of "

log = Log(__name__)


class MpsShares:
    """A service: follows which GPUs are shared by MPS, and who holds what of them.

    ``troubles`` tells of each such GPU what keeps its daemon from its work, None where it answers; ``edits`` what a
    container needs that gets a share of it. A daemon stays as long as pods hold shares of its GPU, whatever the
    configuration says by then, and ``troubles`` has that GPU until it has ended. ``known`` is set once the ledger
    has all that pods hold: before that no daemon is started anew, since nobody but its clients could open the GPU.
    """

    def __init__(
        self,
        *,
        daemons: MpsDaemons,
        selection: Latest[Selection],
        inventory: Latest[Inventory],
        grants: Latest[Mapping[str, Grant]],
        known: asyncio.Event,
    ) -> None:
        self._daemons = daemons
        self._selection = selection
        self._inventory = inventory
        self._grants = grants
        self._known = known
        self._refused: dict[DeviceUuid, str] = {}
        self._joins: dict[DeviceUuid, tuple[Wanted, asyncio.Task[None]]] = {}
        self._trouble = Steady()
        self._unused = False
        self._failed: dict[DeviceUuid, tuple[str, float]] = {}
        self._joined = Latest(0)
        self.edits: dict[DeviceUuid, ClientEdits] = {}
        self.troubles: Latest[Mapping[DeviceUuid, str | None]] = Latest({})

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._known.wait()
        sources = (self._selection, self._inventory, self._grants, self._daemons.states, self._joined)
        async with asyncio.TaskGroup() as group:
            async for _ in changes(*sources, every=lambda: AGAIN_SECONDS, settle=SETTLE_SECONDS):
                if self._inventory.value.generation and self._inventory.value.problem is None:
                    await self._follow(group)

    def client_edits(self, devices: Iterable[OfferedDevice]) -> ClientEdits | None:
        """What a container needs that gets these devices; None where they are not shared by MPS.

        Raises MpsError where no daemon serves them.
        """
        gpus = {one.uuid for one in devices if one.shared is not None and one.shared.strategy is Strategy.MPS}
        if not gpus:
            return None
        if len(gpus) > 1 or not gpus <= self.edits.keys():
            raise MpsError(f"no one MPS daemon serves {', '.join(sorted(gpus))}: ask for one share")
        return self.edits[gpus.pop()]

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        shared = self._shared()
        # Each pod that is given a device comes by here, and most nodes have none of this.
        if not shared and self._unused:
            return
        users = await self._daemons.users()
        self._unused = not any(user.startswith(_USER) for user in users)
        for gpu, form in shared.items():
            self._keep(form, group, running=user_of(gpu) in users)
        held = {parts_of(hold.device)[0] for grant in self._limits() for hold in grant.holds}
        served = {parts_of(user.removeprefix(_USER))[0] for user in users if user.startswith(_USER)}
        ending = served - shared.keys()
        ended = {gpu for gpu in sorted(ending - held) if await self._leave(gpu)}
        self.troubles.set({gpu: self._trouble_of(gpu) for gpu in [*shared, *sorted(ending - ended)]})

    def _keep(self, form: Form, group: asyncio.TaskGroup, *, running: bool) -> None:
        """Have a daemon join that is wanted and is not there yet, or is wanted otherwise by now."""
        gpu = form.unit.uuid
        self._refused.pop(gpu, None)
        try:
            if not running and (holders := self._holders(form)):
                raise MpsImpossible(f"its MPS daemon is started once it is free of {', '.join(holders)}")
            assert form.shared is not None
            wanted = wanted_for(form.unit, form.shared, self._inventory.value.driver.cuda)
        except MpsImpossible as error:
            self._refused[gpu] = str(error)
            return
        before = self._joins.get(gpu)
        if before is None or before[0] != wanted or (before[1].done() and self._is_worth_a_try(gpu)):
            self._joins[gpu] = wanted, group.create_task(self._join(gpu, wanted), name=f"MPS shares of {gpu}")

    def _is_worth_a_try(self, gpu: DeviceUuid) -> bool:
        """Whether to join again what could not be joined: the daemon goes on trying by itself, in its own time."""
        if gpu not in self._failed:
            return False
        state, (_, since) = self._state_of(gpu), self._failed[gpu]
        return (state is not None and state.phase is Phase.READY) or time.monotonic() > since + AGAIN_SECONDS

    async def _join(self, gpu: DeviceUuid, wanted: Wanted) -> None:
        edits, failed = None, None
        try:
            edits = await self._daemons.join(user_of(gpu), wanted)
        except (MpsError, StateError) as error:
            failed = str(error), time.monotonic()
        # Of one that was overtaken by another rule, or by none, nothing counts.
        if self._joins.get(gpu, (None,))[0] != wanted:
            return
        self.edits.pop(gpu, None)
        self._failed.pop(gpu, None)
        if edits is not None:
            self.edits[gpu] = edits
        if failed is not None:
            self._failed[gpu] = failed
        self._joined.set(self._joined.value + 1)

    async def _leave(self, gpu: DeviceUuid) -> bool:
        """End a daemon that nobody needs any more; True where it has ended."""
        self._joins.pop(gpu, None)
        self._failed.pop(gpu, None)
        self.edits.pop(gpu, None)
        try:
            await self._daemons.leave(user_of(gpu))
        except (MpsError, StateError) as error:
            if self._trouble.should_say(str(error)):
                log.warning("MPS daemon is not ended yet", gpu=gpu, reason=error)
            return False
        return True

    def _trouble_of(self, gpu: DeviceUuid) -> str | None:
        state = self._state_of(gpu)
        if gpu in self._refused:
            return self._refused[gpu]
        if state is not None and state.phase is Phase.READY and gpu in self.edits:
            return None
        if state is not None and state.trouble:
            return state.trouble
        return self._failed[gpu][0] if gpu in self._failed else "its MPS daemon does not answer yet"

    def _state_of(self, gpu: DeviceUuid) -> State | None:
        return self._daemons.states.value.get(daemon_key((gpu,)))

    def _shared(self) -> dict[DeviceUuid, Form]:
        if not any(rule.strategy == Strategy.MPS.value for rule in self._selection.value.sharing):
            return {}
        forms = self._selection.value.forms(self._inventory.value)
        # A daemon is in the way of who wants to cut anew what it serves.
        cut = held_places(Door.LAYOUT, self._grants.value.values())
        return {
            uuid: form
            for uuid, form in forms.items()
            if form.shared is not None
            and form.shared.strategy is Strategy.MPS
            and not any(form.place.overlaps(place) for place in cut)
        }

    def _limits(self) -> Iterable[Grant]:
        return (grant for grant in self._grants.value.values() if grant.holder.door is Door.LIMIT)

    def _holders(self, form: Form) -> list[str]:
        """Who has something that MPS cannot go beside."""
        return sorted(
            f"{grant.holder.name}/{hold.device}" if grant.holder.door is Door.LIMIT else str(grant.holder)
            for grant in self._grants.value.values()
            for hold in grant.holds
            if not hold.admin and any(form.place.overlaps(place) for place in hold.places)
        )


def user_of(gpu: DeviceUuid) -> str:
    """Under which name the shares of a GPU use its daemon."""
    return f"{_USER}{gpu}"
