"""Random histories, restarts and reboots among them, against a model that knows nothing of files."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.allocation.grants import State
from node_agent.allocation.ledger import Ledger
from node_agent.errors import AllocationError, StateError
from tests.fakes.builders import uuid
from tests.unit.allocation.support import full_disk, grant, opened, uid_of

operations = st.one_of(
    st.tuples(st.sampled_from(("reserve", "reserve unwritten", "full disk")), st.integers(0, 3), st.integers(0, 2)),
    st.tuples(st.just("commit"), st.integers(0, 3)),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("reboot")),
)


@dataclass
class Model:
    """Holder → (GPU, whether prepared), in memory and as a restart would find it."""

    memory: dict[str, tuple[int, bool]] = field(default_factory=dict)
    disk: dict[str, tuple[int, bool]] = field(default_factory=dict)
    boot: int = 0

    def free_for(self, name: str, gpu: int) -> bool:
        return self.memory.get(name, (gpu, False))[0] == gpu and all(
            held != gpu for other, (held, _) in self.memory.items() if other != name
        )

    def write(self, durable: bool = True) -> None:
        if durable:
            self.disk = dict(self.memory)


async def play(history: list[tuple[object, ...]], folder: Path) -> None:
    model, rest = Model(), iter(history)
    while True:
        async with opened(folder, boot_id=f"boot-{model.boot}") as ledger:
            model.memory = dict(model.disk)
            if not await _play_until_restart(rest, model, ledger):
                return


async def _play_until_restart(rest: Iterator[tuple[object, ...]], model: Model, ledger: Ledger) -> bool:
    check(model, ledger)
    for name, *arguments in rest:
        if name == "reopen":
            return True
        if name == "reboot":
            model.boot += 1
            model.disk = {one: (gpu, False) for one, (gpu, _) in model.disk.items()}
            return True
        await _play(str(name), arguments, model, ledger)
        check(model, ledger)
    return False


async def _play(name: str, arguments: list[object], model: Model, ledger: Ledger) -> None:
    who = f"c{arguments[0]}"
    if name == "release":
        await ledger.release(uid_of(who))
        model.memory.pop(who, None)
        model.write()
    elif name == "commit":
        held = ledger.grant_of(uid_of(who))
        assert (held is not None) == (who in model.memory)
        if held is not None:
            await ledger.commit(held, held.holds)
            model.memory[who] = (model.memory[who][0], True)
            model.write()
    else:
        await _play_reserve(name, who, int(str(arguments[1])), model, ledger)


async def _play_reserve(how: str, who: str, gpu: int, model: Model, ledger: Ledger) -> None:
    try:
        with full_disk() if how == "full disk" else nullcontext():
            await ledger.reserve(grant(who, gpu), durable=how != "reserve unwritten")
    except StateError:
        assert how == "full disk"
    except AllocationError:
        assert not model.free_for(who, gpu)
    else:
        assert model.free_for(who, gpu)
        model.memory.setdefault(who, (gpu, False))
        model.write(how != "reserve unwritten")


def check(model: Model, ledger: Ledger) -> None:
    assert {
        one.holder.name: (one.holds[0].gpus[0], one.state is State.PREPARED) for one in ledger.grants.value.values()
    } == {who: (uuid(gpu), done) for who, (gpu, done) in model.memory.items()}


@settings(max_examples=60)
@given(st.lists(operations, max_size=14))
def test_every_history_ends_as_a_simple_model_says(history: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(history, Path(folder)))
