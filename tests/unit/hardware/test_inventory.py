"""The keeper of the inventory: what it publishes when GPUs and drivers come and go."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.errors import DriverUnavailable, LibraryUnusable
from node_agent.hardware import inventory as inventory_module
from node_agent.hardware.inventory import InventoryKeeper, joined, unknown_facts, unreachable
from node_agent.hardware.names import NameFile
from node_agent.hardware.null import NullProvider
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import GpuFacts, Scan
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.sysfs import Sysfs
from node_agent.kit.logs import FACTS
from node_agent.kit.tasks import running
from node_agent.model.gpu import DeviceName, GpuUuid
from node_agent.model.inventory import DriverInfo, Inventory, MissingGpu
from node_agent.model.links import LinkGraph
from node_agent.model.partition import Instance, PartitionProfile
from node_agent.model.pci import pci_address


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory_module, "_REST_SECONDS", 0.0)


@pytest.fixture
def root(node: SimulatedNode, tmp_path: Path) -> Path:
    """The node's files."""
    node.write_tree(tmp_path, devices="placeholder")
    return tmp_path


@pytest.fixture
async def provider(root: Path) -> AsyncIterator[NvmlProvider]:
    async with NvmlProvider(sysfs=root / "sys") as provider:
        yield provider


@pytest.fixture
async def keeper(provider: NvmlProvider, root: Path) -> AsyncIterator[InventoryKeeper]:
    keeper = keeper_of(provider, root)
    async with running(keeper.run()):
        await until(keeper, lambda inventory: inventory.generation > 0)
        yield keeper


def keeper_of(provider: NvmlProvider, root: Path, stall_seconds: float = 5.0) -> InventoryKeeper:
    return InventoryKeeper(
        provider=provider,
        sysfs=Sysfs(root=root / "sys"),
        names=NameFile(root / "names.json"),
        period=30.0,
        stall_seconds=stall_seconds,
    )


async def until(keeper: InventoryKeeper, wanted: Callable[[Inventory], bool]) -> Inventory:
    async with asyncio.timeout(30):
        async for inventory in keeper.inventory.watch():
            if wanted(inventory):
                return inventory
    raise AssertionError("the inventory ended")


async def rescanned(keeper: InventoryKeeper, wanted: Callable[[Inventory], bool]) -> Inventory:
    keeper.rescan()
    return await until(keeper, wanted)


def facts_of(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    return [getattr(record, FACTS, {}) for record in caplog.records if record.getMessage() == event]


def names_of(inventory: Inventory) -> list[str]:
    return [gpu.name for gpu in inventory.gpus]


async def test_the_first_look_publishes_all_that_is_known(keeper: InventoryKeeper) -> None:
    inventory = keeper.inventory.value
    assert inventory.generation == 1
    assert inventory.driver == DriverInfo(version="580.95.05", cuda="13.0", library="13.580.95.05")
    assert [gpu.pci for gpu in inventory.gpus] == sorted(gpu.pci for gpu in inventory.gpus)
    assert names_of(inventory) == ["gpu-2", "gpu-3", "gpu-0", "gpu-1", "gpu-6", "gpu-7", "gpu-4", "gpu-5"]
    assert [gpu.numa_node for gpu in inventory.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert inventory.gpus[0].pcie_root == "pci0000:15"
    assert len(inventory.links.links) == 28
    assert (inventory.missing, inventory.problem) == ((), None)


async def test_a_look_that_finds_nothing_new_publishes_nothing(keeper: InventoryKeeper) -> None:
    before = keeper.inventory.value
    await keeper._look()
    assert keeper.inventory.value is before


async def test_a_node_without_gpus_has_an_inventory_too(tmp_path: Path) -> None:
    keeper = InventoryKeeper(
        provider=NullProvider(), sysfs=Sysfs(root=tmp_path), names=NameFile(tmp_path / "names.json")
    )
    assert keeper.inventory.value.generation == 0
    async with running(keeper.run()):
        assert await until(keeper, lambda inventory: inventory.generation == 1) == Inventory(generation=1)
    assert keeper.stalled is None


async def test_a_lost_gpu_is_missing_by_its_uuid_and_nothing_else_moves(
    keeper: InventoryKeeper, node: SimulatedNode, caplog: pytest.LogCaptureFixture
) -> None:
    before = keeper.inventory.value
    node.faults.lose(3)
    after = await rescanned(keeper, lambda inventory: bool(inventory.missing))
    assert after.generation == before.generation + 1
    assert after.gpus == before.gpus[:3] + before.gpus[4:]
    assert [(gpu.index, gpu.uuid) for gpu in after.missing] == [(3, before.gpus[3].uuid)]
    assert "fallen off the bus" in after.missing[0].reason
    assert facts_of(caplog, "gpu missing")[0]["gpu"] == "gpu-1"
    node.faults.restore(3)
    back = await rescanned(keeper, lambda inventory: not inventory.missing)
    assert back.same_content(before)


async def test_a_gpu_lost_before_the_start_is_missing_and_the_names_of_the_others_are_their_own(
    provider: NvmlProvider, root: Path, node: SimulatedNode
) -> None:
    node.faults.lose(3)
    keeper = keeper_of(provider, root)
    async with running(keeper.run()):
        inventory = await until(keeper, lambda inventory: inventory.generation == 1)
    assert names_of(inventory) == ["gpu-2", "gpu-3", "gpu-0", "gpu-6", "gpu-7", "gpu-4", "gpu-5"]
    assert [(gpu.index, gpu.uuid) for gpu in inventory.missing] == [(3, None)]


async def test_names_outlive_the_agent_whatever_the_minor_numbers_do(
    provider: NvmlProvider, root: Path, node: SimulatedNode
) -> None:
    keeper = keeper_of(provider, root)
    async with running(keeper.run()):
        first = await until(keeper, lambda inventory: inventory.generation == 1)
    node.faults.fail("nvmlDeviceGetMinorNumber", "NOT_SUPPORTED")
    node.faults.lose(0)
    again = keeper_of(provider, root)
    async with running(again.run()):
        second = await until(again, lambda inventory: inventory.generation == 1)
    assert names_of(second) == names_of(first)[1:]


async def test_a_gpu_that_is_plugged_in_later_is_found_and_one_pulled_out_is_missing(
    tmp_path: Path,
) -> None:
    node = SimulatedNode(load_profile("h200-8"))
    for gpu in range(8):
        node.faults.unplug(gpu)
    with install(node):
        node.write_tree(tmp_path, devices="placeholder")
        async with NvmlProvider(sysfs=tmp_path / "sys") as provider:
            keeper = keeper_of(provider, tmp_path)
            async with running(keeper.run()):
                assert (await until(keeper, lambda inventory: inventory.generation == 1)).gpus == ()
                node.faults.plug(5)
                found = await rescanned(keeper, lambda inventory: bool(inventory.gpus))
                assert names_of(found) == ["gpu-7"]
                node.faults.unplug(5)
                gone = await rescanned(keeper, lambda inventory: not inventory.gpus)
                assert [gpu.uuid for gpu in gone.missing] == [found.gpus[0].uuid]
                node.faults.plug(5)
                back = await rescanned(keeper, lambda inventory: bool(inventory.gpus))
                assert back.gpus == found.gpus


async def test_without_a_driver_the_problem_is_said_and_the_gpus_are_missing_until_it_is_back(
    keeper: InventoryKeeper, node: SimulatedNode, caplog: pytest.LogCaptureFixture
) -> None:
    before = keeper.inventory.value
    node.faults.driver("not-loaded")
    gone = await rescanned(keeper, lambda inventory: inventory.problem is not None)
    assert "modprobe nvidia" in (gone.problem or "")
    assert gone.gpus == ()
    assert [(gpu.index, gpu.uuid) for gpu in gone.missing] == [(gpu.index, gpu.uuid) for gpu in before.gpus]
    assert len(facts_of(caplog, "driver unavailable")) == 1
    assert facts_of(caplog, "gpu missing") == [], "one line says it for all"
    node.faults.driver("loaded")
    back = await until(keeper, lambda inventory: inventory.problem is None)
    assert back.same_content(before)


async def test_an_agent_that_starts_before_the_driver_waits_for_it(
    provider: NvmlProvider, root: Path, node: SimulatedNode
) -> None:
    node.faults.driver("not-loaded")
    keeper = keeper_of(provider, root)
    async with running(keeper.run()):
        first = await until(keeper, lambda inventory: inventory.generation == 1)
        assert first.problem is not None
        assert first.missing == ()
        node.faults.driver("loaded")
        assert len((await until(keeper, lambda inventory: bool(inventory.gpus))).gpus) == 8


async def test_a_driver_that_vanishes_between_scan_and_links_is_one_problem(
    keeper: InventoryKeeper, node: SimulatedNode
) -> None:
    node.faults.fail("nvmlDeviceGetNvLinkState", "DRIVER_NOT_LOADED", times=1)
    gone = await rescanned(keeper, lambda inventory: inventory.problem is not None)
    assert len(gone.missing) == 8
    await until(keeper, lambda inventory: len(inventory.gpus) == 8)


async def test_a_lasting_problem_is_published_once(keeper: InventoryKeeper, node: SimulatedNode) -> None:
    node.faults.driver("version-mismatch")
    gone = await rescanned(keeper, lambda inventory: inventory.problem is not None)
    keeper.rescan()
    await asyncio.sleep(0.2)
    assert keeper.inventory.value is gone


async def test_a_failing_query_costs_an_attribute_and_one_line(
    keeper: InventoryKeeper, node: SimulatedNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.faults.fail("nvmlDeviceGetMemoryInfo_v2", "UNKNOWN", gpu=4)
    after = await rescanned(keeper, lambda inventory: inventory.gpus[4].memory is None)
    await keeper._look()
    lines = facts_of(caplog, "facts left out")
    assert len(lines) == 1
    assert lines[0]["of"] == after.gpus[4].name
    assert "NVML error 999" in str(lines[0]["memory"])


async def test_what_the_platform_does_not_tell_is_left_out_and_said_once(
    provider: NvmlProvider, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = InventoryKeeper(provider=provider, sysfs=Sysfs(root=root / "nowhere"), names=NameFile(root / "names.json"))
    async with running(keeper.run()):
        inventory = await until(keeper, lambda inventory: inventory.generation == 1)
        await keeper._look()
    assert {(gpu.numa_node, gpu.pcie_root) for gpu in inventory.gpus} == {(None, None)}
    lines = facts_of(caplog, "facts left out")
    assert len(lines) == 8
    assert lines[0].keys() == {"of", "numa_node", "pcie_root"}


async def test_a_version_that_the_driver_fails_to_tell_is_left_out_and_said_once(
    keeper: InventoryKeeper, node: SimulatedNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.faults.fail("nvmlSystemGetDriverVersion", "UNKNOWN")
    after = await rescanned(keeper, lambda inventory: inventory.driver.version is None)
    await keeper._look()
    assert len(after.gpus) == 8
    (line,) = facts_of(caplog, "facts left out")
    assert line["of"] == "driver"
    assert "nvmlSystemGetDriverVersion" in str(line["version"])


async def test_names_that_cannot_be_kept_cost_no_gpu(
    provider: NvmlProvider, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "state").write_text("a file, no folder")
    names = NameFile(root / "state/names.json")
    keeper = InventoryKeeper(provider=provider, sysfs=Sysfs(root=root / "sys"), names=names)
    async with running(keeper.run()):
        assert len((await until(keeper, lambda inventory: inventory.generation == 1)).gpus) == 8
    assert "names of gpus cannot be kept and may change at restart" in caplog.messages


async def test_a_change_of_partition_mode_is_a_new_inventory(keeper: InventoryKeeper, provider: NvmlProvider) -> None:
    gpu = keeper.inventory.value.gpus[0]
    await provider.partitioning.set_mode(gpu.uuid, True)
    after = await rescanned(keeper, lambda inventory: inventory.generation == 2)
    assert after.gpus[0].partition_mode is not None
    assert after.gpus[0].partition_mode.active
    assert {link.nvlinks for ends, link in after.links.links.items() if gpu.uuid in ends} == {0}


async def test_looks_come_by_themselves(provider: NvmlProvider, root: Path, node: SimulatedNode) -> None:
    keeper = InventoryKeeper(
        provider=provider, sysfs=Sysfs(root=root / "sys"), names=NameFile(root / "names.json"), period=0.05
    )
    async with running(keeper.run()):
        await until(keeper, lambda inventory: inventory.generation == 1)
        node.faults.lose(2)
        assert len((await until(keeper, lambda inventory: bool(inventory.missing))).gpus) == 7


async def test_many_rescans_at_once_are_few_looks(
    keeper: InventoryKeeper, provider: NvmlProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory_module, "_REST_SECONDS", 0.1)
    looks = 0
    real = provider.discovery.scan

    async def counted() -> Scan:
        nonlocal looks
        looks += 1
        return await real()

    monkeypatch.setattr(provider.discovery, "scan", counted)
    began = time.monotonic()
    for _ in range(50):
        keeper.rescan()
        await asyncio.sleep(0.005)
    assert 1 <= looks <= 2 + (time.monotonic() - began) / 0.1


async def test_a_stop_that_comes_together_with_a_rescan_is_not_lost(provider: NvmlProvider, root: Path) -> None:
    keeper = keeper_of(provider, root)
    task = asyncio.create_task(keeper.run())
    await until(keeper, lambda inventory: inventory.generation > 0)
    await asyncio.sleep(0.05)
    keeper.rescan()
    # The one who waits has its answer now, and is woken at the next turn of the loop: together with the stop.
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=30)
    task.cancel()
    await asyncio.wait([task])
    assert done


async def test_a_hanging_call_shows_while_everything_else_goes_on(
    provider: NvmlProvider, root: Path, node: SimulatedNode, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = keeper_of(provider, root, stall_seconds=0.1)
    async with running(keeper.run()):
        before = await until(keeper, lambda inventory: inventory.generation == 1)
        node.faults.hang("nvmlDeviceGetBrand", seconds=120)
        for _ in range(20):
            keeper.rescan()
            await asyncio.sleep(0.02)
        stalled = keeper.stalled
        assert stalled is not None
        assert (stalled.call, stalled.seconds > 0.1) == ("nvmlDeviceGetBrand", True)
        assert keeper.inventory.value is before, "what was known stays until the driver says otherwise"
        assert provider._asking._queue.qsize() == 0, "no look waits behind the one that hangs"
        assert [facts["call"] for facts in facts_of(caplog, "driver call hangs")] == ["nvmlDeviceGetBrand"]
        node.faults.clear()
        async with asyncio.timeout(30):
            while keeper.stalled:
                await asyncio.sleep(0.01)


async def test_a_call_that_only_takes_its_time_does_not_count_as_hanging(
    keeper: InventoryKeeper, provider: NvmlProvider, node: SimulatedNode
) -> None:
    node.faults.hang("nvmlDeviceGetBrand", seconds=120, times=1)
    keeper.rescan()
    async with asyncio.timeout(30):
        while provider.discovery.busy is None:
            await asyncio.sleep(0.01)
    assert keeper.stalled is None
    node.faults.clear()


def scan_of(*uuids: str, missing: tuple[MissingGpu, ...] = ()) -> Scan:
    """GPUs in the order of their indices, each on a bus of its own, latest bus first."""
    gpus = [
        GpuFacts(uuid=GpuUuid(uuid), index=i, product="NVIDIA H200", pci=pci_address(f"0000:{0x80 - i:02x}:00.0"))
        for i, uuid in enumerate(uuids)
    ]
    return Scan(gpus=tuple(gpus), missing=missing)


def after(previous: Inventory, scan: Scan) -> Inventory:
    names = {gpu.uuid: DeviceName(f"gpu-{gpu.uuid}") for gpu in scan.gpus}
    return joined(previous, scan, LinkGraph(), names, Sysfs(root=Path("/nonexistent")))


def test_gpus_are_in_the_order_of_their_pci_addresses() -> None:
    assert [gpu.uuid for gpu in after(Inventory(), scan_of("a", "b", "c")).gpus] == ["c", "b", "a"]


def test_a_gpu_that_is_not_even_counted_any_more_is_missing() -> None:
    before = after(Inventory(), scan_of("a", "b", "c"))
    gone = after(before, scan_of("a", "c"))
    assert gone.missing == (MissingGpu(index=1, uuid=GpuUuid("b"), reason="the driver does not list it any more"),)
    assert after(gone, scan_of("a", "c")).missing == gone.missing
    assert after(gone, scan_of("a", "b", "c")).missing == ()


def test_an_unreadable_gpu_is_the_one_that_had_its_index() -> None:
    before = after(Inventory(), scan_of("a", "b"))
    lost = replace(scan_of("a"), missing=(MissingGpu(index=1, reason="lost"),))
    assert after(before, lost).missing == (MissingGpu(index=1, uuid=GpuUuid("b"), reason="lost"),)


def test_an_unreadable_gpu_that_was_never_seen_stays_without_uuid() -> None:
    lost = replace(scan_of("a"), missing=(MissingGpu(index=1, reason="lost"),))
    assert after(Inventory(), lost).missing == (MissingGpu(index=1, reason="lost"),)


def test_a_gpu_that_names_itself_is_not_taken_for_the_one_that_had_its_index() -> None:
    before = after(Inventory(), scan_of("a", "b"))
    lost = replace(scan_of("a"), missing=(MissingGpu(index=1, uuid=GpuUuid("new"), reason="lost"),))
    assert {(gpu.index, gpu.uuid) for gpu in after(before, lost).missing} == {(1, "new"), (1, "b")}


def test_a_driver_that_cannot_be_asked_leaves_all_known_gpus_missing() -> None:
    before = after(Inventory(), scan_of("a", "b", "c"))
    before = after(before, scan_of("a", "c"))
    gone = unreachable(before, DriverUnavailable("no driver"))
    assert (gone.gpus, gone.problem) == ((), "no driver")
    assert {gpu.uuid for gpu in gone.missing} == {"a", "b", "c"}
    assert {gpu.reason for gpu in gone.missing} == {"no driver"}
    assert unreachable(gone, DriverUnavailable("no driver")).same_content(gone)


@pytest.mark.parametrize(("error", "library"), [(DriverUnavailable, False), (LibraryUnusable, True)])
def test_a_library_that_does_not_fit_is_told_from_a_driver_that_is_not_there(
    error: type[DriverUnavailable], library: bool
) -> None:
    assert unreachable(Inventory(), error("no")).without_library is library


def test_only_what_is_unknown_is_said_to_be_unknown() -> None:
    gpu = after(Inventory(), scan_of("a")).gpus[0]
    assert unknown_facts(gpu).keys() == {"memory", "numa_node", "pcie_root"}
    known = replace(gpu, memory=1, numa_node=0, pcie_root="pci0000:00")
    assert unknown_facts(known) == {}


def cut_by_hand(node: SimulatedNode, *starts: int, gpu: int = 0) -> None:
    """MIG instances of the smallest profile, as another program would make them."""
    node.faults.cut(gpu, [f"1g.18gb@{start}" for start in starts])


def first_gpu(keeper: InventoryKeeper) -> GpuUuid:
    return next(gpu.uuid for gpu in keeper.inventory.value.gpus if gpu.index == 0)


async def test_every_gpu_tells_what_it_can_be_cut_to_and_none_what_lies_on_it_while_mig_is_off(
    keeper: InventoryKeeper,
) -> None:
    inventory = keeper.inventory.value
    assert inventory.profiles.keys() == inventory.by_uuid.keys()
    assert {profile.name for profile in inventory.profiles[first_gpu(keeper)]} >= {"1g.18gb", "3g.71gb", "7g.141gb"}
    assert (inventory.instances, inventory.partitions, inventory.unlisted) == ({}, {}, {})


async def test_what_somebody_else_has_cut_is_in_the_next_look(keeper: InventoryKeeper, node: SimulatedNode) -> None:
    cut_by_hand(node, 0, 3)
    after = await keeper.look()
    assert [(one.placement.start, one.index, one.parent) for one in after.partitions.values()] == [
        (0, 0, first_gpu(keeper)),
        (3, 1, first_gpu(keeper)),
    ]
    cut_by_hand(node, 0, 3, 5)
    assert len((await keeper.look()).partitions) == 3


async def test_a_gpu_in_mig_mode_on_which_nothing_lies_says_so(keeper: InventoryKeeper, node: SimulatedNode) -> None:
    cut_by_hand(node)
    assert (await keeper.look()).instances == {first_gpu(keeper): ()}


async def test_a_gpu_whose_instances_cannot_be_read_costs_no_other_its_own(
    keeper: InventoryKeeper, node: SimulatedNode, caplog: pytest.LogCaptureFixture
) -> None:
    cut_by_hand(node, 0)
    cut_by_hand(node, 2, gpu=1)
    node.faults.fail("nvmlDeviceGetMaxMigDeviceCount", "UNKNOWN", gpu=0)
    for _ in range(3):
        after = await keeper.look()
    assert after.unlisted.keys() == {first_gpu(keeper)}
    assert "nvmlDeviceGetMaxMigDeviceCount" in after.unlisted[first_gpu(keeper)]
    assert [one.placement.start for one in after.partitions.values()] == [2]
    assert len(after.gpus) == 8
    assert len(facts_of(caplog, "facts left out")) == 1


async def test_what_gpus_can_be_cut_to_is_asked_once_and_again_of_another_driver(
    keeper: InventoryKeeper, node: SimulatedNode, provider: NvmlProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[GpuUuid] = []
    real = provider.partitioning.profiles

    async def counted(gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
        asked.append(gpu)
        return await real(gpu)

    monkeypatch.setattr(provider.partitioning, "profiles", counted)
    await keeper.look()
    assert asked == []
    node.faults.driver("not-loaded")
    keeper.rescan()
    await until(keeper, lambda inventory: inventory.problem is not None)
    node.faults.driver("loaded")
    assert len((await rescanned(keeper, lambda inventory: len(inventory.gpus) == 8)).profiles) == 8
    assert sorted(asked) == sorted(keeper.inventory.value.by_uuid)


async def test_a_look_that_had_begun_before_is_not_the_one_that_was_asked_for(
    keeper: InventoryKeeper, node: SimulatedNode, provider: NvmlProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    real = provider.topology.links

    async def slow(gpus: Collection[GpuUuid]) -> LinkGraph:
        begun.set()
        await gate.wait()
        return await real(gpus)

    instances = provider.partitioning.instances
    seen: list[int] = []

    async def listed(gpu: GpuUuid) -> tuple[Instance, ...]:
        found = await instances(gpu)
        seen.append(len(found))
        return found

    monkeypatch.setattr(provider.topology, "links", slow)
    monkeypatch.setattr(provider.partitioning, "instances", listed)
    cut_by_hand(node, 0)
    keeper.rescan()
    await begun.wait()
    answer = asyncio.create_task(keeper.look())
    await asyncio.sleep(0)
    gate.set()
    await answer
    assert len(seen) == 2
