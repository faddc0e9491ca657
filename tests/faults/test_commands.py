"""The commands in the hands of someone who mistypes: every trouble is one line that says what, where and what to do."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).with_name("node-agent"))


def node_agent(*words: str, out: int = subprocess.PIPE, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [PROGRAM, *words], env=environment, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [1, 2", "expected ',' or ']'"),
        (b"\xff\xfe\x00", "can't decode byte"),
        (b"", "Expected `object`, got `null`"),
        (b"summary: x\n", "missing required field `driver`"),
    ],
)
def test_a_broken_profile_is_named_with_its_fault_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    profile = tmp_path / "node.yaml"
    profile.write_bytes(content)
    ended = node_agent("topology", "--simulate", str(profile))

    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"node-agent: {profile}: ")
    assert words in line


def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        ended = node_agent("topology", "--simulate", "l4-2", out=full.fileno())

    assert ended.returncode == 1
    assert ended.stderr == "node-agent: [Errno 28] No space left on device\n"


def test_who_reads_only_the_head_hears_of_no_trouble() -> None:
    command = f"{PROGRAM} cdi generate --simulate h200-8 2>/dev/null | head -1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.stdout, ended.stderr) == ("{\n", "")


@pytest.mark.parametrize("words", ["--available=", "--must-include="])
def test_an_empty_list_of_gpus_does_not_mean_all(words: str) -> None:
    ended = node_agent("explain", "preferred", "--simulate", "l4-2", "--size", "1", words)

    assert ended.returncode == 1
    assert ended.stderr == "node-agent: no GPU is ''; the node has gpu-0 (index 0), gpu-1 (index 1)\n"


def test_a_narrow_terminal_cuts_neither_names_nor_links() -> None:
    master, slave = pty.openpty()
    with open(master, "rb", buffering=0) as terminal:
        try:
            ended = node_agent(
                "topology", "--simulate", "h200-8", "--no-drawing", out=slave, COLUMNS="60", NO_COLOR="1"
            )
        finally:
            os.close(slave)
        shown = read_all(terminal.fileno())

    assert ended.returncode == 0
    assert "…" not in shown
    assert "56-111,168-223" in shown


def read_all(terminal: int) -> str:
    """What was printed to a terminal whose other end is closed by now."""
    found = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how a terminal says that nothing more will come
            return found.decode()
        if not part:
            return found.decode()
        found += part


def test_every_command_is_called_by_its_own_name_however_it_was_started() -> None:
    code = "import sys; sys.argv = ['python -m something', '--help']; from node_agent.cli.main import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert ended.stdout.startswith("Usage: node-agent ")
