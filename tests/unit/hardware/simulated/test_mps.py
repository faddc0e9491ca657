"""The stand-in for the MPS control program, by the commands that NVIDIA documents."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node_agent.hardware.simulated import SimulatedNode, load_profile
from node_agent.hardware.simulated.mps import FAULTS
from tests.fakes.mps_client import MpsClient

GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The program of a simulated driver, and a pipe folder."""

    root: Path
    folder: Path

    def run(self, *arguments: str, commands: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "usr/bin/nvidia-cuda-mps-control"), *arguments],
            input=commands,
            capture_output=True,
            text=True,
            env={"CUDA_MPS_PIPE_DIRECTORY": str(self.folder), "CUDA_MPS_LOG_DIRECTORY": str(self.folder)},
            check=False,
            timeout=20,
        )

    def ask(self, *commands: str) -> list[str]:
        return self.run(commands="\n".join(commands) + "\n").stdout.splitlines()

    def start(self, *options: str) -> int:
        assert self.run("-d", *options).returncode == 0
        while not self.ask("get_default_active_thread_percentage")[0][0].isdigit():
            time.sleep(0.02)
        return self.pid

    @property
    def pid(self) -> int:
        return int((self.folder / "nvidia-cuda-mps-control.pid").read_text())

    def break_it(self, **faults: object) -> None:
        (self.root / FAULTS).write_text(json.dumps(faults))


@pytest.fixture
def mps() -> Iterator[Installed]:
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    SimulatedNode(load_profile("h200-8")).write_tree(folder / "root", devices="placeholder")
    (folder / "pipe").mkdir()
    installed = Installed(root=folder / "root", folder=folder / "pipe")
    yield installed
    for server in installed.ask("get_server_list"):
        if server.isdigit():
            os.kill(int(server), signal.SIGKILL)
    if (installed.folder / "nvidia-cuda-mps-control.pid").exists():
        os.kill(installed.pid, signal.SIGKILL)
    shutil.rmtree(folder)


def test_without_a_daemon_commands_find_none(mps: Installed) -> None:
    found = mps.run(commands="get_server_list\n")
    assert found.returncode == 1
    assert found.stdout == "Cannot find MPS control daemon process\n"


def test_a_daemon_stays_and_a_second_one_is_refused(mps: Installed) -> None:
    pid = mps.start()
    os.kill(pid, 0)
    assert Path(f"/proc/{pid}/comm").read_text() == "nvidia-cuda-mps\n"
    assert mps.run("-d").returncode == 1
    assert mps.pid == pid


def test_limits_are_remembered_and_told(mps: Installed) -> None:
    mps.start()
    assert mps.ask("get_default_active_thread_percentage") == ["100.0"]
    assert mps.ask("get_default_device_pinned_mem_limit 0") != ["20G"]
    mps.ask("set_default_active_thread_percentage 25", "set_default_device_pinned_mem_limit 0 20G")
    assert mps.ask("get_default_active_thread_percentage") == ["25.0"]
    assert mps.ask("get_default_device_pinned_mem_limit 0") == ["20G"]


def test_servers_start_for_a_user_and_keep_the_limits_of_their_start(mps: Installed) -> None:
    mps.start()
    assert mps.ask("get_server_list") == []
    mps.ask("set_default_active_thread_percentage 50", "start_server -uid 0")
    (server,) = mps.ask("get_server_list")
    assert mps.ask(f"get_server_status {server}") == ["ACTIVE"]
    mps.ask("set_default_active_thread_percentage 10")
    assert mps.ask(f"get_active_thread_percentage {server}") == ["50.0"]
    mps.ask(f"set_active_thread_percentage {server} 20", f"set_device_pinned_mem_limit {server} 0 512M")
    assert mps.ask(f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} 0") == [
        "20.0",
        "512M",
    ]


@pytest.mark.parametrize(
    "command", ["nonsense", "set_default_active_thread_percentage", "get_client_list 1", "start_server 0", "quit now"]
)
def test_a_command_that_is_none_is_told_and_changes_nothing(mps: Installed, command: str) -> None:
    mps.start()
    assert mps.ask(command) == [f"Unknown command or wrong arguments: {command}"]


@pytest.mark.parametrize("value", ["20", "1.5G", "20Gi", "G"])
def test_a_limit_of_memory_is_an_integer_with_a_unit(mps: Installed, value: str) -> None:
    mps.start()
    assert mps.ask(f"set_default_device_pinned_mem_limit 0 {value}")[0].startswith("Unknown")


def test_a_client_can_lower_its_limits_and_not_raise_them(mps: Installed) -> None:
    mps.start()
    mps.ask("set_default_active_thread_percentage 50", "set_default_device_pinned_mem_limit 0 4G")
    low = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=2G"}
    high = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=9G"}
    with MpsClient(mps.folder, low) as client:
        assert client.granted["threads"] == 20
        assert client.granted["memory"] == {"0": GIB, "1": 2 * GIB}
        assert mps.ask(f"get_client_list {client.granted['server']}") == [str(os.getpid())]
    with MpsClient(mps.folder, high) as client:
        assert client.granted["threads"] == 50
        assert client.granted["memory"] == {"0": 4 * GIB}


def test_quit_waits_for_the_clients_and_takes_the_servers_along(mps: Installed) -> None:
    pid = mps.start()
    with MpsClient(mps.folder, {}) as client:
        server = int(client.granted["server"])
        mps.ask("quit")
        time.sleep(0.2)
        os.kill(pid, 0)
    while (mps.folder / "control").exists():
        time.sleep(0.02)
    while Path(f"/proc/{server}/stat").exists() and ") Z" not in Path(f"/proc/{server}/stat").read_text():
        time.sleep(0.02)
    assert list(mps.folder.glob("nvidia*")) == []


def test_a_start_may_be_refused_and_an_answer_kept_back(mps: Installed) -> None:
    mps.break_it(refuse="no such device")
    refused = mps.run("-d")
    assert (refused.returncode, refused.stderr) == (1, "no such device\n")
    mps.break_it()
    mps.start()
    mps.break_it(silent=True)
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(
            [str(mps.root / "usr/bin/nvidia-cuda-mps-control")],
            input=b"get_server_list\n",
            env={"CUDA_MPS_PIPE_DIRECTORY": str(mps.folder)},
            check=False,
            timeout=0.5,
        )
    mps.break_it()
