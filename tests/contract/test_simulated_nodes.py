"""What NVML's provider reads of a simulated node is what the node's profile says, and its faults show."""

import asyncio
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import fields

from node_agent.errors import DeviceLost, DriverUnavailable, NotSupported
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.hardware.provider import EventKind, Fabric, HardwareEvent
from node_agent.hardware.simulated import SimulatedNode
from node_agent.hardware.simulated.profile import MIB, Board, GpuPlace, NodeProfile
from node_agent.hardware.sysfs import Sysfs
from node_agent.health.findings import findings
from node_agent.model.gpu import ComputeCapability, GpuUuid, PartitionMode
from node_agent.model.partition import Engines, Piece, Placement
from node_agent.model.pci import pci_address


def workers(profile: NodeProfile) -> list[tuple[int, GpuPlace, Board]]:
    """Slot, place and board of each GPU that can be worked on: all but the one that drives a monitor."""
    found = [(slot, place, profile.board_of(place)) for slot, place in enumerate(profile.gpus)]
    return [(slot, place, board) for slot, place, board in found if "Display" not in board.name]


def direct(profile: NodeProfile, a: int, b: int) -> int:
    return sum(pair.links for pair in profile.nvlink.direct if set(pair.gpus) == {a, b})


def switched(profile: NodeProfile, a: int, b: int) -> int:
    """Links of the lesser end, where both are on one fabric."""
    for island in profile.nvlink.switched:
        if {a, b} <= set(island.gpus):
            ports = [profile.board_of(profile.gpus[gpu]).nvlink for gpu in (a, b)]
            return min(port.links for port in ports if port is not None)
    return 0


def cut(profile: NodeProfile, *slots: int) -> bool:
    return any(profile.gpus[slot].mig is not None for slot in slots)


async def scanned(nvml: NvmlProvider) -> Sequence[GpuUuid]:
    return [gpu.uuid for gpu in (await nvml.discovery.scan()).gpus]


def watchable(node: SimulatedNode) -> list[int]:
    """Slots of the GPUs that report events."""
    silent = "nvmlDeviceRegisterEvents"
    return [slot for slot, _, board in workers(node.profile) if silent not in board.unsupported]


async def test_every_gpu_is_found_with_what_its_board_and_place_say(node: SimulatedNode, nvml: NvmlProvider) -> None:
    gpus = (await nvml.discovery.scan()).gpus
    for gpu, (slot, place, board) in zip(gpus, workers(node.profile), strict=True):
        assert gpu.index == slot
        assert gpu.uuid == node.faults.gpu(slot).uuid
        assert gpu.product == board.name
        assert gpu.pci == place.bus
        assert gpu.minor == place.minor
        assert gpu.compute_capability == ComputeCapability(
            major=board.compute_capability[0], minor=board.compute_capability[1]
        )
        assert gpu.memory == (board.memory.total_mib * MIB if board.memory else None)


async def test_multiprocessors_are_those_of_the_board_where_the_driver_tells_cores(
    node: SimulatedNode, nvml: NvmlProvider
) -> None:
    gpus = (await nvml.discovery.scan()).gpus
    for gpu, (_, _, board) in zip(gpus, workers(node.profile), strict=True):
        assert gpu.multiprocessors in (board.sms, None)
        assert (gpu.multiprocessors is None) == ("nvmlDeviceGetNumGpuCores" in board.unsupported)


async def test_boards_that_can_be_cut_tell_their_mode(node: SimulatedNode, nvml: NvmlProvider) -> None:
    gpus = (await nvml.discovery.scan()).gpus
    for gpu, (_, place, board) in zip(gpus, workers(node.profile), strict=True):
        assert (gpu.partition_mode is not None) == (board.mig is not None)
        if gpu.partition_mode is not None:
            assert gpu.partition_mode.active == (place.mig is not None)


async def test_the_driver_is_the_profiles(node: SimulatedNode, nvml: NvmlProvider) -> None:
    driver = (await nvml.discovery.scan()).driver
    assert driver.version == node.profile.driver.version
    assert driver.cuda == node.profile.driver.cuda


async def test_nvlinks_are_those_of_the_profile(node: SimulatedNode, nvml: NvmlProvider) -> None:
    uuids = await scanned(nvml)
    graph = await nvml.topology.links(uuids)
    found = zip(uuids, workers(node.profile), strict=True)
    for (a, (slot_a, _, board)), (b, (slot_b, _, _)) in combinations(found, 2):
        link = graph.between(a, b)
        expected = direct(node.profile, slot_a, slot_b) or switched(node.profile, slot_a, slot_b)
        expected = 0 if cut(node.profile, slot_a, slot_b) else expected
        assert link.nvlinks == expected
        assert link.switched == (expected > 0 and not direct(node.profile, slot_a, slot_b))
        assert link.bandwidth == (expected * board.nvlink.speed if expected and board.nvlink else 0)


async def test_sysfs_has_each_gpu_where_nvml_says_it_is(
    node: SimulatedNode, nvml: NvmlProvider, tmp_path: Path
) -> None:
    node.write_tree(tmp_path / "root", devices="placeholder")
    sysfs = Sysfs(root=tmp_path / "root/sys")
    gpus = (await nvml.discovery.scan()).gpus
    for gpu, (_, place, _) in zip(gpus, workers(node.profile), strict=True):
        assert sysfs.numa_node(gpu.pci) == place.numa
        assert sysfs.pcie_root(gpu.pci) == f"pci{(place.bridges or (place.bus,))[0][:7]}"


async def test_an_xid_of_each_gpu_arrives_as_a_fault_of_that_gpu(node: SimulatedNode, nvml: NvmlProvider) -> None:
    await nvml.events.subscribe(await scanned(nvml))
    for slot in watchable(node):
        node.faults.xid(slot, 79)
        async with asyncio.timeout(30):
            event = await nvml.events.next()
        assert event == HardwareEvent(kind=EventKind.FAULT, gpu=GpuUuid(node.faults.gpu(slot).uuid), code=79)


async def test_a_lost_gpu_takes_no_other_with_it(node: SimulatedNode, nvml: NvmlProvider) -> None:
    before = (await nvml.discovery.scan()).gpus
    if not before:
        pytest.skip("nothing to lose")
    lost = before[-1]
    node.faults.lose(lost.uuid)
    after = await nvml.discovery.scan()
    assert after.gpus == before[:-1]
    assert [gpu.index for gpu in after.missing] == [lost.index]
    with pytest.raises(DeviceLost):
        await nvml.readings.read(lost.uuid)
    for gpu in after.gpus:
        assert (await nvml.readings.read(gpu.uuid)).failed == {}
    node.faults.restore(lost.uuid)
    assert [gpu.uuid for gpu in (await nvml.discovery.scan()).gpus] == [gpu.uuid for gpu in before]


async def test_a_gpu_lost_while_watched_is_told_by_its_uuid(node: SimulatedNode, nvml: NvmlProvider) -> None:
    await nvml.events.subscribe(await scanned(nvml))
    slots = watchable(node)
    if not slots:
        pytest.skip("nothing to watch")
    node.faults.lose(slots[0])
    async with asyncio.timeout(30):
        event = await nvml.events.next()
    assert event == HardwareEvent(kind=EventKind.LOST, gpu=GpuUuid(node.faults.gpu(slots[0]).uuid))


async def test_a_healthy_board_has_nothing_wrong_with_it(node: SimulatedNode, nvml: NvmlProvider) -> None:
    for gpu, (_, _, board) in zip(await scanned(nvml), workers(node.profile), strict=True):
        readings = await nvml.readings.read(gpu)
        assert findings(readings) == ()
        assert (readings.page_retirement_pending is not None) == board.page_retirement
        assert (readings.pcie is not None) == (board.pcie is not None)
        assert (readings.links is not None) == (board.nvlink is not None)
        assert (readings.fabric == Fabric(joined=True)) == board.fabric


async def test_each_link_that_goes_down_is_seen_at_both_its_ends(node: SimulatedNode, nvml: NvmlProvider) -> None:
    uuids = dict(zip([slot for slot, _, _ in workers(node.profile)], await scanned(nvml), strict=True))
    for slot, gpu in uuids.items():
        plugged = [n for n, link in enumerate(node.faults.gpu(slot).links) if link.active]
        if not plugged or cut(node.profile, slot):
            continue
        node.faults.link(slot, plugged[-1], up=False)
        node.faults.xid(slot, 74)
        far = node.faults.gpu(slot).links[plugged[-1]].peer
        readings = await nvml.readings.read(gpu)
        assert readings.links is not None
        assert readings.links.up == len(plugged) - 1
        assert readings.links.down[plugged[-1]] == ({uuids[far]} if far is not None else set(uuids.values()) - {gpu})
        node.faults.link(slot, plugged[-1], up=True)


async def test_a_slot_that_gives_less_lanes_shows_on_every_board(node: SimulatedNode, nvml: NvmlProvider) -> None:
    for gpu, (slot, _, board) in zip(await scanned(nvml), workers(node.profile), strict=True):
        if board.pcie is None:
            continue
        node.faults.pcie(slot, width=1)
        readings = await nvml.readings.read(gpu)
        assert readings.pcie is not None
        assert (readings.pcie.width, readings.pcie.max_width) == (1, board.pcie.width)


async def test_an_xid_of_one_partition_names_it(node: SimulatedNode, nvml: NvmlProvider) -> None:
    uuids = await scanned(nvml)
    await nvml.events.subscribe(uuids)
    for gpu, (slot, _, _) in zip(uuids, workers(node.profile), strict=True):
        for one in await nvml.partitioning.instances(gpu):
            node.faults.xid(slot, 94, instance=one.id, compute_instance=0)
            async with asyncio.timeout(30):
                event = await nvml.events.next()
            assert (event.gpu, event.code) == (gpu, 94)
            assert (event.instance, event.compute_instance) == (one.id, 0)


async def test_a_driver_that_goes_and_comes_back_is_found_again(node: SimulatedNode, nvml: NvmlProvider) -> None:
    before = await scanned(nvml)
    node.faults.driver("not-loaded")
    with pytest.raises(DriverUnavailable):
        await nvml.discovery.scan()
    node.faults.driver("loaded")
    assert await scanned(nvml) == before


async def test_partitions_of_the_profile_are_live(node: SimulatedNode, nvml: NvmlProvider) -> None:
    uuids = await scanned(nvml)
    for gpu, (_, place, board) in zip(uuids, workers(node.profile), strict=True):
        sizes = {profile.name: profile.size for profile in board.mig.profiles} if board.mig else {}
        wanted = [tuple(text.split("@")) for text in place.mig or ()]
        expected = {(name, Placement(start=int(start), length=sizes[name])) for name, start in wanted}
        lying = await nvml.partitioning.instances(gpu)
        assert {(instance.profile, instance.placement) for instance in lying} == expected
        assert all(instance.piece.computes is None for instance in lying)


async def test_profiles_are_those_of_the_board(node: SimulatedNode, nvml: NvmlProvider) -> None:
    uuids = await scanned(nvml)
    for gpu, (_, _, board) in zip(uuids, workers(node.profile), strict=True):
        if board.mig is None or not board.mig.profiles:
            with pytest.raises(NotSupported):
                await nvml.partitioning.profiles(gpu)
            continue
        found = {profile.id: profile for profile in await nvml.partitioning.profiles(gpu)}
        assert found.keys() == {profile.id for profile in board.mig.profiles}
        for said in board.mig.profiles:
            read = found[said.id]
            assert read.placements == tuple(Placement(start=start, length=said.size) for start in said.starts)
            assert (read.slices, read.limit, read.multiprocessors) == (said.slices, said.count, said.sms)
            assert read.memory == said.mib * MIB
            assert (read.copy_engines, read.decoders, read.jpeg_engines) == (said.ce, said.dec, said.jpeg)
            assert read.optical_flow_engines == said.ofa


async def cuttable(node: SimulatedNode, nvml: NvmlProvider) -> GpuUuid:
    """A GPU of the node with MIG on and nothing on it."""
    boards = zip(await scanned(nvml), workers(node.profile), strict=True)
    gpus = [gpu for gpu, (_, _, board) in boards if board.mig and board.mig.profiles]
    if not gpus:
        pytest.skip("no board can be cut")
    for lying in await nvml.partitioning.instances(gpus[0]):
        await nvml.partitioning.destroy(gpus[0], lying.piece)
    if await nvml.partitioning.set_mode(gpus[0], True) is PartitionMode.ENABLE_PENDING:
        node.faults.restore(gpus[0])
    return gpus[0]


async def test_every_profile_can_be_made_everywhere_and_removed_again(node: SimulatedNode, nvml: NvmlProvider) -> None:
    gpu, parts = await cuttable(node, nvml), nvml.partitioning
    for profile in await parts.profiles(gpu):
        for placement in profile.placements:
            piece = Piece(profile=profile.name, placement=placement)
            made = await parts.create(gpu, piece)
            assert (made.piece, made.gpu) == (piece, gpu)
            (partition,) = made.partitions
            assert (partition.profile, partition.placement, partition.parent) == (profile.name, placement, gpu)
            assert (partition.slices, partition.compute_slices) == (profile.slices, profile.slices)
            assert (partition.memory, partition.multiprocessors) == (profile.memory, profile.multiprocessors)
            for engine in fields(Engines):
                assert getattr(partition, engine.name) == getattr(profile, engine.name)
            assert await parts.instances(gpu) == (made,)
            await parts.destroy(gpu, piece)
            assert await parts.instances(gpu) == ()
    assert await parts.set_mode(gpu, False) in (PartitionMode.DISABLED, PartitionMode.DISABLE_PENDING)


async def test_an_instance_can_be_divided_into_single_compute_slices(node: SimulatedNode, nvml: NvmlProvider) -> None:
    gpu, parts = await cuttable(node, nvml), nvml.partitioning
    for profile in await parts.profiles(gpu):
        if profile.slices == 1:
            continue
        piece = Piece(profile=profile.name, placement=profile.placements[0], computes=(1,) * profile.slices)
        made = await parts.create(gpu, piece)
        assert made.piece == piece
        assert {partition.profile for partition in made.partitions} == {f"1c.{profile.name}"}
        assert [partition.compute_start for partition in made.partitions] == list(range(profile.slices))
        assert len({partition.uuid for partition in made.partitions}) == profile.slices
        await parts.destroy(gpu, piece)
        assert await parts.instances(gpu) == ()


def test_addresses_are_spelled_as_sysfs_spells_them(node: SimulatedNode) -> None:
    for _, place, _ in workers(node.profile):
        assert pci_address(f"0000{place.bus}".upper()) == place.bus
