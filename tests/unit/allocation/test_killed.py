"""SIGKILL at any moment: what was answered is true after the restart, and one pass of upkeep leaves no trace behind."""

import random
import subprocess
import sys
import time
from pathlib import Path

from node_agent.allocation.grants import State
from tests.fakes.builders import uuid
from tests.unit.allocation.support import DEVICES, LEDGER, FakeStep, claim, node

ROUNDS = 8


def killed_after(folder: Path, seconds: float, seed: int) -> list[str]:
    """What the victim said until it was killed, ``seconds`` after it had opened the ledger."""
    command = [sys.executable, "-m", "tests.unit.allocation.victim", str(folder), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None and victim.stderr is not None
        if victim.stdout.readline() != "open\n":
            raise AssertionError(victim.stderr.read())
        time.sleep(seconds)
        victim.kill()
        return victim.stdout.read().splitlines()


def told(said: list[str], before: set[str]) -> tuple[set[str], set[str]]:
    """The claims that must be prepared, and those that may or may not be: their last call was not answered."""
    surely = set(before)
    doubtful: set[str] = set()
    for what, name in (line.split() for line in said if " " in line):
        surely -= {name}
        doubtful -= {name}
        {"prepared": surely, "unpreparing": doubtful}.get(what, set()).add(name)
    return surely, doubtful


async def test_whenever_the_agent_is_killed_what_it_has_answered_is_true(tmp_path: Path) -> None:
    choice, before = random.Random(1), set[str]()
    answers = 0
    for number in range(ROUNDS):
        said = killed_after(tmp_path, choice.uniform(0.0, 0.12), number)
        answers += len(said)
        surely, doubtful = told(said, before)
        step = FakeStep(tmp_path)
        async with node(tmp_path, step, told=False) as n:
            grants = {one.holder.name.partition("/")[2]: one for one in n.ledger.grants.value.values()}
            ready = {name for name, one in grants.items() if one.state is State.PREPARED}
            assert surely <= ready, said[-4:]
            assert all(one.holds[0].gpus == (uuid(int(name[1:])),) for name, one in grants.items())
            await n.upkeep.restore()
            await n.upkeep.sweep()
            assert n.spec_names >= {n.spec_of(name).name for name in ready}
            assert n.spec_names <= {n.spec_of(name).name for name in grants}
            # Whatever was half done is done, or undone, by the next call.
            for name in set(grants) - ready:
                await n.preparer.prepare(claim(name, f"gpu-{name[1:]}"), DEVICES)
            before = set(grants)
            assert surely <= before <= surely | doubtful | {f"c{i}" for i in range(4)}
    assert answers > ROUNDS


async def test_whenever_the_agent_is_killed_one_pass_leaves_no_trace_of_claims_that_are_gone(tmp_path: Path) -> None:
    for number in range(4):
        killed_after(tmp_path, 0.03 * number, number)
        async with node(tmp_path, FakeStep(tmp_path), told=False) as n:
            await n.upkeep.reconcile([], DEVICES, time.monotonic())
            assert dict(n.ledger.grants.value) == {}
            assert n.spec_names == set()
        assert {path.name for path in tmp_path.iterdir()} - {"cdi"} == {LEDGER, f"{LEDGER}.lock"}
