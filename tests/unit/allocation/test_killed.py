"""SIGKILL at any moment: what was answered is true after the restart, and one pass of upkeep leaves no trace behind."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from node_agent.allocation.grants import State
from tests.fakes.builders import uuid
from tests.unit.allocation.support import DEVICES, LEDGER, FakeStep, claim, node

ROUNDS = 6


def killed_after(folder: Path, lines: int, seconds: float, seed: int) -> list[str]:
    """What the victim said until it was killed, ``seconds`` after so many lines."""
    command = [sys.executable, "-m", "tests.unit.allocation.victim", str(folder), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None and victim.stderr is not None
        said = [victim.stdout.readline() for _ in range(lines)]
        time.sleep(seconds)
        victim.kill()
        assert "" not in said, victim.stderr.read()
        said = [line.strip() for line in (*said, *victim.stdout)]
    # What is half written may be another agent's work, until it is too old for that.
    for path in (folder / "cdi").glob(".*"):
        os.utime(path, (0, 0))
    return said


def told(said: list[str], before: set[str]) -> tuple[set[str], set[str]]:
    """The claims that must be prepared, and the one, if any, whose last call was not answered."""
    surely, doubtful = set(before), set[str]()
    for what, name in (line.split() for line in said):
        surely.discard(name)
        doubtful = {name} if what.endswith("ing") else set()
        if what == "prepared":
            surely.add(name)
    return surely, doubtful


async def test_whenever_the_agent_is_killed_what_it_has_answered_is_true(tmp_path: Path) -> None:
    choice, before = random.Random(1), set[str]()
    for number in range(ROUNDS):
        said = killed_after(tmp_path, choice.randrange(30), choice.uniform(0, 0.004), number)
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
            assert surely <= before <= surely | doubtful


async def test_whenever_the_agent_is_killed_one_pass_leaves_no_trace_of_claims_that_are_gone(tmp_path: Path) -> None:
    for number in range(4):
        killed_after(tmp_path, 1 + 3 * number, 0.001 * number, number)
        async with node(tmp_path, FakeStep(tmp_path), told=False) as n:
            await n.upkeep.reconcile([], DEVICES, time.monotonic())
            assert dict(n.ledger.grants.value) == {}
            assert n.spec_names == set()
        assert {path.name for path in tmp_path.iterdir()} - {"cdi"} == {LEDGER, f"{LEDGER}.lock"}
