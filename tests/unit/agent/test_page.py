"""The page of the agent at work: its pods, its MIG devices and its settings, and where it is served."""

import asyncio
import socket
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import pytest

from node_agent.agent.build import built
from node_agent.agent.reload import Configuration
from node_agent.config.resolve import Sources
from node_agent.kit.http_client import get
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.reporting.overview import Overview
from tests.unit.agent.conftest import Place

GPU = "nvidia.com/gpu"


async def ask(place: Place, path: str) -> str:
    code, body = await asyncio.to_thread(get, place.folder / "run" / "agent.sock", path)
    assert code == 200
    return body.decode()


async def overview(place: Place) -> Overview:
    return msgspec.json.decode(await ask(place, "/overview"), type=Overview)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def test_a_pod_is_shown_with_its_gpus_and_goes_when_it_ends(place: Place) -> None:
    async with place.kubelet.running(), place.agent():
        await place.kubelet.until(GPU, allocatable=8)
        ids, _ = await place.kubelet.admit("trainer", GPU, 2)
        async with asyncio.timeout(30):
            while not any(pod.pod == "trainer" for one in (await overview(place)).holdings for pod in one.pods):
                await asyncio.sleep(0.1)
        found = await overview(place)
        assert {one.device for one in found.holdings} == set(ids)
        by_name = {gpu.name: gpu for gpu in found.gpus}
        assert {by_name[name].uuid for one in found.holdings for name in one.gpus} == set(ids)
        assert all(gpu.temperature and gpu.at for gpu in found.gpus)
        assert "default/trainer" in await ask(place, "/")


async def test_settings_are_shown_with_their_sources(place: Place) -> None:
    sources = Sources(flags={"agent.nodeName": "shown"}, environment={"KUBECONFIG": ""})
    configuration = Configuration(sources=sources, label=Latest(None), first=sources.resolve())
    async with built(place.settings(), place.simulated.stat, configuration) as agent:
        found = {one.key: one for one in agent.settings()}
    assert (found["agent.nodeName"].value, found["agent.nodeName"].source) == ("shown", "command line")
    assert found["agent.http.page"].source == "default"


@pytest.mark.parametrize("page", [True, False])
async def test_over_tcp_the_page_is_served_unless_it_is_switched_off(place: Place, page: bool) -> None:
    port = free_port()

    def code(path: str) -> int:
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                found: int = answer.status
                return found
        except HTTPError as error:
            with error:
                return error.code

    settings = place.settings(agent_http_address=f"127.0.0.1:{port}", agent_http_page=page)
    async with place.kubelet.running(), built(settings, place.simulated.stat) as agent, running(agent.run()):
        await place.kubelet.until(GPU, allocatable=8)
        codes = [await asyncio.to_thread(code, path) for path in ("/", "/overview", "/status")]
        assert codes == ([200, 200, 200] if page else [404, 404, 200])
        assert "<html" in await ask(place, "/")


def test_the_picture_in_the_manual_is_there_and_small() -> None:
    picture = Path(__file__).parents[3] / "docs/user/page.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 256 * 1024
