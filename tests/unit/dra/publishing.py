"""A publisher of slices with all that it needs: an API server with a node, and a pool."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

from node_agent.dra.publisher import PublisherState, SlicePublisher
from node_agent.dra.slices import Pool, PoolSettings, laid_out, pool_of
from node_agent.dra.taints import Effect, Taint
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import RESOURCE_SLICES, Object
from node_agent.model.inventory import Inventory
from tests.fakes.api_server import ApiServer
from tests.fakes.builders import h200_node, switched_node, taints_by_gpu, uuid
from tests.fakes.patience import PATIENT
from tests.unit.dra import scheduler

NODE, DRIVER = "n0", "gpu.nvidia.com"
DEVICES, COUNTERS = f"{NODE}-{DRIVER}-devices-000", f"{NODE}-{DRIVER}-counters-000"
XID = Taint(key=f"{DRIVER}/xid", effect=Effect.NO_SCHEDULE, value="79")
# Longer than anything that the publisher waits for in these tests.
QUIET = 0.3


def pool(*tainted: int, node: Inventory | None = None, groups: bool = False, taint: Taint = XID) -> Pool:
    """What eight GPUs publish while some of them have a taint."""
    taints = {uuid(index): [taint] for index in tainted}
    return pool_of(laid_out(node or h200_node(), PoolSettings(groups=groups)), taints_by_gpu(taints))


@cache
def large_node() -> Inventory:
    """So many GPUs that they need two slices."""
    return switched_node([0] * 66, buses=[f"{i:04x}:01:00" for i in range(66)])


class Times:
    """Gives each new taint a time of its own, as the server does."""

    def __init__(self) -> None:
        self._numbers = count()

    def __call__(self, item: Object) -> None:
        for device in item.get("spec", {}).get("devices", ()):
            for taint in device.get("taints", ()):
                if "timeAdded" not in taint:
                    taint["timeAdded"] = f"2026-01-01T00:00:{next(self._numbers):02}Z"


def limits(old: Object | None, new: Object) -> str | None:
    scheduler.check_limits(new["spec"])
    return None


@dataclass
class Place:
    """An API server with a node, and what is to be published there."""

    server: ApiServer
    pool: Latest[Pool | None]
    patience: Patience = PATIENT

    @asynccontextmanager
    async def published(self) -> AsyncIterator[SlicePublisher]:
        """An agent at work; it may be entered again, as an agent is started again."""
        async with KubeClient(self.server.access, patience=self.patience) as client:
            publisher = SlicePublisher(client=client, node=NODE, pool=self.pool, driver=DRIVER)
            async with running(publisher.run()):
                yield publisher

    def drops(self, *fields: str) -> None:
        """Have the server drop fields, as one does whose feature gate is off."""
        for field in fields:
            self.server.strip(field)

    @property
    def slices(self) -> dict[str, Object]:
        return {item["metadata"]["name"]: item for item in self.server.objects(RESOURCE_SLICES)}

    @property
    def devices(self) -> dict[str, Any]:
        found = self.slices.values()
        return {device["name"]: device for item in found for device in item["spec"].get("devices", ())}

    def taints(self) -> dict[str, list[dict[str, str]]]:
        return {name: device["taints"] for name, device in self.devices.items() if "taints" in device}

    def writes(self) -> list[str]:
        """All writes so far, with what they were answered."""
        return [f"{asked.verb} {asked.code}" for asked in self.server.writes("resourceslices")]

    async def settled(self, publisher: SlicePublisher) -> PublisherState:
        """Wait until what is wanted now is stored, and nothing is left to be done."""
        async with asyncio.timeout(30):
            while publisher._settled is not self.pool.value or publisher.state.value.trouble:
                await asyncio.sleep(0.01)
        return publisher.state.value

    async def show(self, publisher: SlicePublisher, wanted: Pool) -> PublisherState:
        self.pool.set(wanted)
        return await self.settled(publisher)

    async def until(self, condition: Callable[[], Any]) -> None:
        await self.server.until(condition)


def wipe(place: Place) -> None:
    """What a kubelet does when it starts."""
    for name in place.slices:
        place.server.remove(RESOURCE_SLICES, name)


def others_slice(name: str = "00000-gpu.nvidia.com-n0-x7k2p") -> Object:
    numbers = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": NODE, "pool": numbers}}
