"""The health of the GPUs as other tools of the node get it over gRPC."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc import StatusCode, aio

from node_agent.errors import KubeletError
from node_agent.kit.tasks import running
from node_agent.model.health import Cause, Instance, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.reporting.health_service import HealthServer, report
from node_agent.wire import grpc_health_v1_pb2 as check
from node_agent.wire import grpc_health_v1_pb2_grpc as check_rpc
from node_agent.wire import health_v1_pb2 as wire
from node_agent.wire import health_v1_pb2_grpc as rpc
from tests.fakes.builders import uuid
from tests.fakes.health import NODE, NOT_PROBED, Ward, xid

SERVING, NOT_SERVING = check.HealthCheckResponse.SERVING, check.HealthCheckResponse.NOT_SERVING


class Served:
    """A ward behind a socket, and stubs for it; ``ready`` is whether the agent says that it is."""

    def __init__(self, folder: Path) -> None:
        self.ward = Ward()
        self.ready = True
        self.socket = folder / "health.sock"

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[aio.Channel]:
        server = HealthServer(self.ward.view, lambda: self.ready, self.socket)
        async with asyncio.timeout(30), running(server.run()):
            while not self.socket.exists():
                await asyncio.sleep(0.01)
            async with aio.insecure_channel(f"unix:{self.socket}") as channel:
                yield channel


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


# The whole of it


async def test_one_call_gets_the_health_of_all_gpus(served: Served) -> None:
    served.ward.ail(1, xid(79))
    served.ward.counts = {(uuid(0), 13): 4}
    async with served.channel() as channel:
        found = await rpc.HealthWatcherStub(channel).Get(wire.GetRequest())
    assert found.node == NODE
    assert [(gpu.name, gpu.severity, dict(gpu.xids)) for gpu in found.gpus] == [
        ("gpu-0", wire.HEALTHY, {13: 4}),
        ("gpu-1", wire.WITHDRAWN, {}),
    ]


def test_a_cause_goes_over_the_wire_with_all_that_is_known_of_it() -> None:
    ward = Ward()
    ward.ail(0, xid(79), Cause(reason=Reason.ECC, severity=Severity.DEGRADED, message="m", since=1))
    first, second = report(ward.view.document).gpus[0].causes
    assert first == wire.Cause(
        reason="xid",
        severity=wire.WITHDRAWN,
        message="Xid 79",
        clears="back when the driver asks for no recovery",
        since=1000.0,
        code=79,
    )
    assert (second.severity, second.HasField("code")) == (wire.DEGRADED, False)


def test_how_far_a_cause_reaches_goes_over_the_wire() -> None:
    ward = Ward()
    part = Cause(reason=Reason.ECC, severity=Severity.EVICTED, message="m", since=1, instance=Instance(id=3, compute=1))
    link = Cause(reason=Reason.NVLINK, severity=Severity.EVICTED, message="m", since=1, peers=frozenset({uuid(1)}))
    ward.ail(0, part, link)
    gpu = report(ward.view.document).gpus[0]
    assert [(one.instance, list(one.peers), one.severity) for one in gpu.causes] == [
        ("3/1", [], wire.EVICTED),
        ("", [uuid(1)], wire.EVICTED),
    ]
    assert gpu.severity == wire.DEGRADED


def test_gpus_that_are_gone_or_cannot_be_read_and_a_driver_in_trouble_are_told() -> None:
    ward = Ward()
    ward.ail(0, NOT_PROBED)
    ward.inventory.set(Inventory(generation=2, missing=(MissingGpu(index=0, reason="lost"),), problem="no driver"))
    found = report(ward.view.document)
    assert [(gpu.name, gpu.gone) for gpu in found.gpus] == [("gpu-0", True)]
    assert list(found.missing) == [wire.MissingGpu(index=0, reason="lost")]
    assert found.trouble == "no driver"


async def test_who_watches_gets_the_present_health_and_each_change(served: Served) -> None:
    async with served.channel() as channel:
        reports = aiter(rpc.HealthWatcherStub(channel).Watch(wire.WatchRequest()))
        assert (await anext(reports)).gpus[0].severity == wire.HEALTHY
        served.ward.ail(0, xid())
        assert (await anext(reports)).gpus[0].severity == wire.WITHDRAWN
        served.ward.ail(0)
        assert (await anext(reports)).gpus[0].severity == wire.HEALTHY


async def test_who_does_not_read_holds_up_nobody_and_gets_the_newest_in_the_end(served: Served) -> None:
    async with served.channel() as channel:
        slow = aiter(rpc.HealthWatcherStub(channel).Watch(wire.WatchRequest()))
        await anext(slow)
        # Large enough to fill what lies between the two sides.
        message = "x" * 100_000
        for code in range(500):
            served.ward.ail(
                0, Cause(reason=Reason.XID, code=code, severity=Severity.WITHDRAWN, message=message, since=1)
            )
            await asyncio.sleep(0)
        taken = 1
        while (await anext(slow)).gpus[0].causes[0].code != 499:
            taken += 1
    assert taken < 400


# Yes or no


@pytest.mark.parametrize("name", ["gpu-1", uuid(1)])
async def test_a_gpu_serves_while_it_is_in_service(served: Served, name: str) -> None:
    async with served.channel() as channel:
        stub, asked = check_rpc.HealthStub(channel), check.HealthCheckRequest(service=name)
        assert (await stub.Check(asked)).status == SERVING
        served.ward.ail(1, xid(severity=Severity.DEGRADED))
        assert (await stub.Check(asked)).status == SERVING
        served.ward.ail(1, xid())
        assert (await stub.Check(asked)).status == NOT_SERVING


async def test_the_empty_name_is_the_agent_itself(served: Served) -> None:
    async with served.channel() as channel:
        stub = check_rpc.HealthStub(channel)
        assert (await stub.Check(check.HealthCheckRequest())).status == SERVING
        served.ready = False
        assert (await stub.Check(check.HealthCheckRequest())).status == NOT_SERVING


async def test_a_gpu_that_is_not_known_is_not_found_with_the_nearest(served: Served) -> None:
    async with served.channel() as channel:
        with pytest.raises(aio.AioRpcError, match="gpu-1") as refused:
            await check_rpc.HealthStub(channel).Check(check.HealthCheckRequest(service="gpu1"))
    assert refused.value.code() is StatusCode.NOT_FOUND


async def test_all_are_listed_by_name_and_by_uuid(served: Served) -> None:
    served.ward.ail(0, xid())
    async with served.channel() as channel:
        listed = await check_rpc.HealthStub(channel).List(check.HealthListRequest())
    assert {name: found.status for name, found in listed.statuses.items()} == {
        "": SERVING,
        "gpu-0": NOT_SERVING,
        uuid(0): NOT_SERVING,
        "gpu-1": SERVING,
        uuid(1): SERVING,
    }


async def test_who_watches_one_gpu_hears_of_it_alone(served: Served) -> None:
    async with served.channel() as channel:
        statuses = aiter(check_rpc.HealthStub(channel).Watch(check.HealthCheckRequest(service="gpu-1")))
        assert (await anext(statuses)).status == SERVING
        served.ward.ail(0, xid())
        await asyncio.sleep(0.05)
        served.ward.ail(1, xid())
        assert (await anext(statuses)).status == NOT_SERVING


async def test_a_gpu_that_comes_later_can_be_watched_already(served: Served) -> None:
    there = served.ward.inventory.value
    served.ward.take(1)
    async with served.channel() as channel:
        statuses = aiter(check_rpc.HealthStub(channel).Watch(check.HealthCheckRequest(service="gpu-1")))
        assert (await anext(statuses)).status == check.HealthCheckResponse.SERVICE_UNKNOWN
        served.ward.inventory.set(there)
        assert (await anext(statuses)).status == SERVING


# The socket


async def test_the_socket_is_the_agents_alone_and_ends_with_it(served: Served) -> None:
    async with served.channel():
        assert stat.S_IMODE(os.stat(served.socket).st_mode) == 0o600
    assert os.listdir(served.socket.parent) == []


async def test_who_still_watches_does_not_keep_the_agent_from_ending(served: Served) -> None:
    async with served.channel() as channel:
        await anext(aiter(rpc.HealthWatcherStub(channel).Watch(wire.WatchRequest())))
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 2


async def test_a_folder_that_is_not_there_is_an_error_that_names_it(served: Served) -> None:
    server = HealthServer(served.ward.view, lambda: True, served.socket.parent / "none" / "health.sock")
    with pytest.raises(KubeletError, match=r"none/health\.sock"):
        await server.run()
