"""Keeps in mind what the node's pool should hold: ``slices`` decides that, ``publisher`` brings it to the API."""

import math
import time

from node_agent.dra.slices import Layout, Pool, PoolSettings, at_rest, laid_out, pool_of, remembered
from node_agent.dra.taints import Taint, taints_of
from node_agent.kit.latest import Latest, changes
from node_agent.model.device import PublishedDevice
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Place


class PoolKeeper:
    """A service: follows inventory, health and ``settings`` in ``pool``, which is None until both are known.

    ``withheld`` are places that the scheduler must not give out although they are sound: see ``Withholder``.

    The GPUs' first probe is awaited for ``patience`` seconds: until then all of them are unfit for work, and an agent
    that is merely started again would taint them all and clear them a moment later.
    """

    def __init__(
        self,
        *,
        inventory: Latest[Inventory],
        health: Latest[HealthReport],
        withheld: Latest[frozenset[Place]],
        settings: Latest[PoolSettings],
        patience: float = 5.0,
    ) -> None:
        self._inventory = inventory
        self._health = health
        self._withheld = withheld
        self._settings = settings
        self._patience = patience
        self._known, self._laid_out_by = Inventory(), settings.value
        self._layout, self._laid_out_of = Layout(), Inventory()
        self._deadline = math.inf
        self.pool: Latest[Pool | None] = Latest(None)

    async def run(self) -> None:
        """Follow until cancelled."""
        async for _ in changes(self._inventory, self._health, self._withheld, self._settings, every=self._pause):
            self._look_at_inventory()
            waiting = self.pool.value is None and not self._probed and time.monotonic() < self._deadline
            if self._known.generation and not waiting:
                self.pool.set(pool_of(self._layout, self._taints))

    def _pause(self) -> float:
        return max(0.0, self._deadline - time.monotonic()) if self.pool.value is None else math.inf

    def _look_at_inventory(self) -> None:
        inventory, settings = self._inventory.value, self._settings.value
        if inventory.generation == self._known.generation and settings is self._laid_out_by:
            return
        if not self._known.generation:
            # Patience begins when there is something to probe.
            self._deadline = time.monotonic() + self._patience
        self._known = remembered(self._known, inventory)
        lasting = at_rest(self._known, settings)
        if lasting != self._laid_out_of or settings is not self._laid_out_by:
            self._layout, self._laid_out_of = laid_out(lasting, settings), lasting
        self._laid_out_by = settings

    @property
    def _probed(self) -> bool:
        return all(self._health.value.of(gpu).probed for gpu in self._inventory.value.by_uuid)

    def _taints(self, device: PublishedDevice) -> tuple[Taint, ...]:
        return taints_of(device, self._health.value, self._inventory.value, self._withheld.value)
