"""Claims as users met them: an attribute that made the API server refuse a whole slice (B44), names that moved to other
cards (B46), slices that did not come back (B48), a late call that brought a finished claim back (B49), state that
outlived what it described (B50), success without the file that makes it true (B51), a damaged checkpoint (B52), pods
that could not end (B55), one slow claim that held up the node (B57), versions that do not match (B69), and one GPU
given out through two doors (B70). Claims that were left half prepared (B54) are with the allocation's own tests,
which can turn the clock: whoever was called for in the last moments is not swept.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import msgspec
import pytest
from msgspec.structs import replace

from node_agent.agent import build
from node_agent.errors import KubeletError
from node_agent.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.api_server import ApiServer
from tests.fakes.names import GPU_RESOURCE
from tests.faults.claims import Cluster
from tests.faults.conftest import Simulate, lines, until

TAINTS = "spec.devices[*].taints"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
def l4(simulate: Simulate, server: ApiServer) -> Cluster:
    """Two L4."""
    return Cluster(simulate("l4-2"), server)


@pytest.fixture
def h200(simulate: Simulate, server: ApiServer) -> Cluster:
    """Eight H200."""
    return Cluster(simulate("h200-8"), server)


# B44: values that no slice may have


async def test_a_name_that_is_too_long_is_cut_between_characters_and_costs_no_device(
    simulate: Simulate, server: ApiServer
) -> None:
    plain = simulate("l4-2").node.profile
    # 67 bytes, with a character of two bytes across the limit of 64.
    name = "NVIDIA " + "x" * 56 + "Ü" + "yz"
    assert len(name.encode()) == 67
    assert name.encode()[63:65] == "Ü".encode()
    long = msgspec.structs.replace(plain.boards["l4"], name=name)
    here = Cluster(simulate(msgspec.structs.replace(plain, boards={**plain.boards, "l4": long})), server)
    async with here.serving(2):
        assert {one["attributes"]["productName"]["string"] for one in here.devices.values()} == {name[:-3]}


async def test_a_drivers_version_is_published_as_a_version(simulate: Simulate, server: ApiServer) -> None:
    plain = simulate("l4-2").node.profile
    padded = msgspec.structs.replace(plain, driver=msgspec.structs.replace(plain.driver, version="570.124.06"))
    here = Cluster(simulate(padded), server)
    async with here.serving(2):
        assert {one["attributes"]["driverVersion"]["version"] for one in here.devices.values()} == {"570.124.6"}


# B46: names


async def test_a_claims_name_goes_on_to_mean_its_gpu_when_another_drops_out(h200: Cluster) -> None:
    async with h200.serving(8):
        device, first = h200.device_of(2), h200.device_of(0)
        claim = h200.allocate("a", device)
        assert await h200.prepared(claim) == [device]
        before = h200.spec_of(claim).read_text()
    h200.place.node.faults.lose(0)
    async with h200.serving(7):
        assert h200.device_of(2) == device
        assert first not in h200.devices
        assert await h200.prepared(claim) == [device]
        assert h200.spec_of(claim).read_text() == before


# B48: slices


async def test_slices_that_somebody_deletes_are_put_back(l4: Cluster) -> None:
    async with l4.serving(2):
        for item in l4.slices:
            l4.server.remove(RESOURCE_SLICES, item["metadata"]["name"])
        await until(lambda: len(l4.devices) == 2)
        assert len(l4.slices) == 1


async def test_a_change_is_written_again_until_it_is_stored(l4: Cluster) -> None:
    async with l4.serving(2):
        device, (before,) = l4.device_of(1), l4.slices
        l4.server.fail(verb="update", path="resourceslices", code=500)
        l4.server.fail(verb="update", path="resourceslices", code=409)
        l4.place.node.faults.lose(1)
        await until(lambda: "taints" in l4.devices[device])
        (after,) = l4.slices
        assert after["spec"]["pool"]["generation"] >= before["spec"]["pool"]["generation"]


async def test_of_two_agents_one_writes_slices_and_the_other_goes_on_where_it_has_ended(l4: Cluster) -> None:
    """In an update the new agent serves beside the old one, and knows half a second before it what it has given out."""
    second = replace(l4.settings, paths=replace(l4.settings.paths, run_dir=l4.place.folder / "run-2"))
    async with AsyncExitStack() as first:
        await first.enter_async_context(l4.serving(2))
        async with l4.place.agent(second):
            await until(lambda: l4.place.view.registrations == 2)
            before = len(l4.server.writes("resourceslices"))
            (held,), _ = await l4.place.kubelet.admit("pod", GPU_RESOURCE, 1)
            device = l4.device_of(l4.place.uuids.index(held))
            await until(lambda: "taints" in l4.devices[device])
            await asyncio.sleep(1)
            assert [device for device, one in l4.devices.items() if "taints" in one] == [device]
            assert len(l4.server.writes("resourceslices")) - before == 1

            await first.aclose()
            l4.place.node.faults.lose(1 - l4.place.uuids.index(held))
            await until(lambda: all("taints" in one for one in l4.devices.values()))


# B49: calls that come late, and more than once


async def test_many_prepares_do_the_work_once_and_many_unprepares_succeed(l4: Cluster) -> None:
    async with l4.serving(2):
        claim = l4.allocate("a", l4.device_of(0))
        answers = [(await l4.prepare(claim))["a"] for _ in range(3)]
        assert answers[0].devices and answers.count(answers[0]) == 3
        assert [await l4.unprepare(claim) for _ in range(2)] == [{"a": ""}] * 2
        assert not l4.spec_of(claim).exists()


async def test_a_prepare_that_its_unprepare_overtakes_is_refused(l4: Cluster) -> None:
    async with l4.serving(2) as agent:
        claim = l4.allocate("a", l4.device_of(0))
        l4.server.remove(RESOURCE_CLAIMS, "a")
        l4.server.slow(1.0, times=5, verb="get", path="resourceclaims/a")
        late = asyncio.create_task(l4.prepare(claim))
        await l4.server.until(
            lambda: any(asked.verb == "get" and "claims/a" in asked.path for asked in l4.server.requests)
        )
        assert await l4.unprepare(claim) == {"a": ""}
        assert (await late)["a"].error
        assert agent.ledger.grants.value == {}


# B50 and B51: state and what it describes


async def test_after_a_reboot_a_claim_is_prepared_in_full_again(l4: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "read_boot_id", lambda: "boot-1")
    async with l4.serving(2):
        claim = l4.allocate("a", l4.device_of(0))
        await l4.prepared(claim)
    for file in l4.place.settings.paths.cdi_dir.iterdir():
        file.unlink()
    monkeypatch.setattr(build, "read_boot_id", lambda: "boot-2")
    async with l4.serving(2) as agent:
        assert await l4.prepared(claim) == [l4.device_of(0)]
        assert l4.spec_of(claim).exists()
        assert agent.ledger.grants.value[claim.uid].boot_id == "boot-2"


async def test_success_is_answered_only_with_the_spec_on_disk(l4: Cluster) -> None:
    async with l4.serving(2):
        claim = l4.allocate("a", l4.device_of(0))
        await l4.prepared(claim)
        spec = l4.spec_of(claim).read_text()
        l4.spec_of(claim).unlink()
        await l4.prepared(claim)
        assert l4.spec_of(claim).read_text() == spec


async def test_at_start_prepared_claims_get_their_specs_back_and_unknown_specs_go(l4: Cluster) -> None:
    async with l4.serving(2):
        claim = l4.allocate("a", l4.device_of(0))
        await l4.prepared(claim)
    stranger = l4.spec_of(claim).with_name(l4.spec_of(claim).name.replace(claim.uid, "claim-of-nobody"))
    l4.spec_of(claim).rename(stranger)
    async with l4.serving(2):
        await until(lambda: l4.spec_of(claim).exists() and not stranger.exists())


# B52: the checkpoint


@pytest.mark.parametrize(
    "damage",
    [lambda good: good[: len(good) // 2], lambda good: good.replace(b"gpu-", b"gpv-"), lambda good: b""],
    ids=["cut in half", "changed", "empty"],
)
async def test_a_damaged_checkpoint_is_set_aside_and_makes_no_gpu_free(
    l4: Cluster, damage: Callable[[bytes], bytes]
) -> None:
    async with l4.serving(2):
        device = l4.device_of(0)
        claim = l4.allocate("a", device)
        await l4.prepared(claim)
    l4.books.write_bytes(damage(l4.books.read_bytes()))
    async with l4.serving(2) as agent:
        assert [path for path in l4.books.parent.iterdir() if "damaged" in path.name]
        await until(lambda: claim.uid in agent.ledger.grants.value)
        rival = l4.allocate("b", device)
        answer = asyncio.create_task(l4.prepare(rival))
        await asyncio.sleep(0.5)
        assert not answer.done(), "it waits for who may just be giving the GPU back"
        assert await l4.unprepare(claim) == {"a": ""}
        assert not (await answer)["b"].error


async def test_a_ledger_that_cannot_be_written_is_said_at_once_and_the_claim_takes_nothing(l4: Cluster) -> None:
    async with l4.serving(2) as agent:
        claim = l4.allocate("a", l4.device_of(0))
        # Not even root can put a file in the place of a folder that is not empty.
        books = l4.books.rename(l4.books.with_suffix(".away"))
        (l4.books / "in the way").mkdir(parents=True)
        async with asyncio.timeout(30):
            answer = (await l4.prepare(claim))["a"]
        assert not answer.devices
        assert f"cannot write who holds which GPU to {l4.books}" in answer.error
        assert claim.uid not in agent.ledger.grants.value
        assert not l4.spec_of(claim).exists()

        shutil.rmtree(l4.books)
        books.rename(l4.books)
        assert await l4.prepared(claim) == [l4.device_of(0)]


# Not among the users' own: pods that start together with the agent


async def test_a_claim_that_comes_before_the_gpus_were_looked_at_is_prepared_once_they_were(
    l4: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """After a reboot the kubelet starts its pods as soon as it finds the driver."""
    caplog.set_level("INFO", logger="node_agent")
    async with l4.serving(2):
        device = l4.device_of(1)
    l4.place.node.faults.hang("nvmlInitWithFlags", seconds=120)
    async with l4.place.kubelet.running(), l4.place.agent(l4.settings):
        await until(lambda: l4.sockets)
        answer = asyncio.create_task(l4.prepared(l4.allocate("a", device)))
        await until(lambda: lines(caplog, "claim is tried again"))
        assert "which devices this node has is not known yet" in str(lines(caplog, "claim is tried again")[0]["reason"])
        l4.place.node.faults.clear()
        assert await answer == [device]


async def test_a_claim_that_comes_before_the_driver_is_loaded_is_prepared_once_it_was(l4: Cluster) -> None:
    """Where the driver comes in a container it comes after the agent; until then there is no GPU, for all one knows."""
    async with l4.serving(2):
        device = l4.device_of(1)
    l4.place.node.faults.driver("not-loaded")
    async with l4.serving(0):
        answer = asyncio.create_task(l4.prepared(l4.allocate("a", device)))
        await asyncio.sleep(0.5)
        assert not answer.done()
        l4.place.node.faults.driver("loaded")
        assert await answer == [device]


# B55: claims that are gone


async def test_unpreparing_needs_neither_the_claim_nor_the_api_server(l4: Cluster) -> None:
    async with l4.serving(2) as agent:
        known, deleted = l4.allocate("a", l4.device_of(0)), l4.allocate("b", l4.device_of(1))
        await l4.prepare(known, deleted)
        unheard = l4.allocate("c", l4.device_of(0))
        l4.forget(deleted)
        await l4.server.stop()
        assert await l4.unprepare(known, deleted, unheard) == {"a": "", "b": "", "c": ""}
        assert agent.ledger.grants.value == {}
        await l4.server.start()


# B57: a slow claim


async def test_a_claim_that_waits_holds_up_no_other_and_its_twin_gets_the_same(l4: Cluster) -> None:
    async with l4.serving(2):
        slow, quick = l4.allocate("slow", l4.device_of(0)), l4.allocate("quick", l4.device_of(1))
        holder = l4.allocate("holder", l4.device_of(0))
        await l4.prepared(holder)
        twins = [asyncio.create_task(l4.prepare(slow)) for _ in range(2)]
        async with asyncio.timeout(30):
            assert await l4.prepared(quick) == [l4.device_of(1)]
        assert not any(twin.done() for twin in twins)
        await l4.unprepare(holder)
        one, other = [(await twin)["slow"] for twin in twins]
        assert one.devices and one == other


# B69: versions


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_any_version_of_the_resource_api_will_do(l4: Cluster, version: str) -> None:
    l4.server.serve("resource.k8s.io", version)
    async with l4.serving(2):
        paths = {asked.path for asked in l4.server.writes("resourceslices")}
        assert all(f"/apis/resource.k8s.io/{version}/" in path for path in paths) and paths
        # What v1 has right under a device, v1beta1 has one level deeper.
        assert {"basic" in device for device in l4.devices.values()} == {version == "v1beta1"}


async def test_where_the_server_drops_taints_a_gpu_in_trouble_leaves_its_slice(
    l4: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    l4.server.strip(TAINTS)
    async with l4.serving(2):
        device = l4.device_of(1)
        l4.place.node.faults.lose(1)
        await until(lambda: device not in l4.devices)
        assert len(l4.devices) == 1
        assert any("taint" in str(record.__dict__).lower() for record in caplog.records)


# B70: two doors


async def test_a_gpu_that_a_claim_holds_is_given_to_no_pod_by_its_limit(l4: Cluster) -> None:
    async with l4.serving(2):
        await l4.place.allocatable(2)
        await l4.prepared(l4.allocate("a", l4.device_of(0)))
        await l4.place.allocatable(1)
        assert "out of service: held by claim default/a" in await l4.place.refusal([l4.place.uuid(0)])
        with pytest.raises(KubeletError):
            await l4.place.kubelet.admit("pod", GPU_RESOURCE, 2)


async def test_a_gpu_that_a_pod_got_by_its_limit_is_tainted_and_refused_to_claims(l4: Cluster) -> None:
    async with l4.serving(2) as agent:
        await l4.place.allocatable(2)
        (held,), _ = await l4.place.kubelet.admit("pod", GPU_RESOURCE, 1)
        device = next(name for name, one in l4.devices.items() if one["attributes"]["uuid"]["string"] == held)
        await until(lambda: "taints" in l4.devices[device])
        claim = l4.allocate("a", device)
        answer = asyncio.create_task(l4.prepare(claim))
        await asyncio.sleep(0.5)
        assert not answer.done()
        assert claim.uid not in agent.ledger.grants.value
        answer.cancel()
