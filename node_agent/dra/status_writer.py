"""Keeps what the status of prepared claims says of their devices true: ``status`` says what, here it is written."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from node_agent.allocation.grants import Door, Grant, State
from node_agent.dra.claim_source import NodeClaims
from node_agent.dra.claims import claim_of
from node_agent.dra.status import apply_patch, device_statuses
from node_agent.errors import ClaimUnreadable, Forbidden, KubeError, NotFound
from node_agent.kit.backoff import spread
from node_agent.kit.latest import SETTLE_SECONDS, Latest, changes
from node_agent.kit.logs import Log, Steady
from node_agent.kube.client import KubeClient, Patch
from node_agent.kube.resources import RESOURCE_CLAIMS, Object
from node_agent.model.device import PublishedDevice
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory

# What could not be written is tried again after so long.
AGAIN_SECONDS = 30.0

Entries = list[dict[str, Any]]

log = Log(__name__)


class StatusWriter:
    """A service: writes the status of each prepared claim, and again when the health of its devices changes."""

    def __init__(
        self,
        *,
        driver: str,
        client: KubeClient,
        claims: NodeClaims,
        grants: Latest[Mapping[str, Grant]],
        inventory: Latest[Inventory],
        health: Latest[HealthReport],
        published: Callable[[], Mapping[str, PublishedDevice]],
    ) -> None:
        self._driver = driver
        self._client = client
        self._claims = claims
        self._grants = grants
        self._inventory = inventory
        self._health = health
        self._published = published
        # With the claim as it was when that was written: one that is prepared anew may have lost its status since.
        self._written: dict[str, tuple[Object, Entries]] = {}
        self._trouble = Steady()

    async def run(self) -> None:
        """Write until cancelled."""
        sources = self._grants, self._inventory, self._health
        async for _ in changes(*sources, every=lambda: spread(AGAIN_SECONDS), settle=SETTLE_SECONDS):
            prepared = {uid: grant for uid, grant in self._grants.value.items() if _is_prepared(grant)}
            self._written = {uid: written for uid, written in self._written.items() if uid in prepared}
            self._claims.forget_but(self._grants.value)
            for uid, grant in prepared.items():
                await self._write_or_tell(uid, grant)

    async def _write_or_tell(self, uid: str, grant: Grant) -> None:
        try:
            item = await self._claims.held(grant)
            if item is not None:
                await self._write(item, grant)
        except ClaimUnreadable:
            return  # its configuration was understood when it was prepared, so somebody has written another claim
        except KubeError as error:
            if self._trouble.should_say(str(error) if isinstance(error, Forbidden) else type(error).__name__):
                log.warning("status of a claim cannot be written", claim=grant.holder.name, reason=error)

    async def _write(self, item: Object, grant: Grant) -> None:
        claim = claim_of(item)
        seen, written = self._written.get(claim.uid, (None, []))
        # What an agent before us has written need not be written again.
        written = written if seen is item else self._entries(item)
        entries = device_statuses(
            claim,
            self._driver,
            published=self._published(),
            inventory=self._inventory.value,
            health=self._health.value,
            now=time.time(),
            holds=grant.holds,
        )
        # An agent that has just started does not know its devices yet, and what was said of them stands.
        if not entries or _without_times(entries) == _without_times(written):
            return
        patch = apply_patch(claim, RESOURCE_CLAIMS.api_version, entries)
        # A claim that is gone has nobody to be told.
        with suppress(NotFound):
            await self._client.patch(
                RESOURCE_CLAIMS, claim.name, patch, claim.namespace, how=Patch.APPLY, subresource="status"
            )
        self._written[claim.uid] = item, entries

    def _entries(self, item: Object) -> Entries:
        """What the claim's status says of our devices."""
        return [one for one in item.get("status", {}).get("devices") or () if one.get("driver") == self._driver]


def _is_prepared(grant: Grant) -> bool:
    return grant.holder.door is Door.CLAIM and grant.state is State.PREPARED


def _without_times(entries: Entries) -> list[Any]:
    """What the entries say, whenever it was: a new time alone is not worth a write."""
    return [
        {
            **entry,
            "conditions": [
                {key: value for key, value in condition.items() if key != "lastTransitionTime"}
                for condition in entry.get("conditions") or ()
            ],
        }
        for entry in entries
    ]
