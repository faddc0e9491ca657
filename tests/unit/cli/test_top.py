"""``node-agent top`` against a live agent's socket: what it prints, and how it is drawn anew in a terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from node_agent.cli.top import show
from node_agent.kit.http import Request, Response, serving
from node_agent.reporting.health import MissingStatus
from node_agent.reporting.overview import GpuUse, HoldingStatus, Overview, PartitionUse, PodUse
from tests.unit.cli.beside import beside
from tests.unit.cli.conftest import Run

BUSY = GpuUse(
    name="gpu-0",
    uuid="GPU-0",
    product="NVIDIA H200",
    pci="0000:1b:00.0",
    health="healthy",
    at=90.0,
    memory=140 << 30,
    memory_used=70 << 30,
    utilization=0.9,
    temperature=62,
    power=594.4,
    power_limit=700,
    partitions=(PartitionUse(uuid="MIG-1", profile="3g.71gb", start=4, length=4, memory=76 << 30),),
)
IDLE = msgspec.structs.replace(BUSY, name="gpu-1", uuid="GPU-1", utilization=0.1, memory_used=0, partitions=())
MUTE = GpuUse(name="gpu-2", uuid="GPU-2", product="TITAN [X]", pci="0000:3b:00.0", health="withdrawn")


def held(gpu: str, pod: str, **more: str) -> HoldingStatus:
    pods = (PodUse(namespace="ml", pod=pod, container="main"),) if pod else ()
    door, holder = more.get("door", "limit"), more.get("holder", "nvidia.com/gpu")
    return HoldingStatus(door=door, holder=holder, device=gpu, gpus=(gpu,), part=more.get("part", ""), pods=pods)


NODE = Overview(
    node="node-a",
    gpus=(BUSY, IDLE, MUTE),
    holdings=(
        held("gpu-1", "idler"),
        held("gpu-0", "trainer", door="claim", holder="ml/half", part="3g.71gb at 4"),
        held("gpu-7", ""),
    ),
)


@contextmanager
def at_work(path: Path, body: bytes = b"") -> Iterator[Path]:
    async def answer(_: Request) -> Response:
        return Response(body=body or msgspec.json.encode(NODE))

    with beside(lambda: serving({"/overview": answer}, path)):
        yield path


def test_gpus_are_shown_with_use_memory_heat_and_power(run: Run, folder: Path) -> None:
    with at_work(folder / "s"):
        lines = run("top", "--once", "--socket", folder / "s").lines
    assert lines[0].startswith("node-a  ")
    assert lines[0].endswith("3 GPUs, 50% in use, 1189 W")
    rows = {line.split()[0]: " ".join(line.split()) for line in lines if line.strip()}
    assert "NVIDIA H200 healthy █████████░ 90% 70.0 of 140 GiB 62 °C 594 of 700 W" in rows["gpu-0"]
    assert rows["3g.71gb"] == "3g.71gb at 4 ? of 76 GiB"
    assert rows["gpu-2"] == "gpu-2 TITAN [X] withdrawn ? ? ? ? not yet"


def test_who_uses_the_most_comes_first_with_pod_device_and_claim(run: Run, folder: Path) -> None:
    with at_work(folder / "s"):
        lines = [" ".join(line.split()) for line in run("top", "--once", "--socket", folder / "s").lines]
    first, second, third = lines[-3:]
    assert first == "ml/trainer main gpu-0 (3g.71gb at 4) █████████░ 90% 70.0 of 140 GiB claim ml/half"
    assert second == "ml/idler main gpu-1 █░░░░░░░░░ 10% 0.0 of 140 GiB limit nvidia.com/gpu"
    assert third == "(not told by the kubelet yet) gpu-7 ? ? limit nvidia.com/gpu"


def test_what_one_pod_has_of_one_resource_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    holdings = (held("gpu-0", "trainer"), held("gpu-1", "trainer"))
    show(Overview(node="n", gpus=(BUSY, IDLE), holdings=holdings), 100.0)
    last = " ".join(capsys.readouterr().out.splitlines()[-1].split())
    assert last == "ml/trainer main gpu-0, gpu-1 █████░░░░░ 50% 70.0 of 280 GiB limit nvidia.com/gpu"


def test_a_node_without_gpus_and_without_pods_is_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    show(Overview(node=""), 100.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "this node  1970-01-01 00:01:40 UTC  0 GPUs, use not known, 0 W"
    assert lines[-1] == "nobody holds a device"


def test_gpus_that_cannot_be_read_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    lost = (MissingStatus(index=3, reason="[lost]", uuid="GPU-3"),)
    show(Overview(node="n", gpus=(BUSY,), missing=lost), 100.0)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "missing index 3 GPU-3: [lost]" in lines
    # Where none can be read the reason is one for all.
    show(Overview(node="n", missing=lost, problem="the driver is not loaded"), 100.0)
    text = capsys.readouterr().out
    assert ("no GPU can be read the driver is not loaded" in text, "missing" in text) == (True, False)


def test_as_json_it_is_the_document(run: Run, folder: Path) -> None:
    with at_work(folder / "s"):
        outcome = run("top", "-o", "json", "--socket", folder / "s")
    assert msgspec.json.decode(outcome.out, type=Overview) == NODE


def test_no_agent_and_one_of_another_version_are_one_clear_line(run: Run, folder: Path) -> None:
    outcome = run("top", "--once", "--socket", folder / "none")
    assert (outcome.code, "no agent answers on" in outcome.err) == (1, True)
    with at_work(folder / "s", b'{"gpus": 3}'):
        outcome = run("top", "--once", "--socket", folder / "s")
    assert (outcome.code, "of another version" in outcome.err) == (1, True)


def test_in_a_terminal_it_is_drawn_anew_until_it_is_told_to_end(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from node_agent.cli.main import main; main()", "top", "--interval", "0.5"]
    with (
        at_work(folder / "s"),
        subprocess.Popen(
            [*command, "--socket", folder / "s"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
        ) as shown,
    ):
        os.close(theirs)
        text, until = "", time.monotonic() + 30
        while text.count("ml/trainer") < 3 and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                text += os.read(ours, 65536).decode(errors="replace")
        shown.send_signal(signal.SIGINT)
        assert shown.wait(10) == 0
    os.close(ours)
    assert text.count("\x1b[H\x1b[J") >= 3
