"""The agent's health as those around it get it: over its socket, over TCP, and over gRPC."""

import asyncio
import socket
from pathlib import Path

import msgspec
from grpc import aio

from node_agent.kit.http_client import get, post
from node_agent.reporting.health import HealthDocument
from node_agent.wire import grpc_health_v1_pb2 as check
from node_agent.wire import grpc_health_v1_pb2_grpc as check_rpc
from tests.unit.agent.conftest import Place

OPERATOR = {"agent_health_rules": [{"xids": [79], "clearedBy": "operator"}]}


async def health(place: Place) -> dict[str, str]:
    code, body = await asyncio.to_thread(get, socket_of(place), "/health")
    assert code == 200
    return {gpu.name: gpu.health for gpu in msgspec.json.decode(body, type=HealthDocument).gpus}


def socket_of(place: Place) -> Path:
    return place.folder / "run" / "agent.sock"


async def until_health(place: Place, **expected: str) -> None:
    """Wait until these GPUs, with ``_`` for ``-``, and no others are out of service or degraded."""
    wanted = {name.replace("_", "-"): word for name, word in expected.items()}
    async with asyncio.timeout(30):
        while not socket_of(place).exists():
            await asyncio.sleep(0.02)
        while True:
            found = await health(place)
            if len(found) == 8 and {name: word for name, word in found.items() if word != "healthy"} == wanted:
                return
            await asyncio.sleep(0.02)


async def test_an_operator_clears_a_cause_over_the_socket_and_the_gpu_is_in_service_again(place: Place) -> None:
    async with place.agent(place.settings(**OPERATOR)):
        await until_health(place)
        place.simulated.node.faults.xid("gpu-3", 79, recovery=False)
        await until_health(place, gpu_3="withdrawn")
        code, body = await asyncio.to_thread(post, socket_of(place), "/health/clear?gpu=gpu-3&xid=79")
        assert (code, [one["code"] for one in msgspec.json.decode(body)]) == (200, [79])
        await until_health(place)


async def test_xids_are_counted_also_where_they_mean_nothing(place: Place) -> None:
    async with place.agent():
        await until_health(place)
        for code in (13, 13, 31):
            place.simulated.node.faults.xid("gpu-3", code, recovery=False)
        async with asyncio.timeout(30):
            while True:
                _, body = await asyncio.to_thread(get, socket_of(place), "/health")
                document = msgspec.json.decode(body, type=HealthDocument)
                if next(gpu.xids for gpu in document.gpus if gpu.name == "gpu-3") == {"13": 2, "31": 1}:
                    return
                await asyncio.sleep(0.02)


async def test_over_tcp_the_health_can_be_read_and_nothing_cleared(place: Place) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with place.agent(place.settings(agent_http_address=f"127.0.0.1:{port}")):
        await until_health(place)
        assert (await over_tcp(port, "GET /health")).startswith(b"HTTP/1.1 200 ")
        assert (await over_tcp(port, "POST /health/clear?gpu=gpu-3")).startswith(b"HTTP/1.1 404 ")


async def over_tcp(port: int, asked: str) -> bytes:
    async with asyncio.timeout(30):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
        writer.write(f"{asked} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


async def test_other_tools_ask_for_the_agent_and_for_each_gpu_over_grpc(place: Place) -> None:
    async with place.kubelet.running(), place.agent():
        await until_health(place)
        place.simulated.node.faults.xid("gpu-3", 79)
        await until_health(place, gpu_3="withdrawn")
        async with asyncio.timeout(30), aio.insecure_channel(f"unix:{place.folder}/run/health.sock") as channel:
            stub = check_rpc.HealthStub(channel)
            statuses = [
                (await stub.Check(check.HealthCheckRequest(service=name))).status for name in ("gpu-2", "gpu-3")
            ]
            while (await stub.Check(check.HealthCheckRequest())).status != check.HealthCheckResponse.SERVING:
                await asyncio.sleep(0.05)
    assert statuses == [check.HealthCheckResponse.SERVING, check.HealthCheckResponse.NOT_SERVING]
