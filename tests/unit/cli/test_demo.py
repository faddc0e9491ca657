"""``node-agent demo``: every scene is played on every kind of node, and nothing is left of it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node_agent.kit.http_client import get

PROGRAM = [sys.executable, "-c", "from node_agent.cli.main import main; main()", "demo"]


PAGE = Path(__file__).resolve().parents[3] / "docs" / "user" / "demo.md"


def scenes(text: str) -> list[str]:
    """What a demo shows of the node and its allocations, but for figures: times are another each time."""
    shown = text.partition("8 × NVIDIA H200\n")[2].partition("Health  ")[0]
    return [re.sub(r"\d+", "0", line).rstrip() for line in shown.splitlines()]


def played(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=120, check=False)


def test_the_demo_shows_the_agent_at_work_from_the_registration_to_the_summary() -> None:
    done = played()
    assert (done.returncode, done.stderr) == (0, "")
    for text in (
        r"Registration  nvidia\.com/gpu is served on node-agent-gpu-\w+\.sock",
        r"8 × NVIDIA H200",
        r"The kubelet lists 8 devices, 8 of them allocatable:",
        r"Allocation  The pod trainer asks for 4 of the 8 free GPUs",
        r"4 GPUs of NUMA node 0, all joined by 18 NVLinks; leaves NUMA node 1 whole",
        r"Allocation  The pod notebook asks for 1 of the 4 free GPUs",
        r"  node-agent\.gpu\.nvidia\.com/gpu=GPU-",
        r"CDI  .* gives a container with gpu-\d:",
        r"  device nodes   /dev/nvidia\d ",
        r"  driver files   \d+ mounts",
        r"Health  gpu-\d reports Xid 79: it has fallen off the bus",
        r"  withdrawn after \d+ ms: the kubelet has 7 allocatable",
        r"  mended, and back by itself after \d+ ms: 8 allocatable again",
        r"Summary  8 GPUs, 8 allocatable, 5 held by 2 pods",
        r"0 restarts, 1 registration",
        r"all of it worked, in \d+\.\d s",
    ):
        assert re.search(text, done.stdout), text
    assert len(scenes(done.stdout)) > 40
    assert scenes(PAGE.read_text()) == scenes(done.stdout)


@pytest.mark.parametrize(
    ("profile", "summary"),
    [
        ("v100-8", "8 GPUs, 8 allocatable, 5 held by 2 pods"),
        ("gb10-1", "1 GPU, 1 allocatable, 1 held by 1 pod."),
        ("a30-2", "2 GPUs, 1 allocatable, 1 held by 1 pod."),
        ("mixed-5", "4 GPUs, 4 allocatable, 3 held by 2 pods"),
        ("mi300x-8", "8 GPUs, 8 allocatable, 5 held by 2 pods"),
    ],
)
def test_a_small_old_or_odd_node_plays_as_well(profile: str, summary: str) -> None:
    done = played("--profile", profile)
    assert (done.returncode, done.stderr) == (0, "")
    assert summary in done.stdout
    assert "all of it worked" in done.stdout


def test_a_node_that_does_not_exist_is_answered_with_those_that_do() -> None:
    done = played("--profile", "h200")
    assert done.returncode == 1
    assert done.stderr.startswith("node-agent: no profile is named 'h200'; there are ")
    assert "mi300x-8, " in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_demo_that_is_held_serves_until_it_is_told_to_end(number: signal.Signals) -> None:
    with subprocess.Popen([*PROGRAM, "--profile", "l4-2", "--hold"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = []
        for line in process.stdout:
            shown.append(line)
            if "node-agent simulate restore-gpu" in line:
                break
        (socket,) = re.findall(r"node-agent status --socket (\S+)", "".join(shown))
        assert get(Path(socket), "/readyz")[0] == 200
        process.send_signal(number)
        assert process.wait(10) == 0
    assert not Path(socket).parent.exists()


def test_a_demo_that_is_held_names_no_faults_where_none_can_be_sent() -> None:
    """Nodes with AMD's GPUs have no socket for faults."""
    with subprocess.Popen([*PROGRAM, "--profile", "mi300x-8", "--hold"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "node-agent status --socket" in line:
                break
        process.send_signal(signal.SIGINT)
        assert "simulate" not in process.stdout.read()
        assert process.wait(60) == 0
