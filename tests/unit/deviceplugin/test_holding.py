"""What pods get by limits, in the ledger that both front doors share."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from node_agent.allocation.checkpoint import Checkpoint, decode
from node_agent.allocation.grants import Books, Door, Grant, Hold, Holder
from node_agent.allocation.ledger import Ledger
from node_agent.deviceplugin import holding
from node_agent.deviceplugin.holding import LimitDoor, Written, nobody_writes
from node_agent.errors import DeviceHeld, DeviceWithdrawn, HoldersUnknown, KubeletError, StateError
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kubelet import written
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Place
from tests.fakes.builders import cut, partition
from tests.fakes.wall_clock import WallClock
from tests.unit.deviceplugin.conftest import RESOURCE, World, device, gpu, node, served

LEDGER = "ledger.json"
CLAIM = Holder(door=Door.CLAIM, id="uid-1", name="team/four")


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    with Lane("files") as lane:
        async with Ledger(checkpoint=Checkpoint(tmp_path / LEDGER), lane=lane, boot_id="boot") as ledger:
            await ledger.reconcile(Door.CLAIM, [])
            await ledger.reconcile(Door.LIMIT, [])
            yield ledger


@asynccontextmanager
async def in_company(ledger: Ledger, folder: Path) -> AsyncIterator[None]:
    """While another agent of the node is there: each change is written, and others come in between two of them."""
    with Lane("another") as lane:
        async with (
            running(ledger.run()),
            Ledger(checkpoint=Checkpoint(folder / LEDGER), lane=lane, boot_id="boot"),
        ):
            assert not ledger.is_alone
            yield


class Pods:
    """What the kubelet says pods hold."""

    def __init__(self) -> None:
        self.held: Mapping[str, Collection[str]] | None = {}
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.since: float | None = 0.0
        self._looks = Latest(0)

    async def __call__(self) -> Mapping[str, Collection[str]]:
        self._looks.set(self._looks.value + 1)
        if self.held is None:
            raise KubeletError("nobody tells")
        answer = self.held
        if self.meanwhile is not None:
            await self.meanwhile()
        return answer

    @property
    def looks(self) -> int:
        """How often it was asked."""
        return self._looks.value

    async def asked_again(self) -> None:
        """Await a whole look: one that begins from now on, and the beginning of the next one."""
        now = self._looks.value
        async with asyncio.timeout(30):
            async for looks in self._looks.watch():
                if looks >= now + 2:
                    return


def door_of(
    ledger: Ledger,
    pods: Pods,
    admission_seconds: float = 0.0,
    every_seconds: float = 0.02,
    written: Written = nobody_writes,
) -> LimitDoor:
    return LimitDoor(
        ledger=ledger,
        held=pods,
        written=written,
        look_up_seconds=0.05,
        inventory=Latest(node(8)),
        told_since=lambda: pods.since,
        every_seconds=every_seconds,
        admission_seconds=admission_seconds,
    )


async def claim(ledger: Ledger, *gpus: str, holder: Holder = CLAIM) -> Grant:
    holds = tuple(Hold(device=gpu, gpus=(GpuUuid(gpu),)) for gpu in gpus)
    return await ledger.reserve(Grant(holder=holder, holds=holds))


def limit(gpu: str) -> Grant:
    """What a pod has by its limit."""
    holder = Holder(door=Door.LIMIT, id=f"{RESOURCE}/{gpu}", name=RESOURCE)
    return Grant(holder=holder, holds=(Hold(device=gpu, gpus=(GpuUuid(gpu),)),))


async def until_held(ledger: Ledger, *gpus: str) -> None:
    async with asyncio.timeout(30):
        async for _ in ledger.grants.watch():
            if ledger.held_gpus(Door.LIMIT) == set(gpus):
                return


async def test_what_a_pod_gets_no_claim_can_have_and_the_other_way_round(ledger: Ledger) -> None:
    door = door_of(ledger, Pods())
    await door.take(RESOURCE, [device(1)])
    with pytest.raises(DeviceHeld, match=r"GPU-1 is held by limit nvidia\.com/gpu"):
        await claim(ledger, "GPU-1")

    await claim(ledger, "GPU-2")
    with pytest.raises(DeviceHeld, match="GPU-2 is held by claim team/four"):
        await door.take(RESOURCE, [device(3), device(2)])
    assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_a_device_is_taken_again_by_the_same_name_without_harm(ledger: Ledger) -> None:
    door = door_of(ledger, Pods())
    await door.take(RESOURCE, [device(1)])
    await door.take(RESOURCE, [device(1), device(2)])
    assert ledger.held_gpus(Door.LIMIT) == {"GPU-1", "GPU-2"}


async def test_a_device_that_the_kubelet_gives_to_a_second_pod_stays_with_the_first_one(ledger: Ledger) -> None:
    pods = Pods()
    door = door_of(ledger, pods, admission_seconds=60.0)
    await door.take(RESOURCE, [device(1)])
    pods.held = {RESOURCE: ["GPU-1"], "other.com/nic": ["GPU-2"]}
    before = ledger.grants.value
    with pytest.raises(
        DeviceHeld, match="GPU-1 is held by a pod that is still there: the kubelet has given it out twice"
    ):
        await door.take(RESOURCE, [device(2), device(1)])
    assert ledger.grants.value == before
    await door.take(RESOURCE, [device(2)])

    pods.held = {}
    await door.take(RESOURCE, [device(1)])


async def test_a_kubelet_that_tells_nothing_is_believed_that_the_last_pod_of_a_device_has_ended(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    pods = Pods()
    door = door_of(ledger, pods)
    await door.take(RESOURCE, [device(1)])
    assert pods.looks == 0, "of a device that was free nobody is asked"
    pods.held = None
    await door.take(RESOURCE, [device(1)])
    assert "whether a device is given out twice is not known" in caplog.text


async def test_a_device_that_was_partitioned_before_it_was_held_is_not_given_out(ledger: Ledger) -> None:
    """The pod asks by the list that it knows, waits for the disk with the change's own end, and would get nothing."""
    door = LimitDoor(ledger=ledger, held=Pods(), inventory=Latest(cut(node(3), {1: []})))
    with pytest.raises(DeviceWithdrawn, match="GPU-1 is not there any more"):
        await door.take(RESOURCE, [device(2), device(1)])
    assert ledger.held_gpus(Door.LIMIT) == set()
    await door.take(RESOURCE, [device(2)])


def on_disk(folder: Path) -> set[str]:
    """The devices that somebody holds, as another agent would find it."""
    grants = decode((folder / LEDGER).read_bytes()).grants.values()
    return {hold.device for grant in grants for hold in grant.holds}


async def test_what_a_pod_got_is_on_disk_soon_and_the_pod_does_not_wait_for_that(
    ledger: Ledger, tmp_path: Path
) -> None:
    door = door_of(ledger, Pods(), admission_seconds=60.0)
    async with running(door.run()):
        await door.synced.wait()
        await door.take(RESOURCE, [device(1)])
        assert on_disk(tmp_path) == set()
        async with asyncio.timeout(30):
            while on_disk(tmp_path) != {"GPU-1"}:
                await asyncio.sleep(0.01)


async def test_what_a_pod_got_is_on_disk_soon_also_while_the_kubelet_does_not_tell(
    ledger: Ledger, tmp_path: Path
) -> None:
    pods = Pods()
    door = door_of(ledger, pods, admission_seconds=60.0)
    async with running(door.run()):
        await door.synced.wait()
        pods.held = None
        await door.take(RESOURCE, [device(1)])
        async with asyncio.timeout(30):
            while on_disk(tmp_path) != {"GPU-1"}:
                await asyncio.sleep(0.01)


async def test_while_the_disk_takes_nothing_devices_are_given_out_and_come_back(ledger: Ledger, tmp_path: Path) -> None:
    pods, away = Pods(), tmp_path.with_name("away")
    door = door_of(ledger, pods)
    async with running(door.run()):
        await door.synced.wait()
        tmp_path.rename(away)
        pods.held = {RESOURCE: ["GPU-1"]}
        await door.take(RESOURCE, [device(1)])
        await pods.asked_again()
        pods.held = {}
        await until_held(ledger)
        away.rename(tmp_path)
        await door.take(RESOURCE, [device(2)])
        pods.held = {RESOURCE: ["GPU-2"]}
        async with asyncio.timeout(30):
            while on_disk(tmp_path) != {"GPU-2"}:
                await asyncio.sleep(0.01)


class Disk(Checkpoint):
    """Takes as long over each write as the gate is shut."""

    gate = threading.Event()

    def save(self, books: Books) -> bytes:
        self.gate.wait()
        return super().save(books)


async def test_a_disk_that_hangs_does_not_hang_the_kubelet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "DISK_SECONDS", 0.1)
    disk = Disk(tmp_path / LEDGER)
    disk.gate.set()
    with Lane("files") as lane:
        async with Ledger(checkpoint=disk, lane=lane, boot_id="boot") as ledger:
            for one in Door.CLAIM, Door.LIMIT:
                await ledger.reconcile(one, [])
            door = door_of(ledger, Pods())
            await door.take(RESOURCE, [device(1)])
            disk.gate.clear()
            try:
                async with running(ledger.store()) as writing:
                    await asyncio.sleep(0.05)
                    with pytest.raises(StateError, match=r"gets nothing: the disk .* has not answered for 0\.1 s"):
                        await door.take(RESOURCE, [device(2)])
                    disk.gate.set()
                    await writing
                    assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}
            finally:
                disk.gate.set()
            await door.take(RESOURCE, [device(2)])


async def test_devices_come_back_when_no_pod_has_them_any_more(ledger: Ledger) -> None:
    pods = Pods()
    door = door_of(ledger, pods)
    await door.take(RESOURCE, [device(1), device(2)])
    pods.held = {RESOURCE: ["GPU-2"]}
    async with running(door.run()):
        await until_held(ledger, "GPU-2")
        await claim(ledger, "GPU-1")


async def test_a_device_that_was_just_allocated_is_not_given_back_before_its_pod_is_admitted(ledger: Ledger) -> None:
    door = door_of(ledger, Pods(), admission_seconds=60.0)
    await door.take(RESOURCE, [device(1)])
    async with running(door.run()):
        await door.synced.wait()
        await asyncio.sleep(0.1)
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_a_pod_that_was_listed_once_gives_its_device_back_as_soon_as_it_is_no_longer(ledger: Ledger) -> None:
    pods = Pods()
    door = door_of(ledger, pods, admission_seconds=60.0)
    pods.held = {RESOURCE: ["GPU-1"]}
    await door.take(RESOURCE, [device(1)])
    async with running(door.run()):
        await pods.asked_again()
        pods.held = {}
        await until_held(ledger)


async def test_what_a_restarted_agent_has_learned_comes_back_as_soon_as_no_pod_has_it(ledger: Ledger) -> None:
    pods = Pods()
    pods.held = {RESOURCE: ["GPU-1"]}
    async with running(door_of(ledger, pods, admission_seconds=60.0).run()):
        await until_held(ledger, "GPU-1")
        await pods.asked_again()
        pods.held = {}
        await until_held(ledger)


async def test_a_kubelet_that_was_just_started_and_lists_nothing_yet_takes_nothing_from_a_pod(ledger: Ledger) -> None:
    """For a second or so it knows of no pod, for longer where the API server does not answer."""
    pods = Pods()
    pods.held = {RESOURCE: ["GPU-1"]}
    await ledger.reserve(limit("GPU-1"))
    async with running(door_of(ledger, pods, admission_seconds=60.0).run()):
        await pods.asked_again()
        pods.held, pods.since = {}, time.time()
        await pods.asked_again()
        await pods.asked_again()
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}
        pods.held = {RESOURCE: ["GPU-1"]}
        await pods.asked_again()
        pods.held = {}
        await until_held(ledger)


async def test_a_kubelet_that_lists_nothing_as_the_api_server_is_away_takes_nothing_from_a_pod(ledger: Ledger) -> None:
    """It is restarted with the agent in an outage that lasts: the pods go on, and it cannot know them."""
    pods = Pods()
    pods.since = None
    await ledger.reserve(limit("GPU-1"))
    async with running(door_of(ledger, pods, admission_seconds=0.05).run()):
        for _ in range(10):
            await pods.asked_again()
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}
        pods.since = time.time()
        await until_held(ledger)


async def test_what_a_kubelet_has_not_listed_for_half_a_minute_has_ended_while_it_was_away(ledger: Ledger) -> None:
    pods = Pods()
    await ledger.reserve(limit("GPU-1"))
    pods.since, began = time.time(), time.monotonic()
    async with running(door_of(ledger, pods, admission_seconds=0.2).run()):
        await until_held(ledger)
        assert time.monotonic() - began > 0.2


class KubeletsFile:
    """What the kubelet has written of the devices of pods; ``asked`` counts how often it was looked up."""

    def __init__(self, *devices: str, resource: str = RESOURCE) -> None:
        self.now: written.Written | None = written.Written(devices={resource: frozenset(devices)}, at=0.0, is_new=True)
        self.asked = Latest(0)

    async def __call__(self) -> written.Written:
        self.asked.set(self.asked.value + 1)
        if self.now is None:
            raise KubeletError("cannot be read")
        return self.now

    async def asked_again(self) -> None:
        """Await two looks from now on: the first one is over then."""
        now = self.asked.value
        async with asyncio.timeout(30):
            async for asked in self.asked.watch():
                if asked >= now + 2:
                    return


async def test_what_only_an_init_container_has_is_held_until_the_kubelet_writes_that_nobody_has_it(
    ledger: Ledger,
) -> None:
    """The kubelet's pod resources leave such containers out."""
    file = KubeletsFile("GPU-1")
    door = door_of(ledger, Pods(), admission_seconds=0.05, written=file)
    await door.take(RESOURCE, [device(1), device(2)])
    async with running(door.run()):
        await until_held(ledger, "GPU-1")
        await file.asked_again()
        file.now = None
        await file.asked_again()
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}
        file.now = KubeletsFile("GPU-1", resource="other.com/gpu").now
        await until_held(ledger)


async def test_what_is_written_so_is_looked_up_seldom_and_what_is_told_never(ledger: Ledger) -> None:
    """The kubelet is sent its lists for that, and writes to the disk."""
    pods, file = Pods(), KubeletsFile("GPU-2")
    pods.held = {RESOURCE: ["GPU-1"]}
    door = LimitDoor(
        ledger=ledger,
        held=pods,
        written=file,
        inventory=Latest(node(8)),
        every_seconds=0.02,
        admission_seconds=0.05,
        look_up_seconds=3600.0,
    )
    await door.take(RESOURCE, [device(1)])
    async with running(door.run()):
        for _ in range(10):
            await pods.asked_again()
        assert file.asked.value == 0
        await door.take(RESOURCE, [device(2)])
        async with asyncio.timeout(30):
            async for asked in file.asked.watch():
                if asked:
                    break
        for _ in range(10):
            await pods.asked_again()
        pods.held = {}
        await until_held(ledger, "GPU-2")
    assert file.asked.value == 1


@pytest.mark.parametrize(("written_later", "held"), [(-60.0, {"GPU-1"}), (60.0, set[str]())])
async def test_what_the_kubelet_had_written_before_counts_where_that_was_after_the_grant(
    ledger: Ledger, written_later: float, held: set[str]
) -> None:
    """As where it writes no more, since no plugin is there that would send it a list."""
    file = KubeletsFile()
    file.now = written.Written(devices={}, at=time.time() + written_later, is_new=False)
    door = door_of(ledger, Pods(), admission_seconds=0.05, written=file)
    await door.take(RESOURCE, [device(1)])
    async with running(door.run()):
        async with asyncio.timeout(30):
            async for asked in file.asked.watch():
                if asked:
                    break
        await until_held(ledger, *held)


async def test_of_two_agents_none_has_the_kubelet_write(ledger: Ledger, tmp_path: Path) -> None:
    """Their lists may differ, and the kubelet goes by the one that came last."""
    pods, file = Pods(), KubeletsFile()
    door = door_of(ledger, pods, admission_seconds=0.05, written=file)
    await door.take(RESOURCE, [device(1)])
    async with in_company(ledger, tmp_path), running(door.run()):
        for _ in range(20):
            await pods.asked_again()
        assert file.asked.value == 0
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_what_is_known_to_have_ended_waits_for_no_lookup(ledger: Ledger) -> None:
    pods, hanging = Pods(), asyncio.Event()
    pods.held = {RESOURCE: ["GPU-1"]}

    async def hangs() -> written.Written:
        hanging.set()
        await asyncio.Event().wait()
        return written.NOTHING

    door = door_of(ledger, pods, admission_seconds=0.05, written=hangs)
    await door.take(RESOURCE, [device(1), device(2)])
    async with running(door.run()):
        await hanging.wait()
        pods.held = {}
        await asyncio.wait_for(door.be_sure(), 10)
        await until_held(ledger, "GPU-2")


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_gives_no_device_back_too_early_and_none_too_late(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """As it is shortly after the boot of many a node: a pod that is being admitted would lose its GPU to a claim."""
    clock, pods = WallClock(monkeypatch), Pods()
    pods.since = clock()
    door, began = door_of(ledger, pods, admission_seconds=0.4), time.monotonic()
    await door.take(RESOURCE, [device(1)])
    clock.ahead = ahead
    async with running(door.run()):
        await until_held(ledger)
        assert time.monotonic() - began > 0.4


async def test_a_clock_that_is_set_after_the_kubelets_start_takes_nothing_from_a_pod(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, pods = WallClock(monkeypatch), Pods()
    pods.held = {RESOURCE: ["GPU-1"]}
    async with running(door_of(ledger, pods, admission_seconds=60.0).run()):
        await pods.asked_again()
        pods.held, pods.since = {}, clock()
        await pods.asked_again()
        clock.ahead = 3600.0
        await pods.asked_again()
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_a_clock_that_is_set_takes_nothing_from_a_pod_that_came_while_another_gave_back(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, pods = WallClock(monkeypatch), Pods()
    pods.held = {RESOURCE: ["GPU-1", "GPU-2"]}
    door = door_of(ledger, pods, admission_seconds=60.0)
    await door.take(RESOURCE, [device(1), device(2)])

    async def next_pod() -> None:
        async for _ in ledger.grants.watch():
            if len(ledger.grants_of(Door.LIMIT)) == 1:
                await door.take(RESOURCE, [device(3)])
                clock.ahead = 3600.0
                return

    async with in_company(ledger, tmp_path), running(next_pod()) as taken, running(door.run()):
        await pods.asked_again()
        pods.held = {}
        await taken
        await pods.asked_again()
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-3"}


async def test_the_next_pod_of_a_device_keeps_it_although_the_last_one_was_listed(ledger: Ledger) -> None:
    pods = Pods()
    pods.held = {RESOURCE: ["GPU-1"]}
    door = door_of(ledger, pods, admission_seconds=60.0)
    await door.take(RESOURCE, [device(1)])
    async with running(door.run()):
        await pods.asked_again()
        # The look that has just begun ends, and the next one is not due.
        await asyncio.sleep(0.01)
        pods.held = {}
        await door.take(RESOURCE, [device(1)])
        await pods.asked_again()
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_an_answer_that_was_asked_for_before_the_next_pod_came_says_nothing_of_it(ledger: Ledger) -> None:
    """While the kubelet answers, the pod that it speaks of ends, and the next one gets its device."""
    pods = Pods()
    pods.held = {RESOURCE: ["GPU-1"]}
    door = door_of(ledger, pods, admission_seconds=60.0)
    await door.take(RESOURCE, [device(1)])

    async def next_pod() -> None:
        pods.meanwhile, pods.held = None, {}
        await door.take(RESOURCE, [device(1)])

    async with running(door.run()):
        await door.synced.wait()
        pods.meanwhile = next_pod
        await pods.asked_again()
        await pods.asked_again()
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_a_pod_that_gets_a_device_while_another_is_given_back_keeps_it(ledger: Ledger, tmp_path: Path) -> None:
    pods = Pods()
    pods.held = {RESOURCE: ["GPU-1", "GPU-2"]}
    door = door_of(ledger, pods, admission_seconds=60.0)
    await door.take(RESOURCE, [device(1), device(2)])

    async def next_pod() -> None:
        async for _ in ledger.grants.watch():
            if len(left := ledger.grants_of(Door.LIMIT)) == 1:
                await door.take(RESOURCE, [device(int(left[0].holds[0].device[-1]))])
                return

    async with in_company(ledger, tmp_path), running(next_pod()) as taken, running(door.run()):
        await pods.asked_again()
        pods.held = {}
        await taken
        await pods.asked_again()
        assert len(ledger.held_gpus(Door.LIMIT)) == 1


async def test_what_was_just_given_out_is_looked_at_before_the_next_look_is_due(ledger: Ledger) -> None:
    pods = Pods()
    door = LimitDoor(ledger=ledger, held=pods, inventory=Latest(node(8)), every_seconds=3600.0)
    async with running(door.run()):
        await door.synced.wait()
        await door.take(RESOURCE, [device(1)])
        await pods.asked_again()


async def test_the_kubelet_is_not_asked_in_the_moment_in_which_it_gives_a_device_out(ledger: Ledger) -> None:
    """It might forget the device, and give it to the next pod as well."""
    pods = Pods()
    door = LimitDoor(ledger=ledger, held=pods, inventory=Latest(node(8)), every_seconds=3600.0)
    async with running(door.run()):
        await door.synced.wait()
        await asyncio.sleep(1.2)
        before = pods.looks
        await door.take(RESOURCE, [device(1)])
        await asyncio.sleep(0.5)
        assert pods.looks == before
        await pods.asked_again()


async def test_a_restarted_agent_learns_from_the_kubelet_what_pods_hold(ledger: Ledger) -> None:
    pods = Pods()
    pods.held = {RESOURCE: ["GPU-5"], "other.com/nic": ["nic-0"]}
    async with running(door_of(ledger, pods).run()):
        await until_held(ledger, "GPU-5")


async def test_a_claim_waits_for_what_a_kubelet_lists_that_was_started_with_the_agent(ledger: Ledger) -> None:
    """It lists no pod before it has read them, and one that goes on may be in no record: held, and never written."""
    pods = Pods()
    pods.since = time.time()
    door = door_of(ledger, pods, admission_seconds=60.0, every_seconds=3600.0)
    async with running(door.run()):
        await door.synced.wait()
        pods.held = {RESOURCE: ["GPU-1"]}
        await door.be_sure()
        with pytest.raises(DeviceHeld, match="GPU-1 is held by limit"):
            await claim(ledger, "GPU-1")


async def test_a_kubelet_is_asked_for_each_claim_for_a_while_from_the_first_one_on(ledger: Ledger) -> None:
    """From then on it knows its pods, however long it has been there without the API server."""
    pods = Pods()
    pods.since = time.time() - 3600.0
    door = door_of(ledger, pods, admission_seconds=2.0)
    await door.be_sure()
    await door.be_sure()
    assert pods.looks == 2
    await asyncio.sleep(2.1)
    await door.be_sure()
    assert pods.looks == 2
    pods.since = time.time()
    await door.be_sure()
    assert pods.looks == 3, "another kubelet"


async def test_a_kubelet_that_does_not_know_its_pods_is_asked_for_each_claim(ledger: Ledger) -> None:
    pods = Pods()
    pods.since = None
    door = door_of(ledger, pods)
    for looks in range(1, 4):
        await door.be_sure()
        assert pods.looks == looks


async def test_claims_that_wait_together_for_what_pods_hold_ask_together(ledger: Ledger) -> None:
    pods = Pods()
    pods.since = time.time()
    pods.meanwhile = partial(asyncio.sleep, 0.01)
    door = door_of(ledger, pods, admission_seconds=60.0)
    await asyncio.gather(*(door.be_sure() for _ in range(50)))
    assert 1 <= pods.looks <= 2


async def test_no_claim_is_prepared_while_a_kubelet_that_was_just_started_does_not_tell(ledger: Ledger) -> None:
    pods = Pods()
    pods.since, pods.held = time.time(), None
    with pytest.raises(HoldersUnknown, match="nobody tells"):
        await door_of(ledger, pods, admission_seconds=60.0).be_sure()


async def test_a_gpu_whose_shares_pods_hold_is_not_given_out_whole_by_an_agent_that_has_just_been_started(
    ledger: Ledger,
) -> None:
    told = asyncio.Event()

    async def held() -> Mapping[str, Collection[str]]:
        await told.wait()
        return {RESOURCE: ["GPU-1::0"]}

    door = LimitDoor(ledger=ledger, held=held, inventory=Latest(node(8)))
    async with running(door.run()):
        await asyncio.sleep(0)
        asked = asyncio.gather(
            door.take(RESOURCE, [device(1)]), door.take(RESOURCE, [device(2)]), return_exceptions=True
        )
        await asyncio.sleep(0.05)
        assert not asked.done(), "nothing is given out before it is known what pods hold"
        told.set()
        whole, other = await asked
    assert isinstance(whole, DeviceHeld)
    assert "GPU-1 is held by limit" in str(whole)
    assert other is None


async def test_a_kubelet_that_never_tells_what_pods_hold_keeps_devices_back_for_a_moment_only(ledger: Ledger) -> None:
    pods = Pods()
    pods.held = None
    door = LimitDoor(ledger=ledger, held=pods, inventory=Latest(node(8)), first_answer_seconds=0.1)
    async with running(door.run()):
        await asyncio.sleep(0)
        begun = time.monotonic()
        await door.take(RESOURCE, [device(1)])
        assert time.monotonic() - begun >= 0.09
        await door.take(RESOURCE, [device(2)])
    assert ledger.held_gpus(Door.LIMIT) == {"GPU-1", "GPU-2"}


async def test_what_a_pod_holds_under_a_name_that_is_no_longer_ours_is_not_given_back(ledger: Ledger) -> None:
    """A resource was renamed in the configuration: the pod runs on."""
    holder = Holder(door=Door.LIMIT, id="nvidia.com/old/GPU-1", name="nvidia.com/old")
    await ledger.reserve(Grant(holder=holder, holds=(Hold(device="GPU-1", gpus=(GpuUuid("GPU-1"),)),)))
    pods = Pods()
    pods.held = {"nvidia.com/old": ["GPU-1"]}
    door = door_of(ledger, pods)
    async with running(door.run()):
        await door.synced.wait()
        await asyncio.sleep(0.05)
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}
        pods.held = {}
        await until_held(ledger)


async def test_the_next_pod_of_a_device_keeps_it_although_the_last_one_had_it_for_long(tmp_path: Path) -> None:
    """The kubelet gives a device out again before anybody has heard that the last pod is gone."""
    now = time.time() - 3600
    with Lane("ledger") as lane:
        checkpoint = Checkpoint(tmp_path / LEDGER)
        async with Ledger(checkpoint=checkpoint, lane=lane, boot_id="boot", clock=lambda: now) as ledger:
            await ledger.reconcile(Door.CLAIM, [])
            door = door_of(ledger, Pods(), admission_seconds=60.0)
            await door.take(RESOURCE, [device(1)])
            now = time.time()
            await door.take(RESOURCE, [device(1)])
            async with running(door.run()):
                await door.synced.wait()
                await asyncio.sleep(0.05)
                assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_a_refused_pod_leaves_devices_that_were_held_before_as_they_were(ledger: Ledger) -> None:
    door = door_of(ledger, Pods())
    await door.take(RESOURCE, [device(1)])
    await claim(ledger, "GPU-2")
    with pytest.raises(DeviceHeld):
        await door.take(RESOURCE, [device(1), device(2), device(3)])
    assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_nothing_is_given_back_while_the_kubelet_does_not_tell(ledger: Ledger) -> None:
    pods = Pods()
    pods.held = None
    door = door_of(ledger, pods)
    await door.take(RESOURCE, [device(1)])
    async with running(door.run()):
        await asyncio.sleep(0.1)
        assert not door.synced.is_set()
        assert ledger.held_gpus(Door.LIMIT) == {"GPU-1"}


async def test_two_that_already_have_one_gpu_are_left_alone_and_said(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    await claim(ledger, "GPU-5")
    pods = Pods()
    pods.held = {RESOURCE: ["GPU-5"]}
    async with running(door_of(ledger, pods).run()):
        async with asyncio.timeout(30):
            while "a pod has what another holds: end one of the two" not in caplog.messages:
                await asyncio.sleep(0.02)
    assert [holder.door for holder in ledger.holders_of(GpuUuid("GPU-5"))] == [Door.CLAIM]


async def test_a_gpu_that_a_claim_holds_is_unhealthy_for_the_kubelet_until_it_is_released(
    world: World, kubelet: EmbeddedKubelet, ledger: Ledger
) -> None:
    world.grants = ledger.grants
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        await claim(ledger, "GPU-0", "GPU-1")
        view = await kubelet.until(RESOURCE, allocatable=6)
        assert view.capacity == 8
        await ledger.release(CLAIM.id)
        await kubelet.until(RESOURCE, allocatable=8)


async def test_what_pods_get_does_not_have_the_offer_made_anew(
    world: World, kubelet: EmbeddedKubelet, ledger: Ledger
) -> None:
    world.grants = ledger.grants
    async with kubelet.running(), served(world, kubelet) as plugin:
        await kubelet.until(RESOURCE, allocatable=8)
        offer = plugin.offer.value
        await door_of(ledger, Pods()).take(RESOURCE, [device(1), device(2)])
        await asyncio.sleep(0.05)
        assert plugin.offer.value is offer
        await claim(ledger, "GPU-0")
        await kubelet.until(RESOURCE, allocatable=7)


async def test_admin_access_of_a_claim_takes_nothing_from_the_kubelet(
    world: World, kubelet: EmbeddedKubelet, ledger: Ledger
) -> None:
    world.grants = ledger.grants
    async with kubelet.running(), served(world, kubelet):
        await kubelet.until(RESOURCE, allocatable=8)
        looks = Hold(device="GPU-0", gpus=(GpuUuid("GPU-0"),), admin=True)
        await ledger.reserve(Grant(holder=CLAIM, holds=(looks,)))
        await asyncio.sleep(0.1)
        assert kubelet.view(RESOURCE).allocatable == 8


PART = partition(gpu(1), "3g.71gb", 0, length=4, number=1)
CUT = cut(node(8), {1: [PART]})
SLICES = "nvidia.com/mig-3g.71gb"


def cut_door(ledger: Ledger, pods: Pods, inventory: Latest[Inventory]) -> LimitDoor:
    return LimitDoor(ledger=ledger, held=pods, inventory=inventory, every_seconds=0.02, admission_seconds=0.0)


def places(ledger: Ledger) -> set[Place]:
    return {place for grant in ledger.grants_of(Door.LIMIT) for hold in grant.holds for place in hold.places}


async def until_places(ledger: Ledger, *wanted: Place) -> None:
    async with asyncio.timeout(30):
        async for _ in ledger.grants.watch():
            if places(ledger) == set(wanted):
                return


async def test_a_pod_with_a_mig_device_holds_that_part_of_its_gpu(ledger: Ledger) -> None:
    pods = Pods()
    pods.held = {SLICES: [f"{PART.uuid}::2"]}
    async with running(cut_door(ledger, pods, Latest(CUT)).run()):
        await until_places(ledger, PART.place)
        (grant,) = ledger.grants_of(Door.LIMIT)
        assert (grant.holds[0].share_id, grant.holder.id) == ("2", f"{SLICES}/{PART.uuid}::2")
        pods.held = {}
        await until_places(ledger)


async def test_a_mig_device_that_is_removed_while_a_pod_has_it_is_held_until_the_pod_ends(ledger: Ledger) -> None:
    pods, inventory = Pods(), Latest(CUT)
    pods.held = {SLICES: [PART.uuid]}
    async with running(cut_door(ledger, pods, inventory).run()):
        await until_places(ledger, PART.place)
        inventory.set(node(8, generation=2))
        await asyncio.sleep(0.1)
        assert places(ledger) == {PART.place}
        with pytest.raises(DeviceHeld):
            await claim(ledger, "GPU-1")
        pods.held = {}
        await until_places(ledger)


async def test_an_agent_that_starts_after_a_mig_device_was_removed_knows_from_the_one_before_whose_gpu_it_was(
    tmp_path: Path,
) -> None:
    pods = Pods()
    pods.held = {SLICES: [PART.uuid]}
    with Lane("files") as lane:
        for inventory in (CUT, node(8)):
            checkpoint = Checkpoint(tmp_path / LEDGER)
            async with Ledger(checkpoint=checkpoint, lane=lane, boot_id="boot") as ledger:
                door = cut_door(ledger, pods, Latest(inventory))
                async with running(door.run()):
                    async with asyncio.timeout(30):
                        await door.synced.wait()
                    assert places(ledger) == {PART.place}


async def test_nothing_is_taken_for_known_while_it_is_not_known_what_mig_devices_there_are(ledger: Ledger) -> None:
    pods, inventory = Pods(), Latest(Inventory())
    pods.held = {SLICES: [PART.uuid]}
    door = cut_door(ledger, pods, inventory)
    async with running(door.run()):
        await asyncio.sleep(0.1)
        assert not door.synced.is_set()
        inventory.set(CUT)
        async with asyncio.timeout(30):
            await door.synced.wait()
        assert places(ledger) == {PART.place}


async def test_a_mig_device_that_nobody_knows_is_said_once_and_holds_nothing_up(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    pods = Pods()
    pods.held = {SLICES: ["MIG-strange"], RESOURCE: ["GPU-2"]}
    async with running(cut_door(ledger, pods, Latest(node(8))).run()):
        await until_places(ledger, Place(gpu=GpuUuid("GPU-2")))
        await asyncio.sleep(0.1)
    said = [record for record in caplog.records if "of which nobody knows the GPU" in record.getMessage()]
    assert len(said) == 1
