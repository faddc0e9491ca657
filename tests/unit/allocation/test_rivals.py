"""No GPU is ever given out twice, and nothing that was answered is lost, whatever several agents do at once."""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.allocation import ledger as module
from node_agent.allocation.checkpoint import decode
from node_agent.allocation.grants import FRONT_DOORS
from node_agent.allocation.ledger import Ledger
from node_agent.errors import AllocationError, DeviceHeld
from node_agent.kit.tasks import running
from tests.fakes.builders import uuid
from tests.unit.allocation.support import LEDGER, grant, opened, uid_of


def on_disk(folder: Path) -> dict[str, str]:
    """Holder → GPU, as the file has it."""
    grants = decode((folder / LEDGER).read_bytes()).grants.values()
    return {one.holder.name: one.holds[0].gpus[0] for one in grants}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(module, "ENTER_SECONDS", 0.001)


@asynccontextmanager
async def agent(folder: Path) -> AsyncIterator[Ledger]:
    async with opened(folder, told=False) as ledger, running(ledger.run()):
        for door in FRONT_DOORS:
            await ledger.reconcile(door, [])
        yield ledger


steps = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 1), st.integers(0, 3), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("release"), st.integers(0, 1), st.integers(0, 3), st.just(0), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 1), st.just(0), st.just(0), st.just(False)),
)
Step = tuple[str, int, int, int, bool]


@dataclass
class Pair:
    """Up to two agents on one folder, and who holds which GPU by all that they have answered.

    ``sure`` is what survives the end of an agent that is alone.
    """

    folder: Path
    agents: dict[int, tuple[Ledger, AsyncExitStack]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    sure: dict[str, int] = field(default_factory=dict)

    async def at_work(self, which: int) -> Ledger:
        """The agent, started where it is not there; one that gets in while another is there makes all of it sure."""
        if which not in self.agents:
            stack = AsyncExitStack()
            self.agents[which] = (await stack.enter_async_context(agent(self.folder)), stack)
            self.sure = dict(self.held)
        return self.agents[which][0]

    async def play(self, step: Step) -> None:
        what, which, name, gpu, durable = step
        if what == "end":
            await self.end(which)
            return
        ledger = await self.at_work(which)
        await ledger.look()
        done = await (self._reserve if what == "reserve" else self._release)(ledger, f"c{name}", gpu, durable)
        if done and (durable or len(self.agents) > 1):
            self.sure = dict(self.held)

    async def _reserve(self, ledger: Ledger, name: str, gpu: int, durable: bool) -> bool:
        free = self.held.get(name, gpu) == gpu and gpu not in (self.held[other] for other in self.held if other != name)
        try:
            await ledger.reserve(grant(name, gpu), durable=durable)
        except AllocationError:
            assert not free
            return False
        assert free
        self.held[name] = gpu
        return True

    async def _release(self, ledger: Ledger, name: str, _: int, durable: bool) -> bool:
        await ledger.release(uid_of(name), durable=durable)
        self.held.pop(name, None)
        return True

    async def end(self, which: int) -> None:
        """End an agent, if it is there, and wait until the other one has found that out."""
        if which not in self.agents:
            return
        _, stack = self.agents.pop(which)
        await stack.aclose()
        if not self.agents:
            # What was only in memory ends with the last one.
            self.held = dict(self.sure)
        for left, _ in self.agents.values():
            while not left._view.alone:
                await asyncio.sleep(0.001)

    async def check(self) -> None:
        for ledger, _ in self.agents.values():
            await ledger.look()
            assert {one.holder.name: one.holds[0].gpus[0] for one in ledger.grants.value.values()} == {
                name: uuid(gpu) for name, gpu in self.held.items()
            }


async def play(history: list[Step], folder: Path) -> None:
    pair = Pair(folder)
    try:
        for step in history:
            await pair.play(step)
            await pair.check()
    finally:
        for which in tuple(pair.agents):
            await pair.end(which)


@settings(max_examples=60)
@given(st.lists(steps, max_size=16))
def test_two_agents_that_come_and_go_keep_one_record_as_a_simple_model_says(history: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(history, Path(folder)))


async def test_agents_that_want_the_same_gpus_at_once_never_have_one_twice(tmp_path: Path) -> None:
    choice, owner = random.Random(7), dict[int, str]()

    async def rival(ledger: Ledger, name: str, gpu: int) -> int:
        taken = 0
        for _ in range(30):
            try:
                await ledger.reserve(grant(name, gpu), durable=choice.random() < 0.5)
            except DeviceHeld:
                continue
            taken += 1
            assert owner.setdefault(gpu, name) == name
            await asyncio.sleep(choice.random() * 0.002)
            del owner[gpu]
            await ledger.release(uid_of(name), durable=choice.random() < 0.5)
        return taken

    async with agent(tmp_path) as one, agent(tmp_path) as other:
        work = [rival(ledger, f"{who}-{gpu}", gpu) for gpu in range(3) for who, ledger in (("a", one), ("b", other))]
        taken = await asyncio.gather(*work)
    assert all(taken)
    assert on_disk(tmp_path) == {}


@contextmanager
def rival(folder: Path, name: str, seed: int) -> Iterator["subprocess.Popen[str]"]:
    """A rival in a process of its own, at work when the block begins; what it says goes into ``NAME.told``.

    A file takes all that is written; who writes to a full pipe would stand still with whatever it has locked.
    """
    command = [sys.executable, "-m", "tests.unit.allocation.rival", str(folder), name, str(seed)]
    told = folder / f"{name}.told"
    with told.open("w") as out, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, text=True) as process:
        while not told.read_text().startswith("inside\n"):
            assert process.poll() is None
            time.sleep(0.01)
        yield process


def await_turns(folder: Path, name: str) -> None:
    """Wait until a rival has had a GPU and given it back; a slow disk lets nobody be quick."""
    while not said((folder / f"{name}.told").read_text())[0]:
        time.sleep(0.01)


def said(text: str) -> tuple[list[tuple[int, float, float]], set[int]]:
    """When a rival had which GPU, and which ones it has kept."""
    lines = [line.split() for line in text.splitlines() if line.endswith(tuple("0123456789"))]
    had = [(int(gpu), float(since), float(to)) for gpu, since, to in (line for line in lines if line[0].isdigit())]
    return had, {int(gpu) for line in lines if line[0] == "keeps" for gpu in line[1:]}


def test_processes_that_want_the_same_gpus_never_have_one_twice_and_lose_nothing(tmp_path: Path) -> None:
    with rival(tmp_path, "a", 1) as a, rival(tmp_path, "b", 2) as b, rival(tmp_path, "killed", 3) as killed:
        time.sleep(0.5)
        await_turns(tmp_path, "killed")
        killed.kill()
        time.sleep(0.7)
        for name, process in (("a", a), ("b", b)):
            await_turns(tmp_path, name)
            process.communicate()
    first, last, (victim, _) = (said((tmp_path / f"{name}.told").read_text()) for name in ("a", "b", "killed"))

    had = sorted(
        (gpu, since, to, who) for who, part in enumerate((first[0], last[0], victim)) for gpu, since, to in part
    )
    assert len({who for *_, who in had}) == 3, "each of them had its turns"
    for (gpu, _, to, who), (next_gpu, since, _, next_who) in pairwise(had):
        assert gpu != next_gpu or to <= since or who == next_who, f"GPU {gpu} was given out twice"
    kept = {f"a-{gpu}": uuid(gpu) for gpu in first[1]} | {f"b-{gpu}": uuid(gpu) for gpu in last[1]}
    assert {name: gpu for name, gpu in on_disk(tmp_path).items() if not name.startswith("killed")} == kept
