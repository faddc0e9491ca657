"""``node-agent run`` as a process of its own: how it begins, what it serves, and how it ends."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node_agent.hardware.simulated.control import send
from node_agent.kit.http_client import get
from node_agent.kubelet.embedded import EmbeddedKubelet
from tests.fakes.config_map import MountedConfigMap
from tests.unit.cli.conftest import Run

RESOURCE = "nvidia.com/gpu"
PROGRAM = [sys.executable, "-c", "from node_agent.cli.main import main; main()"]


@pytest.fixture
def config(folder: Path) -> Path:
    """A file that keeps the agent in the test's folder."""
    paths = {
        "kubeletDir": folder / "kubelet",
        "cdiDir": folder / "cdi",
        "stateDir": folder / "state",
        "runDir": folder / "run",
    }
    agent = {"nodeName": "node-a", "paths": {key: str(path) for key, path in paths.items()}}
    file = folder / "config.yaml"
    file.write_text(json.dumps({"version": "v1", "agent": agent}))
    return file


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[EmbeddedKubelet]:
    async with EmbeddedKubelet(folder / "kubelet" / "device-plugins").running() as kubelet:
        yield kubelet


@asynccontextmanager
async def agent(config: Path, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The agent on a simulated node; killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "run", "--simulate", "l4-2", "--config", config, *words, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """Wait for the end: the exit code, and what was logged."""
    async with asyncio.timeout(30):
        _, logged = await process.communicate()
    assert process.returncode is not None
    return process.returncode, logged.decode()


def sockets(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_socket()}


def simulated_tree(cdi: Path) -> Path:
    """Where the files of the simulated node are, as the CDI spec names them."""
    (spec,) = (json.loads(path.read_text()) for path in cdi.iterdir())
    return Path("/tmp", Path(spec["containerEdits"]["mounts"][0]["hostPath"]).parts[2])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_told_to_end_it_ends_well_and_leaves_nothing_behind(
    folder: Path, config: Path, kubelet: EmbeddedKubelet, number: signal.Signals
) -> None:
    of_others = sockets(folder)
    async with agent(config, "--log-format", "json") as process:
        await kubelet.until(RESOURCE, allocatable=2)
        assert {"agent.sock", "simulate.sock"} < sockets(folder)
        tree = simulated_tree(folder / "cdi")
        assert tree.is_dir()
        process.send_signal(number)
        code, logged = await ended(process)

    assert code == 0
    assert sockets(folder) == of_others
    assert not tree.exists()
    lines = [json.loads(line) for line in logged.splitlines()]
    assert "registered" in [line["event"] for line in lines]
    assert not [line for line in lines if line["level"] == "error"]
    await kubelet.until(RESOURCE, allocatable=0)


async def test_it_answers_probes_and_takes_faults_for_its_simulated_node(
    folder: Path, config: Path, kubelet: EmbeddedKubelet
) -> None:
    async with agent(config, "--log-level", "error"):
        await kubelet.until(RESOURCE, allocatable=2)
        assert await asyncio.to_thread(get, folder / "run" / "agent.sock", "/readyz") == (200, b"ready\n")
        await asyncio.to_thread(send, folder / "run" / "simulate.sock", {"command": "lose-gpu", "gpu": 1, "xid": True})
        await kubelet.until(RESOURCE, allocatable=1)
        await asyncio.to_thread(send, folder / "run" / "simulate.sock", {"command": "restore-gpu", "gpu": 1})


async def test_told_to_end_before_it_has_a_kubelet_it_ends_well(folder: Path, config: Path) -> None:
    async with agent(config) as process:
        async with asyncio.timeout(30):
            while not (folder / "run" / "agent.sock").exists():
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        code, logged = await ended(process)
    assert code == 0
    assert "Traceback" not in logged
    assert sockets(folder) == set()


def test_a_configuration_that_cannot_be_used_is_refused_before_anything_is_made(
    run: Run, folder: Path, config: Path
) -> None:
    config.write_text(config.read_text().replace("nodeName", "nodename"))
    outcome = run("run", "--simulate", "l4-2", "--config", config)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("node-agent: ")
    assert "nodeName" in outcome.err
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml"]


@pytest.mark.parametrize("key", ["runDir", "stateDir"])
def test_a_folder_that_cannot_be_made_is_named_with_its_key(run: Run, folder: Path, config: Path, key: str) -> None:
    (folder / "occupied").write_text("a file, where a folder is to be")
    document = json.loads(config.read_text())
    document["agent"]["paths"][key] = str(folder / "occupied" / "below")
    config.write_text(json.dumps(document))
    outcome = run("run", "--simulate", "l4-2", "--config", config)
    assert outcome.code == 1
    assert outcome.err == f"node-agent: agent.paths.{key}: cannot make {folder}/occupied/below: Not a directory\n"


def test_a_level_that_does_not_exist_is_refused(run: Run) -> None:
    assert run("run", "--log-level", "loud").code == 2


async def test_an_entry_of_the_folder_that_changes_is_in_force_without_a_restart(
    folder: Path, config: Path, kubelet: EmbeddedKubelet
) -> None:
    configs = MountedConfigMap(folder / "configs", {"default": "version: v1"})
    async with agent(config, "--config-dir", str(configs.folder), "--log-format", "json") as process:
        registered = await kubelet.until(RESOURCE, allocatable=2)
        configs.write({"default": "agent: {devices: {exclude: [0]}}"})
        assert (await kubelet.until(RESOURCE, allocatable=1)).endpoint == registered.endpoint
        configs.write({"default": "agent: {devices: {exclde: [0]}, log: {level: error}}"})
        assert "did you mean agent.devices.exclude?" in await refusal(folder / "run" / "agent.sock")
        process.send_signal(signal.SIGTERM)
        code, logged = await ended(process)
    assert code == 0
    events = [json.loads(line)["event"] for line in logged.splitlines()]
    assert events.count("configuration in force") == 1
    assert events.count("configuration refused") == 1


async def refusal(socket: Path) -> str:
    """What the agent says of a configuration that it refused."""
    async with asyncio.timeout(30):
        while True:
            _, body = await asyncio.to_thread(get, socket, "/status")
            if trouble := json.loads(body)["config"].get("trouble"):
                return str(trouble)
            await asyncio.sleep(0.05)
