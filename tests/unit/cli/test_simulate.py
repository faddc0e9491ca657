"""``node-agent simulate``: every command reaches the simulated node as the request that it takes."""

import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.control import ControlServer
from tests.unit.cli.conftest import Run

REQUESTS: list[tuple[list[str], dict[str, Any]]] = [
    (["xid", "--gpu", "1", "--code", "48"], {"command": "xid", "gpu": "1", "code": 48, "recovery": True}),
    (
        ["xid", "--gpu", "1", "--code", "48", "--no-recovery"],
        {"command": "xid", "gpu": "1", "code": 48, "recovery": False},
    ),
    (
        ["xid", "--gpu", "1", "--code", "94", "--instance", "7", "--compute-instance", "0"],
        {"command": "xid", "gpu": "1", "code": 94, "recovery": True, "instance": 7, "compute_instance": 0},
    ),
    (
        ["recovery-action", "--gpu", "1", "gpu-reset"],
        {"command": "recovery-action", "gpu": "1", "action": "gpu-reset"},
    ),
    (
        ["ecc", "--gpu", "1", "uncorrected", "--count", "3"],
        {"command": "ecc", "gpu": "1", "kind": "uncorrected", "count": 3},
    ),
    (
        ["cut-gpu", "--gpu", "1", "3g.71gb@0", "1g.18gb@6"],
        {"command": "cut-gpu", "gpu": "1", "parts": ["3g.71gb@0", "1g.18gb@6"], "enabled": True},
    ),
    (["cut-gpu", "--gpu", "1", "--off"], {"command": "cut-gpu", "gpu": "1", "parts": [], "enabled": False}),
    (["remap-rows", "--gpu", "1", "--pending"], {"command": "remap-rows", "gpu": "1", "pending": True}),
    (["remap-rows", "--gpu", "1", "--no-failure"], {"command": "remap-rows", "gpu": "1", "failure": False}),
    (
        ["retire-pages", "--gpu", "1", "double-bit", "--count", "2", "--no-pending"],
        {
            "command": "retire-pages",
            "gpu": "1",
            "cause": "double-bit",
            "addresses": [0, 65536],
            "pending": False,
        },
    ),
    (
        ["nvlink", "--gpu", "1", "--link", "3", "--xid", "down"],
        {"command": "link", "gpu": "1", "link": 3, "up": False, "xid": True},
    ),
    (
        ["nvlink", "--gpu", "1", "--link", "3", "up"],
        {"command": "link", "gpu": "1", "link": 3, "up": True, "xid": False},
    ),
    (["fabric", "--state", "in-progress"], {"command": "fabric", "state": "in-progress"}),
    (
        ["fabric", "--gpu", "1", "--status", "TIMEOUT", "--summary", "unhealthy", "--health-mask", "425"],
        {"command": "fabric", "gpu": "1", "status": "TIMEOUT", "summary": "unhealthy", "health_mask": 425},
    ),
    (
        ["pcie", "--gpu", "1", "--generation", "3", "--width", "8"],
        {"command": "pcie", "gpu": "1", "generation": 3, "width": 8},
    ),
    (["pcie", "--gpu", "1"], {"command": "pcie", "gpu": "1"}),
    (
        ["slow-down", "--gpu", "1", "hw-slowdown", "hw-thermal-slowdown"],
        {"command": "slow-down", "gpu": "1", "reasons": ["hw-slowdown", "hw-thermal-slowdown"]},
    ),
    (["slow-down", "--gpu", "1"], {"command": "slow-down", "gpu": "1", "reasons": []}),
    (["load", "--gpu", "1", "0.5"], {"command": "load", "gpu": "1", "load": 0.5}),
    (["lose-gpu", "--gpu", "gpu-1"], {"command": "lose-gpu", "gpu": "gpu-1", "xid": False}),
    (["lose-gpu", "--gpu", "1", "--xid"], {"command": "lose-gpu", "gpu": "1", "xid": True}),
    (["restore-gpu", "--gpu", "1"], {"command": "restore-gpu", "gpu": "1"}),
    (["unplug-gpu", "--gpu", "1"], {"command": "unplug-gpu", "gpu": "1"}),
    (["plug-gpu", "--gpu", "1"], {"command": "plug-gpu", "gpu": "1"}),
    (
        ["fail", "--call", "nvmlDeviceGetTemperature", "--code", "GPU_IS_LOST", "--gpu", "0", "--times", "2"],
        {"command": "fail", "call": "nvmlDeviceGetTemperature", "code": "GPU_IS_LOST", "gpu": "0", "times": 2},
    ),
    (
        ["fail", "--call", "nvmlDeviceGetTemperature", "--code", "15"],
        {"command": "fail", "call": "nvmlDeviceGetTemperature", "code": 15},
    ),
    (
        ["hang", "--call", "nvmlDeviceGetCount_v2", "--seconds", "1.5"],
        {"command": "hang", "call": "nvmlDeviceGetCount_v2", "seconds": 1.5},
    ),
    (
        ["hang", "--call", "nvmlDeviceGetTemperature", "--seconds", "2", "--gpu", "1"],
        {"command": "hang", "call": "nvmlDeviceGetTemperature", "seconds": 2.0, "gpu": "1"},
    ),
    (["driver", "not-loaded"], {"command": "driver", "state": "not-loaded"}),
    (["driver", "loaded"], {"command": "driver", "state": "loaded"}),
    (["clear"], {"command": "clear"}),
]
COMMANDS = pytest.mark.parametrize(("words", "request_line"), REQUESTS, ids=[" ".join(words) for words, _ in REQUESTS])


class Secretary(socketserver.UnixStreamServer):
    """Writes down what it is asked, and says that it was done."""

    def __init__(self, path: Path) -> None:
        self.heard: list[Any] = []
        super().__init__(str(path), _Conversation)


class _Conversation(socketserver.StreamRequestHandler):
    server: Secretary

    def handle(self) -> None:
        self.server.heard.append(json.loads(self.rfile.readline()))
        self.wfile.write(b'{"ok": true}\n')


@pytest.fixture
def secretary(folder: Path) -> Iterator[Secretary]:
    with Secretary(folder / "simulate.sock") as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def node() -> Iterator[SimulatedNode]:
    node = SimulatedNode(load_profile("l4-2"))
    with install(node):
        pynvml.nvmlInit()
        yield node


@pytest.fixture
def control(node: SimulatedNode, folder: Path) -> Iterator[Path]:
    with ControlServer(node, folder / "simulate.sock"):
        yield folder / "simulate.sock"


@COMMANDS
def test_a_command_is_one_request(
    run: Run, secretary: Secretary, folder: Path, words: list[str], request_line: dict[str, Any]
) -> None:
    outcome = run("simulate", *words, "--socket", folder / "simulate.sock")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert secretary.heard == [request_line]


@COMMANDS
def test_a_simulated_node_that_has_everything_takes_every_request(
    run: Run, folder: Path, words: list[str], request_line: dict[str, Any]
) -> None:
    profile = load_profile("h200-8")
    boards = {name: msgspec.structs.replace(board, page_retirement=True) for name, board in profile.boards.items()}
    node = SimulatedNode(msgspec.structs.replace(profile, boards=boards))
    with ControlServer(node, folder / "simulate.sock"):
        assert run("simulate", *words, "--socket", folder / "simulate.sock").err == ""


def test_a_lost_gpu_is_lost_to_nvml_until_it_is_restored(run: Run, node: SimulatedNode, control: Path) -> None:
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    run("simulate", "lose-gpu", "--gpu", "gpu-1", "--socket", control)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    run("simulate", "restore-gpu", "--gpu", "gpu-1", "--socket", control)
    assert pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU) > 0


def test_a_call_fails_until_it_is_cleared(run: Run, node: SimulatedNode, control: Path) -> None:
    run("simulate", "fail", "--call", "nvmlDeviceGetCount_v2", "--code", "UNKNOWN", "--socket", control)
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetCount()
    run("simulate", "clear", "--socket", control)
    assert pynvml.nvmlDeviceGetCount() == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["xid", "--gpu", "9", "--code", "79"], "no GPU is '9'; there are 0 = gpu-0"),
        (["fail", "--call", "nvmlGuess", "--code", "UNKNOWN"], "nvmlGuess"),
        (["fail", "--call", "nvmlDeviceGetCount_v2", "--code", "TIRED"], "TIRED"),
    ],
)
def test_what_the_node_does_not_have_is_refused_in_its_words(
    run: Run, control: Path, words: list[str], complaint: str
) -> None:
    outcome = run("simulate", *words, "--socket", control)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("node-agent: ")
    assert complaint in outcome.err


@pytest.mark.parametrize(
    "words", [["xid", "--gpu", "1"], ["xid", "--gpu", "1", "--code", "x"], ["driver", "gone"], ["lose-gpu"]]
)
def test_a_command_that_lacks_a_word_is_refused_before_it_is_sent(
    run: Run, secretary: Secretary, folder: Path, words: list[str]
) -> None:
    assert run("simulate", *words, "--socket", folder / "simulate.sock").code == 2
    assert secretary.heard == []


def test_without_a_simulated_node_one_line_names_the_socket(run: Run, folder: Path) -> None:
    outcome = run("simulate", "clear", "--socket", folder / "none.sock")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"node-agent: no simulated node answers on {folder}/none.sock")
    assert len(outcome.err.splitlines()) == 1


def test_the_socket_may_be_named_by_a_variable(
    run: Run, secretary: Secretary, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_AGENT_SIMULATE_SOCKET", str(folder / "simulate.sock"))
    assert run("simulate", "clear").code == 0
    assert secretary.heard == [{"command": "clear"}]
