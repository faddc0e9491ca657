"""The driver beside a kubelet: announced, found, called, lost and found again, alone and with another agent."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node_agent.dra import server as module
from node_agent.dra.health import HealthFeed
from node_agent.dra.operations import ClaimOperations, ClaimRef
from node_agent.dra.server import SERVICES, DraServer
from node_agent.errors import ClaimUnreadable
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kubelet.registration import Phase
from node_agent.model.claim import Claim
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory
from tests.fakes.builders import uuid
from tests.fakes.dra_kubelet import DraKubelet, Instance
from tests.unit.allocation.support import DEVICES, DRIVER, POOL, allocated, claim, node

A = claim("a", allocated("gpu-0", "gpus/large", share_id="half"))
B = claim("b", "gpu-1", "gpu-2")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.02)


@dataclass
class Claims:
    """The claims that there are; while ``gate`` is set, whoever asks waits until it is opened."""

    known: Sequence[Claim] = (A, B)
    gate: asyncio.Event | None = None
    asked: int = 0

    async def claim(self, ref: ClaimRef) -> Claim:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        for one in self.known:
            if one.uid == ref.uid:
                return one
        raise ClaimUnreadable(f"claim {ref.full_name} is gone")


@dataclass
class Place:
    """The kubelet's folders, and what an agent serves from."""

    folder: Path
    operations: ClaimOperations
    claims: Claims
    health: Latest[HealthReport] = field(default_factory=lambda: Latest(HealthReport()))

    @property
    def registry(self) -> Path:
        return self.folder / "plugins_registry"

    @property
    def plugins(self) -> Path:
        return self.folder / "plugins" / DRIVER

    @property
    def sockets(self) -> list[Path]:
        return sorted([*self.registry.glob("*.sock"), *self.plugins.glob("*.sock")])

    def server(self) -> DraServer:
        return DraServer(
            driver=DRIVER,
            folder=self.plugins,
            registry=self.registry,
            operations=self.operations,
            feed=lambda: HealthFeed(
                pool=POOL, report=self.health, inventory=Latest(Inventory()), published=lambda: DEVICES
            ),
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[DraServer]:
        server = self.server()
        async with running(server.run()):
            yield server

    def kubelet(self, *knows: str) -> DraKubelet:
        return DraKubelet(self.registry, knows) if knows else DraKubelet(self.registry)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of a name that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="dra-") as made:
        yield Path(made)


async def known_at_once() -> None:
    """Nothing is held by limits."""


@pytest.fixture
async def place(folder: Path, tmp_path: Path) -> AsyncIterator[Place]:
    async with node(tmp_path) as parts:
        claims = Claims()
        operations = ClaimOperations(
            driver=DRIVER,
            claims=claims,
            preparer=parts.preparer,
            published=lambda: DEVICES,
            with_modes=lambda claim: claim,
            holders_known=known_at_once,
            patience=5.0,
        )
        (folder / "plugins_registry").mkdir()
        yield Place(folder=folder, operations=operations, claims=claims)


async def until_phase(server: DraServer, phase: Phase, count: int | None = None) -> None:
    async with asyncio.timeout(30):
        async for found in server.registration.watch():
            if found.phase is phase and count in (None, found.count):
                return


async def test_the_kubelet_finds_the_driver_and_all_that_it_serves_in_order_of_preference(place: Place) -> None:
    kubelet = place.kubelet()
    async with kubelet.running(), place.serving() as server:
        found = await kubelet.until(1)
        assert found.name == DRIVER
        assert found.services == SERVICES
        assert found.endpoint.parent == place.plugins
        assert (found.services.index("v1.DRAPlugin"), found.services.index("v1beta1.DRAPlugin")) == (0, 1)
        await until_phase(server, Phase.REGISTERED, count=1)
        assert server.registration.value.detail == found.announced_by.name


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_claims_are_prepared_and_unprepared_by_whichever_version_the_kubelet_knows(
    place: Place, version: str
) -> None:
    kubelet = place.kubelet(f"{version}.DRAPlugin")
    async with kubelet.running(), place.serving():
        await kubelet.until(1)
        answers = await kubelet.prepare(A.uid, B.uid)
        assert {uid: answer.error for uid, answer in answers.items()} == {A.uid: "", B.uid: ""}
        (device,) = answers[A.uid].devices
        assert (device.device_name, device.pool_name, list(device.request_names)) == ("gpu-0", POOL, ["gpus"])
        assert list(device.cdi_device_ids) == [f"node-agent.gpu.nvidia.com/claim={A.uid}-gpu-0-half"]
        assert [each.device_name for each in answers[B.uid].devices] == ["gpu-1", "gpu-2"]
        assert await kubelet.unprepare(A.uid, B.uid, "never-seen") == {A.uid: "", B.uid: "", "never-seen": ""}


async def test_only_the_newer_version_tells_shares_apart(place: Place) -> None:
    kubelet = place.kubelet()
    async with kubelet.running(), place.serving():
        await kubelet.until(1)
        (device,) = (await kubelet.prepare(A.uid))[A.uid].devices
        assert device.share_id == "half"


async def test_a_claim_that_is_gone_is_answered_for_itself_and_the_other_is_prepared(place: Place) -> None:
    kubelet = place.kubelet()
    async with kubelet.running(), place.serving():
        await kubelet.until(1)
        answers = await kubelet.prepare("gone", B.uid)
        assert "claim default/claim-gone is gone" in answers["gone"].error
        assert len(answers[B.uid].devices) == 2


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_the_kubelet_is_sent_the_health_of_each_device_and_each_change(place: Place, version: str) -> None:
    kubelet = place.kubelet("v1.DRAPlugin", f"{version}.DRAResourceHealth")
    async with kubelet.running(), place.serving():
        await kubelet.until(1)
        sent = kubelet.health()
        assert set((await anext(sent)).values()) == {"HEALTHY"}
        cause = Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, message="Xid 79", since=0.0, code=79)
        place.health.set(HealthReport(devices={uuid(3): DeviceHealth(causes=(cause,))}))
        sick = {name for name, health in (await anext(sent)).items() if health == "UNHEALTHY"}
        assert sick == {"gpu-3", "group-2-2"}
        await sent.aclose()


async def test_a_kubelet_that_comes_late_finds_the_driver(place: Place) -> None:
    kubelet = place.kubelet()
    async with place.serving() as server:
        await until_phase(server, Phase.REGISTERING)
        await asyncio.sleep(0.1)
        async with kubelet.running():
            await kubelet.until(1)


async def test_a_restarted_kubelet_finds_the_driver_by_the_same_sockets(place: Place) -> None:
    kubelet = place.kubelet()
    async with place.serving() as server:
        async with kubelet.running():
            first = await kubelet.until(1)
            await until_phase(server, Phase.REGISTERED, count=1)
        async with kubelet.running():
            second = await kubelet.until(1)
            assert (second.announced_by, second.endpoint) == (first.announced_by, first.endpoint)
            await until_phase(server, Phase.REGISTERED, count=2)
            assert not (await kubelet.prepare(B.uid))[B.uid].error


async def test_a_kubelet_that_refuses_the_driver_is_shown_and_asked_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet = place.kubelet()
    kubelet.refusal = "too many drivers"
    async with kubelet.running(), place.serving() as server:
        await until_phase(server, Phase.REFUSED)
        assert server.registration.value.detail == f"the kubelet refused {DRIVER}: too many drivers"
        async with asyncio.timeout(30):
            while kubelet.asked < 3:
                await asyncio.sleep(0.01)
        kubelet.refusal = None
        await kubelet.until(1)
        await until_phase(server, Phase.REGISTERED)
        assert caplog.messages.count("registration failed") == 1


def of_registry(place: Place) -> list[Path]:
    return list(place.registry.glob("*.sock"))


def of_plugins(place: Place) -> list[Path]:
    return list(place.plugins.glob("*.sock"))


@pytest.mark.parametrize("wiped", [[of_registry], [of_plugins], [of_registry, of_plugins]])
@pytest.mark.parametrize("known", [True, False])
async def test_sockets_that_were_wiped_are_made_anew_whether_the_kubelet_knew_them_or_not(
    place: Place, wiped: Sequence[Callable[[Place], list[Path]]], known: bool
) -> None:
    kubelet = place.kubelet()
    async with place.serving() as server, AsyncExitStack() as later:
        if known:
            await later.enter_async_context(kubelet.running())
            await kubelet.until(1)
        await until_phase(server, Phase.REGISTERED if known else Phase.REGISTERING)
        before, old = set(place.sockets), kubelet.instances.value
        for folder in wiped:
            for path in folder(place):
                path.unlink()
        if not known:
            await later.enter_async_context(kubelet.running())
        async with asyncio.timeout(30):
            while len(place.sockets) != 2 or before & set(place.sockets):
                await asyncio.sleep(0.01)
        await kubelet.until(1, other_than=old)
        assert not (await kubelet.prepare(B.uid))[B.uid].error


async def test_the_drivers_folder_is_made_again_where_it_was_removed(place: Place) -> None:
    kubelet = place.kubelet()
    async with kubelet.running(), place.serving():
        old = await kubelet.until(1)
        shutil.rmtree(place.plugins)
        await kubelet.until(1, other_than=[old])
        assert not (await kubelet.prepare(B.uid))[B.uid].error


async def test_an_agent_that_ends_leaves_no_socket_of_its_own_and_all_others(place: Place) -> None:
    other = place.registry / "another.example.com-reg.sock"
    other.touch()
    kubelet = place.kubelet()
    async with kubelet.running():
        async with place.serving():
            await kubelet.until(1)
            assert len(place.sockets) == 3
        assert place.sockets == [other]
        async with asyncio.timeout(30):
            async for instances in kubelet.instances.watch():
                if not instances:
                    break


def dead_socket(path: Path) -> Path:
    """A socket on which nobody answers any more."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    return path


async def test_what_a_killed_agent_has_left_is_cleared_away_and_nothing_of_other_drivers(place: Place) -> None:
    own = [
        dead_socket(place.plugins / "dra-0badc0de.sock"),
        dead_socket(place.plugins / ".dra-0badc0de.sock"),
        dead_socket(place.registry / f"{DRIVER}-0badc0de-reg.sock"),
    ]
    others = [dead_socket(place.registry / "nic.example.com-reg.sock"), dead_socket(place.plugins / "theirs.sock")]
    kubelet = place.kubelet()
    async with kubelet.running(), place.serving():
        await kubelet.until(1)
        assert [path.exists() for path in own] == [False, False, False]
        assert all(path.exists() for path in others)


async def test_a_call_that_is_under_way_when_the_agent_ends_is_answered(place: Place) -> None:
    kubelet = place.kubelet()
    place.claims.gate = asyncio.Event()
    async with kubelet.running():
        async with place.serving():
            await kubelet.until(1)
            call = asyncio.create_task(kubelet.prepare(B.uid))
            async with asyncio.timeout(30):
                while not place.claims.asked:
                    await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_later(0.1, place.claims.gate.set)
        assert not (await call)[B.uid].error


async def test_an_open_health_stream_does_not_hold_up_the_end(place: Place) -> None:
    kubelet = place.kubelet()
    async with kubelet.running():
        async with place.serving():
            await kubelet.until(1)
            sent = kubelet.health()
            await anext(sent)
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 4.5, "it waits five seconds for calls"
        assert [states async for states in sent] == []


async def test_the_new_agent_of_a_rolling_update_is_called_while_the_old_one_still_serves(place: Place) -> None:
    kubelet = place.kubelet()
    async with kubelet.running(), AsyncExitStack() as stays:
        async with place.serving():
            old = await kubelet.until(1)
            await stays.enter_async_context(place.serving())
            new = await kubelet.until(2)
            assert new.endpoint != old.endpoint
            assert old.announced_by.exists() and old.endpoint.exists()
            assert not (await kubelet.prepare(B.uid))[B.uid].error
        assert place.sockets == sorted([new.announced_by, new.endpoint])
        assert await kubelet.until(1) == new
        assert await kubelet.unprepare(B.uid) == {B.uid: ""}


async def test_no_call_fails_while_one_agent_hands_over_to_the_next(place: Place) -> None:
    kubelet = place.kubelet()
    asked_of: set[Instance] = set()

    async def call_without_end() -> None:
        while True:
            asked_of.add(kubelet.newest)
            assert not (await kubelet.prepare(B.uid))[B.uid].error
            assert await kubelet.unprepare(B.uid) == {B.uid: ""}

    async with kubelet.running(), AsyncExitStack() as last:
        async with AsyncExitStack() as first:
            await first.enter_async_context(place.serving())
            await kubelet.until(1)
            async with running(call_without_end()) as calls:
                await asyncio.sleep(0.1)
                await last.enter_async_context(place.serving())
                await kubelet.until(2)
                await asyncio.sleep(0.1)
                await first.aclose()
                await kubelet.until(1)
                await asyncio.sleep(0.1)
                assert not calls.done()
        assert len(asked_of) == 2
