"""What the agent needs and does not have for a while: the API server, a disk that takes what it is given."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator

import pytest

from tests.fakes.api_server import ApiServer
from tests.fakes.names import GPU_RESOURCE
from tests.faults.claims import Cluster
from tests.faults.conftest import Simulate, until

LONG = 60.0


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
def h200(simulate: Simulate, server: ApiServer) -> Cluster:
    """Eight H200 in a cluster."""
    return Cluster(simulate("h200-8"), server)


async def test_while_the_api_server_is_away_pods_and_known_claims_are_served_and_one_write_catches_up(
    h200: Cluster,
) -> None:
    place, server = h200.place, h200.server
    async with h200.serving(8):
        known, ends = h200.allocate("known", h200.device_of(0)), h200.allocate("ends", h200.device_of(1))
        sick = h200.device_of(7)
        await h200.prepared(known)
        await h200.prepared(ends)
        before = len(server.writes("resourceslices"))
        await server.stop()

        for number in range(6):
            place.node.faults.lose(7)
            await until(lambda: place.uuid(7) not in place.view.healthy, LONG)
            (held,), _ = await place.kubelet.admit(f"pod-{number}", GPU_RESOURCE, 1)
            assert held not in (place.uuid(0), place.uuid(1), place.uuid(7))
            place.node.faults.restore(7)
            await until(lambda: place.uuid(7) in place.view.healthy, LONG)
            place.kubelet.release(f"pod-{number}")
        assert await h200.prepared(known) == [h200.device_of(0)]
        assert await h200.unprepare(ends) == {"ends": ""}
        place.node.faults.lose(7)
        assert (await place.ask("/healthz"))[0] == 200

        await server.start()
        await until(lambda: "taints" in h200.devices[sick], LONG)
        await asyncio.sleep(0.5)
        assert len(server.writes("resourceslices")) - before <= 3


async def test_while_the_disk_hangs_pods_are_admitted_probes_answered_and_claims_wait_for_it(
    h200: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, fsync = threading.Event(), os.fsync
    works.set()

    def hanging(descriptor: int) -> None:
        works.wait(LONG)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hanging)
    async with h200.serving(8):
        await h200.place.allocatable(8)
        works.clear()
        try:
            ids, _ = await h200.place.kubelet.admit("pod", GPU_RESOURCE, 4)
            device = h200.device_of(next(gpu for gpu in range(8) if h200.place.uuid(gpu) not in ids))
            claimed = asyncio.create_task(h200.prepared(h200.allocate("claimed", device)))
            assert (await h200.place.ask("/healthz"))[0] == 200
            assert not claimed.done()
        finally:
            works.set()
        assert await claimed == [device]
