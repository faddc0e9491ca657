"""Whatever claims and pods do and whenever the agent dies: a model of who has what foretells each answer.

These agents live in the test's process: from its death on an agent changes nothing outside any more, neither a file nor
the hardware, as if it had been killed there. So thousands of histories cost no thousands of processes.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from node_agent.allocation.grants import Door, State
from node_agent.deviceplugin.holding import LimitDoor
from node_agent.deviceplugin.offer import OfferedDevice
from node_agent.errors import DeviceHeld
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.profile import NodeProfile, NvLinks
from node_agent.model.gpu import GpuUuid
from tests.crash.boundaries import WRITING, Library
from tests.crash.invariants import WHOLE, Unit
from tests.unit.allocation.support import uid_of
from tests.unit.dra.cutting import World, agent, forget

RESOURCE = "nvidia.com/gpu"

# By the GPU's number and the slices of its memory; all of them come and go by claims.
DEVICES = {
    "gpu-0": Unit(gpu="0"),
    "gpu-0-mig-4g-71gb-0": Unit(gpu="0", slices=range(4)),
    "gpu-0-mig-3g-71gb-4": Unit(gpu="0", slices=range(4, 8)),
    "gpu-0-mig-2g-35gb-0": Unit(gpu="0", slices=range(2)),
    "gpu-0-mig-1g-18gb-me-3": Unit(gpu="0", slices=range(3, 4)),
    "gpu-0-mig-1g-18gb-6": Unit(gpu="0", slices=range(6, 7)),
    "gpu-1": Unit(gpu="1"),
    "gpu-1-mig-1g-18gb-0": Unit(gpu="1", slices=range(1)),
}
CLAIMS, PODS = st.sampled_from("abcd"), st.sampled_from("xy")


@cache
def two_gpus() -> NodeProfile:
    """H200s, called gpu-0 and gpu-1: fewer of them are looked at sooner."""
    eight = load_profile("h200-8")
    return msgspec.structs.replace(eight, gpus=eight.gpus[2:4], nvlink=NvLinks())


class Dead(BaseException):
    """The agent is dead: nothing that it does has an effect any more."""


class Life:
    """One agent's: after so many boundaries (``left``, None: as long as it likes) it is ``dead``."""

    def __init__(self, left: int | None = None) -> None:
        self.left = left
        self.dead = False

    def cross(self, name: str) -> None:
        if self.left is not None and not self.dead:
            self.left -= 1
            self.dead = self.left < 0
        if self.dead:
            raise Dead(name)


@contextmanager
def mortal(folder: Path, life: Callable[[], Life]) -> Iterator[None]:
    """Watch the doors through which files below a folder are changed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "replace", "rename", "unlink", "mkdir", "rmdir", "link", "chmod"):
            patch.setattr(os, name, _watched(name, getattr(os, name), str(folder), life))
        yield


def _watched(name: str, function: Callable[..., Any], folder: str, life: Callable[[], Life]) -> Callable[..., Any]:
    def call(path: Any, *arguments: Any, **named: Any) -> Any:
        reads = name == "open" and not arguments[0] & WRITING
        if not reads and str(path).startswith(folder):
            life().cross(name)
        return function(path, *arguments, **named)

    return call


class Histories(RuleBasedStateMachine):
    """``prepared`` and ``pods`` say who has which device; ``begun`` are claims of whose last call nobody heard,
    ``ended`` are devices of pods of whose end the agent has not heard."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life()
        self.around = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="histories-", dir="/tmp"))
        self.around.callback(shutil.rmtree, self.folder)
        self.node = SimulatedNode(two_gpus())
        self.node.library = Library(self.node.library, self._cross, self._cross)  # type: ignore[assignment]
        self.around.enter_context(install(self.node))
        self.around.enter_context(mortal(self.folder, lambda: self.life))
        self.runner = self.around.enter_context(asyncio.Runner())
        self.prepared: dict[str, str] = {}
        self.begun: dict[str, str] = {}
        self.pods: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.boot = 0
        self.stack = AsyncExitStack()
        self._world: World | None = None
        self._start_again()

    def teardown(self) -> None:
        try:
            self._end_all()
        finally:
            self._die()
            self.life = Life()
            self.around.close()

    def _cross(self, name: str) -> None:
        self.life.cross(name)

    # What happens

    @rule(name=CLAIMS, device=st.sampled_from(sorted(DEVICES)))
    def prepare(self, name: str, device: str) -> None:
        device = self.prepared.get(name) or self.begun.get(name) or device
        possible = self._free(device, beside=name)
        unknown = not self._free(device, beside=name, of=self.begun | self.ended)
        try:
            self._do(self.here.prepare(name, device))
        except DeviceHeld:
            assert not possible or unknown
        except Dead:
            self.prepared.pop(name, None)
            self.begun[name] = device
        else:
            assert possible
            self.begun.pop(name, None)
            self.prepared[name] = device

    @rule(name=CLAIMS)
    def unprepare(self, name: str) -> None:
        device = self.prepared.pop(name, None) or self.begun.get(name)
        try:
            self._do(self.here.unprepare(name))
        except Dead:
            if device is not None:
                self.begun[name] = device
        else:
            self.begun.pop(name, None)

    @rule(pod=PODS, gpu=st.sampled_from("01"))
    def admit(self, pod: str, gpu: str) -> None:
        device = f"gpu-{gpu}"
        if pod in self.pods or device in self.pods.values():
            return  # the kubelet gives no device out twice
        possible, unknown = self._free(device), not self._free(device, of=self.begun | self.ended)
        try:
            self._do(self._take(device))
        except DeviceHeld:
            assert not possible or unknown
        except Dead:
            pass  # the kubelet refuses the pod
        else:
            assert possible
            self.pods[pod] = device

    @rule(pod=PODS)
    def end(self, pod: str) -> None:
        """The kubelet tells nobody: the agent hears of it when it asks."""
        if pod in self.pods:
            self.ended[f"{pod} {len(self.ended)}"] = self.pods.pop(pod)

    @rule()
    def agent_asks_what_pods_hold(self) -> None:
        with suppress(Dead):
            self._do(self._look())

    @precondition(lambda self: self.life.left is None)
    @rule(boundaries=st.integers(0, 24))
    def is_to_die(self, boundaries: int) -> None:
        self.life.left = boundaries

    @rule(boundaries=st.none() | st.integers(0, 12))
    def is_killed(self, boundaries: int | None) -> None:
        """The next one may die as it starts."""
        self._die()
        self._start_again(boundaries)

    @rule()
    def ends_and_starts(self) -> None:
        self.runner.run(self._stop())
        self._start_again()

    @rule()
    def node_reboots(self) -> None:
        self._die()
        forget(self.node)
        self.boot += 1
        self.begun, self.prepared, self.pods = self.begun | self.prepared, {}, {}
        self._start_again()

    # What is so

    @invariant()
    def everybody_has_what_was_prepared_and_nothing_lies_about(self) -> None:
        if self.life.dead:
            self._die()
            self._start_again()
        ledger = self.here.parts.ledger
        for name in self.prepared:
            found = ledger.grant_of(uid_of(name))
            assert found is not None and found.state is State.PREPARED, name
            assert self.here.parts.spec_of(name).exists(), name
        known = {uid_of(name) for name in (*self.prepared, *self.begun)}
        assert {one.holder.id for one in ledger.grants_of(Door.CLAIM)} <= known
        for gpu in "01":
            wanted = self._pieces(gpu, self.prepared)
            lying = self._lying(gpu)
            assert wanted <= lying <= wanted | self._pieces(gpu, self.begun), (gpu, lying, self.prepared, self.begun)
            if not self.begun:
                assert self.here.mig_is_on(int(gpu)) is bool(wanted)

    # The agent

    @property
    def here(self) -> World:
        assert self._world is not None
        return self._world

    def uuid(self, device: str) -> str:
        """Of a whole GPU."""
        return str(self.here.gpu(int(device.removeprefix("gpu-"))).uuid)

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let the agent do it; Dead where it dies of it, also where another of its tasks hears of that first."""
        try:
            self.runner.run(work)
        except Exception:
            if self.life.dead:
                raise Dead from None
            raise

    def _free(self, device: str, *, beside: str = "", of: Mapping[str, str] | None = None) -> bool:
        others = {**self.prepared, **self.pods} if of is None else of
        return not any(DEVICES[device].collides(DEVICES[other]) for name, other in others.items() if name != beside)

    def _pieces(self, gpu: str, claims: Mapping[str, str]) -> set[int]:
        units = (DEVICES[device] for device in claims.values())
        return {unit.slices.start for unit in units if unit.gpu == gpu and unit.slices != WHOLE}

    def _lying(self, gpu: str) -> set[int]:
        return {instance.start for instance in self.here.mig(int(gpu)).instances.values()}

    async def _take(self, device: str) -> None:
        # Only what the last look has found is offered.
        await self.here.keeper.look()
        gpu = GpuUuid(self.uuid(device))
        await self.limits.take(RESOURCE, [OfferedDevice(id=gpu, gpu=gpu, index=device)])

    async def _look(self) -> None:
        await self.limits._look()
        await self.limits._look_up()
        self.ended.clear()

    async def _held(self) -> dict[str, frozenset[str]]:
        return {RESOURCE: frozenset(map(self.uuid, self.pods.values()))}

    def _die(self) -> None:
        self.life.left, self.life.dead = 0, True
        self.runner.run(self._stop())

    def _start_again(self, boundaries: int | None = None) -> None:
        self.life = Life(boundaries)
        try:
            self.runner.run(self._start())
        except BaseException:
            if not self.life.dead:
                raise
            self._die()
            self._start_again()
        self.life.left = None

    async def _start(self) -> None:
        self._world = await self.stack.enter_async_context(agent(self.folder, self.node, boot_id=f"boot-{self.boot}"))
        self.limits = LimitDoor(
            ledger=self.here.parts.ledger,
            held=self._held,
            inventory=self.here.keeper.inventory,
            admission_seconds=0.0,
        )
        await self._look()
        await self.here.sweep.sweep()
        await self.here.parts.upkeep.restore()
        await self.here.parts.upkeep.sweep()

    async def _stop(self) -> None:
        stack, self.stack = self.stack, AsyncExitStack()
        try:
            await stack.aclose()
        except BaseException:
            if not self.life.dead:
                raise

    def _end_all(self) -> None:
        """At the end everybody gives back what they have, and the GPUs are whole."""
        self._die()
        self._start_again()
        self.pods.clear()
        self.runner.run(self._look())
        for name in "abcd":
            self.runner.run(self.here.unprepare(name))
        self.runner.run(self.here.keeper.look())
        self.runner.run(self.here.sweep.sweep())
        assert not self._lying("0") and not self._lying("1")
        assert not any(self.here.mig_is_on(number) for number in range(2))
        # What a writer that died has begun goes later, when nobody can be writing it any more; no runtime reads it.
        assert all(name.startswith(".") for name in self.here.parts.spec_names)
        assert not self.here.parts.ledger.grants.value


def long_run(histories: int) -> None:
    """Play so many histories, which are others each time; those that fail are kept in ``.hypothesis``."""
    run_state_machine_as_test(Histories, settings=settings(_SETTINGS, max_examples=histories, stateful_step_count=30))


# The same ones each time: a gate that fails by chance tells nobody which change was wrong.
_SETTINGS = settings(deadline=None, print_blob=True)
TestHistories = Histories.TestCase
TestHistories.settings = settings(_SETTINGS, max_examples=40, stateful_step_count=10, derandomize=True)
