"""Whatever claims do and whoever dies on the way: claims have their partitions, nothing else stays, GPUs end uncut.

That no two partitions overlap the simulated driver sees to, as the real one does: it refuses them.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.errors import DeviceHeld
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.model.device import DeviceKind
from tests.unit.allocation.support import uid_of
from tests.unit.dra.cutting import World, agent, forget

DEVICES = (
    "gpu-0",
    "gpu-0-mig-4g-71gb-0",
    "gpu-0-mig-3g-71gb-4",
    "gpu-0-mig-2g-35gb-0",
    "gpu-0-mig-2g-35gb-4",
    "gpu-0-mig-1g-18gb-me-3",
    "gpu-0-mig-1g-18gb-6",
    "gpu-1-mig-1g-18gb-0",
)
CLAIMS = st.sampled_from("abc")
Operation = tuple[str, ...]

operations = st.one_of(
    st.tuples(st.just("prepare"), CLAIMS, st.sampled_from(DEVICES)),
    st.tuples(st.just("unprepare"), CLAIMS),
    st.tuples(st.sampled_from(("restart", "reboot"))),
    st.tuples(st.just("mortal"), st.sampled_from("0123"), st.sampled_from(("before", "half", "after"))),
)


@dataclass
class Model:
    """What each claim was prepared for; ``begun`` are those whose last call was answered by nobody."""

    node: SimulatedNode
    prepared: dict[str, str] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    boot: int = 0

    async def play(self, history: list[Operation], folder: Path) -> None:
        rest = iter(history)
        while True:
            async with agent(folder, self.node, boot_id=f"boot-{self.boot}") as here:
                await here.sweep.sweep()
                await self.check(here)
                again = await self._play_until_restart(rest, here)
            if not again:
                break
        async with agent(folder, self.node, boot_id=f"boot-{self.boot}") as here:
            for name in "abc":
                await here.unprepare(name)
            await here.keeper.look()
            await here.sweep.sweep()
            assert await here.lying(0) == await here.lying(1) == []
            assert not any(here.mig_is_on(number) for number in range(8))
            assert not here.parts.spec_names
            assert not here.parts.ledger.grants.value

    async def _play_until_restart(self, rest: Iterator[Operation], here: World) -> bool:
        for what, *arguments in rest:
            if what in ("restart", "reboot"):
                if what == "reboot":
                    self._reboot()
                return True
            if what == "mortal":
                here.mortal.changes_left, here.mortal.how = int(arguments[0]), arguments[1]
                continue
            try:
                await self._call(here, what, *arguments)
            except asyncio.CancelledError:
                self.prepared.pop(arguments[0], None)
                self.begun.add(arguments[0])
                return True
            await self.check(here)
        return False

    async def _call(self, here: World, what: str, name: str, device: str = "") -> None:
        if what == "unprepare":
            await here.unprepare(name)
            self.prepared.pop(name, None)
            self.begun.discard(name)
            return
        grant = here.parts.ledger.grant_of(uid_of(name))
        device = grant.holds[0].device if grant is not None else device
        try:
            await here.prepare(name, device)
        except DeviceHeld:
            assert name not in self.prepared
        else:
            self.prepared[name] = device
            self.begun.discard(name)

    def _reboot(self) -> None:
        forget(self.node)
        self.boot += 1
        # Whoever was prepared is to be prepared again.
        self.begun |= self.prepared.keys()
        self.prepared = {}

    async def check(self, here: World) -> None:
        """Every claim has its partition, and beside these there is at most what was begun."""
        wanted = {number: set[str]() for number in (0, 1)}
        for device in self.prepared.values():
            published = here.published[device]
            if published.kind is DeviceKind.MIG:
                assert published.part is not None
                wanted[int(device.split("-")[1])].add(f"{published.part.profile} at {published.part.placement.start}")
        for number, pieces in wanted.items():
            lying = set(await here.lying(number))
            assert pieces <= lying, (number, self.prepared)
            assert len(lying - pieces) <= len(self.begun), (number, lying, self.prepared, self.begun)
            if not self.begun:
                assert here.mig_is_on(number) is bool(pieces)


@settings(max_examples=30)
@given(st.lists(operations, max_size=14))
def test_claims_have_their_partitions_and_gpus_end_uncut(history: list[Operation]) -> None:
    with install(SimulatedNode(load_profile("h200-8"))) as node, TemporaryDirectory() as folder:
        asyncio.run(Model(node).play(history, Path(folder)))
