"""Faults over the socket: the same as from Python, and nothing but an error for what is wrong."""

import os
import socket
import stat
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from node_agent.errors import SimulationError
from node_agent.hardware.simulated import SimulatedNode
from node_agent.hardware.simulated.commands import COMMANDS, carry_out
from node_agent.hardware.simulated.control import ControlServer, send
from tests.unit.hardware.simulated.support import gpu


@pytest.fixture
def path(h200: SimulatedNode, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "control"
    with ControlServer(h200, path):
        yield path


def ask(path: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


# The conversation


def test_a_command_is_carried_out_and_confirmed(path: Path) -> None:
    event_set = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(gpu(2), pynvml.nvmlEventTypeXidCriticalError, event_set)
    assert send(path, {"command": "xid", "gpu": "2", "code": 79}) == {"ok": True}
    assert pynvml.nvmlEventSetWait(event_set, 0).eventData == 79


def test_a_refusal_is_raised_at_the_client(path: Path) -> None:
    with pytest.raises(SimulationError, match="no GPU is '42'; there are 0 = gpu-2 = GPU-"):
        send(path, {"command": "lose-gpu", "gpu": 42})


def test_one_line_is_answered_by_one_line(path: Path) -> None:
    assert ask(path, b'{"command": "clear"}\n') == b'{"ok":true}\n'


@pytest.mark.parametrize("line", [b"\n", b"lose gpu 3\n", b'{"command": "clear"\n', b"\xff\n"])
def test_a_line_that_is_no_json_is_an_error(path: Path, line: bytes) -> None:
    assert ask(path, line).startswith(b'{"error":"a request is one line of JSON: ')


def test_who_hangs_up_without_asking_is_not_answered(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask(path, b"") == b""
    with socket.socket(socket.AF_UNIX) as hasty:
        hasty.connect(str(path))
        hasty.sendall(b'{"command": "clear"}\n')
    assert send(path, {"command": "clear"}) == {"ok": True}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("line", [b"[1]\n", b"3\n", b"{}\n", b'{"command": "explode"}\n', b'{"command": null}\n'])
def test_a_request_without_a_known_command_lists_them(path: Path, line: bytes) -> None:
    assert b"; there are clear, cut-gpu, driver, ecc, fabric, fail" in ask(path, line)


def test_many_can_ask_at_once(path: Path, h200: SimulatedNode) -> None:
    askers = [
        threading.Thread(target=send, args=(path, {"command": "start-process", "gpu": 0, "pid": pid}))
        for pid in range(1, 21)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert sorted(process.pid for process in h200.faults.gpu(0).processes) == list(range(1, 21))


def test_an_idle_client_holds_up_nobody(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(path))
        assert send(path, {"command": "clear"}) == {"ok": True}
        idle.sendall(b"\n")


def test_the_server_answers_while_a_call_hangs(path: Path) -> None:
    send(path, {"command": "hang", "call": "nvmlDeviceGetName", "seconds": 30})
    names: list[str] = []
    waiter = threading.Thread(target=lambda: names.append(pynvml.nvmlDeviceGetName(gpu(0))))
    waiter.start()
    send(path, {"command": "clear"})
    waiter.join(timeout=5)
    assert names == ["NVIDIA H200"]


# The socket


def test_only_the_owner_can_use_the_socket(path: Path) -> None:
    mode = os.stat(path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_the_socket_goes_with_the_server(h200: SimulatedNode, tmp_path: Path) -> None:
    path = tmp_path / "control"
    with ControlServer(h200, path):
        assert path.exists()
    assert not path.exists()
    with pytest.raises(SimulationError, match=f"no simulated node answers on {path}: .*No such file"):
        send(path, {"command": "clear"})


def test_a_server_can_be_started_and_stopped_by_hand(h200: SimulatedNode, tmp_path: Path) -> None:
    server = ControlServer(h200, tmp_path / "control")
    server.stop()
    for _ in range(2):
        server.start()
        assert send(tmp_path / "control", {"command": "clear"}) == {"ok": True}
        server.stop()


def test_a_socket_that_a_dead_server_left_is_replaced(h200: SimulatedNode, tmp_path: Path) -> None:
    path = tmp_path / "control"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with ControlServer(h200, path):
        assert send(path, {"command": "clear"}) == {"ok": True}


def test_a_socket_in_use_is_left_alone(h200: SimulatedNode, path: Path) -> None:
    with pytest.raises(SimulationError, match="another server answers there"), ControlServer(h200, path):
        pass
    assert send(path, {"command": "clear"}) == {"ok": True}


def test_a_file_in_the_way_is_left_alone(h200: SimulatedNode, tmp_path: Path) -> None:
    path = tmp_path / "control"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(SimulationError, match="cannot listen on"), ControlServer(h200, path):
        pass
    assert path.read_text(encoding="utf-8") == "precious"


def test_a_path_that_is_too_long_says_so(h200: SimulatedNode, tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="use a shorter folder"), ControlServer(h200, tmp_path / ("x" * 120)):
        pass


def test_a_server_that_says_nothing_is_no_simulated_node(tmp_path: Path) -> None:
    path = tmp_path / "silent"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()

        def hang_up() -> None:
            connection, _ = silent.accept()
            connection.recv(4096)
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(SimulationError, match="no simulated node answers"):
            send(path, {"command": "clear"})
        thread.join()


# The commands


REQUESTS: list[dict[str, Any]] = [
    {"command": "clear"},
    {"command": "cut-gpu", "gpu": 0, "parts": ["1g.18gb@0"]},
    {"command": "driver", "state": "loaded", "version": "590.1"},
    {"command": "ecc", "gpu": 0, "kind": "corrected", "count": 2, "location": "sram"},
    {"command": "fabric", "gpu": 0, "state": "in-progress", "cluster": str(uuid.UUID(int=7)), "status": 999},
    {"command": "fail", "call": "nvmlDeviceGetName", "code": "UNKNOWN", "gpu": "gpu-3", "times": 2},
    {"command": "hang", "call": "nvmlDeviceGetName", "seconds": 0, "gpu": 1},
    {"command": "link", "gpu": 0, "link": 3, "up": False},
    {"command": "link-errors", "gpu": 0, "link": 3, "counter": "replay", "count": 4},
    {"command": "load", "gpu": 0, "load": 1},
    {"command": "lose-gpu", "gpu": 0, "xid": True},
    {"command": "pcie", "gpu": 0, "generation": 3, "width": 8},
    {"command": "plug-gpu", "gpu": 0},
    {"command": "recovery-action", "gpu": 0, "action": "gpu-reset"},
    {"command": "remap-rows", "gpu": 0, "pending": True, "spent": {"none": 1}},
    {"command": "restore-gpu", "gpu": 0},
    {"command": "retire-pages", "gpu": 0, "cause": "double-bit", "addresses": [4096]},
    {"command": "slow-down", "gpu": 0, "reasons": ["hw-slowdown"]},
    {"command": "start-process", "gpu": 0, "pid": 1, "memory": 1024},
    {"command": "stop-process", "gpu": 0, "pid": 1},
    {"command": "unplug-gpu", "gpu": 0},
    {"command": "xid", "gpu": 0, "code": 94, "instance": 1, "compute_instance": 0},
]


def test_every_command_is_tested() -> None:
    assert [request["command"] for request in REQUESTS] == list(COMMANDS)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: str(request["command"]))
def test_a_command_reaches_its_fault(h200: SimulatedNode, request_: dict[str, Any]) -> None:
    before = everything(h200)
    if request_["command"] == "stop-process":
        h200.faults.start_process(0, 1)
    if request_["command"] == "retire-pages":
        with pytest.raises(SimulationError, match="does not retire pages"):
            carry_out(h200.faults, request_)
        return
    carry_out(h200.faults, request_)
    unchanged = {"clear", "restore-gpu", "plug-gpu", "stop-process", "xid"}
    assert (everything(h200) == before) == (request_["command"] in unchanged)


def everything(node: SimulatedNode) -> str:
    driver = node.faults._driver
    return f"{driver.gpus} {driver.version} {len(driver.call_faults)}"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (
            {"command": "xid", "gpu": 0},
            r"xid: Object missing required field `code`; its fields are gpu, code, instance\?",
        ),
        ({"command": "xid", "gpu": 0, "code": "79"}, r"xid: Expected `int`, got `str` - at `\$\.code`"),
        ({"command": "xid", "gpu": 0, "code": 79, "fast": 1}, "xid: Object contains unknown field `fast`"),
        ({"command": "xid", "gpu": None, "code": 79}, r"xid: Expected `int | str`, got `null` - at `\$\.gpu`"),
        ({"command": "fail", "call": "nvmlInit", "code": 3, "times": 0}, r"fail: Expected `int` >= 1 - at `\$\.times`"),
        ({"command": "hang", "call": "x", "seconds": -1}, r"hang: Expected `float` >= 0\.0"),
        ({"command": "clear", "gpu": 0}, "clear: Object contains unknown field `gpu`; its fields are none"),
        ({"command": "fabric", "cluster": "x"}, "fabric: Invalid UUID"),
        ({"command": "remap-rows", "gpu": 0, "spent": {"none": -1}}, r"remap-rows: Expected `int` >= 0"),
        ({"command": "start-process", "gpu": 0, "pid": 0}, r"start-process: Expected `int` >= 1 - at `\$\.pid`"),
    ],
)
def test_a_wrong_field_is_named(h200: SimulatedNode, request_: dict[str, Any], message: str) -> None:
    before = everything(h200)
    with pytest.raises(SimulationError, match=message):
        carry_out(h200.faults, request_)
    assert everything(h200) == before
