"""What holds for every provider on every node, whatever GPUs it has."""

import asyncio
from itertools import combinations

import pytest

from node_agent.errors import DeviceLost, HardwareError, NotSupported
from node_agent.hardware.provider import Provider, Scan
from node_agent.model.gpu import GpuUuid
from node_agent.model.links import NO_LINK
from node_agent.model.partition import Instance, PartitionProfile, Piece, Placement

STRANGER = GpuUuid("GPU-00000000-dead-beef-0000-000000000000")
PIECE = Piece(profile="1g.5gb", placement=Placement(start=9, length=1))


async def profiles_of(provider: Provider, gpu: GpuUuid) -> tuple[PartitionProfile, ...]:
    try:
        return await provider.partitioning.profiles(gpu)
    except NotSupported:
        return ()


async def test_two_looks_at_an_unchanged_node_are_equal(provider: Provider, scan: Scan) -> None:
    assert await provider.discovery.scan() == scan


async def test_each_gpu_is_one_gpu(scan: Scan) -> None:
    for fact in ("uuid", "index", "pci"):
        assert len({getattr(gpu, fact) for gpu in scan.gpus}) == len(scan.gpus)
    minors = [gpu.minor for gpu in scan.gpus if gpu.minor is not None]
    assert len(set(minors)) == len(minors)


async def test_what_is_unknown_is_absent_and_never_zero_or_empty(scan: Scan) -> None:
    for gpu in scan.gpus:
        assert gpu.product
        assert gpu.failed == {}
        for fact in ("brand", "architecture", "memory", "multiprocessors"):
            assert getattr(gpu, fact) is None or getattr(gpu, fact)


async def test_a_provider_at_rest_is_in_no_call(provider: Provider, scan: Scan) -> None:
    assert provider.discovery.busy is None


async def test_links_join_the_gpus_asked_for_and_no_others(provider: Provider, uuids: list[GpuUuid]) -> None:
    for asked in (uuids, uuids[:2], uuids[:1], []):
        graph = await provider.topology.links(asked)
        assert graph.links.keys() <= {frozenset(pair) for pair in combinations(asked, 2)}
        assert NO_LINK not in graph.links.values()


async def test_links_have_bandwidth_exactly_where_there_are_nvlinks(provider: Provider, uuids: list[GpuUuid]) -> None:
    for link in (await provider.topology.links(uuids)).links.values():
        assert bool(link.nvlinks) == bool(link.bandwidth)
        assert link.nvlinks or not link.switched
        assert link.path is not None


async def test_a_gpu_that_is_not_here_has_no_links(provider: Provider, uuids: list[GpuUuid]) -> None:
    graph = await provider.topology.links([STRANGER, *uuids])
    assert all(STRANGER not in ends for ends in graph.links)


async def test_every_gpu_that_a_scan_lists_can_be_read(provider: Provider, uuids: list[GpuUuid]) -> None:
    for gpu in uuids:
        readings = await provider.readings.read(gpu)
        assert readings.failed == {}
        assert readings.utilization is None or 0 <= readings.utilization <= 1
        assert readings.temperature is None or 0 < readings.temperature < 120
        assert readings.power is None or 0 < readings.power < 2000
        assert readings.memory_used is None or readings.memory_used >= 0


async def test_figures_come_where_they_are_asked_for_and_are_within_reason(
    provider: Provider, uuids: list[GpuUuid]
) -> None:
    for gpu in uuids:
        assert (await provider.readings.read(gpu)).figures is None
        figures = (await provider.readings.read(gpu, figures=True)).figures
        assert figures is not None
        assert figures.failed == {}
        for memory in (figures.memory, *figures.partitions.values()):
            assert memory is None or memory.used + memory.free + (memory.reserved or 0) == memory.total
        for share in (figures.memory_utilization, figures.encoder_utilization, figures.decoder_utilization):
            assert share is None or 0 <= share <= 1
        for instance in await provider.partitioning.instances(gpu):
            assert {one.uuid for one in instance.partitions} <= figures.partitions.keys()


async def test_a_gpu_that_is_not_here_is_lost(provider: Provider, scan: Scan) -> None:
    with pytest.raises(DeviceLost):
        await provider.readings.read(STRANGER)


async def test_gpus_without_events_are_neutral(provider: Provider, uuids: list[GpuUuid]) -> None:
    unwatched = await provider.events.subscribe(uuids)
    assert unwatched.keys() <= set(uuids)
    assert all(isinstance(error, NotSupported) for error in unwatched.values())
    await provider.events.close()


async def test_a_gpu_that_is_not_here_is_unwatched(provider: Provider, uuids: list[GpuUuid]) -> None:
    unwatched = await provider.events.subscribe([STRANGER, *uuids])
    assert isinstance(unwatched[STRANGER], HardwareError)
    assert set(unwatched) - {STRANGER} <= set(uuids)
    await provider.events.close()


async def test_a_wait_for_events_lasts_until_it_is_cancelled(provider: Provider, uuids: list[GpuUuid]) -> None:
    await provider.events.subscribe(uuids)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(provider.events.next(), 0.05)
    await provider.events.close()


async def test_closing_twice_is_fine(provider: Provider, uuids: list[GpuUuid]) -> None:
    await provider.events.subscribe(uuids)
    await provider.events.close()
    await provider.events.close()


async def test_profiles_are_told_apart_by_name_and_by_id(provider: Provider, uuids: list[GpuUuid]) -> None:
    for gpu in uuids:
        found = await profiles_of(provider, gpu)
        assert len({profile.name for profile in found}) == len(found)
        assert len({profile.id for profile in found}) == len(found)


async def test_every_profile_fits_somewhere_on_an_empty_gpu(provider: Provider, scan: Scan) -> None:
    for gpu in scan.gpus:
        for profile in await profiles_of(provider, gpu.uuid):
            assert profile.placements
            assert 1 <= profile.limit <= len(profile.placements)
            assert profile.slices >= 1
            assert profile.multiprocessors >= 1
            assert gpu.memory is None or 0 < profile.memory <= gpu.memory


async def test_only_gpus_with_a_partition_mode_offer_profiles(provider: Provider, scan: Scan) -> None:
    for gpu in scan.gpus:
        if await profiles_of(provider, gpu.uuid):
            assert gpu.partition_mode is not None


async def test_what_lies_on_a_gpu_does_not_overlap_and_says_what_it_is(provider: Provider, scan: Scan) -> None:
    for gpu in scan.gpus:
        lying = await provider.partitioning.instances(gpu.uuid)
        assert not any(a.placement.overlaps(b.placement) for a, b in combinations(lying, 2))
        assert list(lying) == sorted(lying, key=lambda instance: instance.placement)
        assert not lying or (gpu.partition_mode is not None and gpu.partition_mode.active)
        offered = {profile.name: profile for profile in await profiles_of(provider, gpu.uuid)}
        for instance in lying:
            assert instance.placement in offered[instance.profile].placements
            assert sum(partition.compute_slices for partition in instance.partitions) <= instance.slices
            for partition in instance.partitions:
                assert (partition.parent, partition.instance) == (instance.gpu, instance.id) == (gpu.uuid, instance.id)


async def test_a_gpu_that_is_not_here_cannot_be_cut(provider: Provider, scan: Scan) -> None:
    with pytest.raises(HardwareError):
        await provider.partitioning.profiles(STRANGER)
    with pytest.raises(HardwareError):
        await provider.partitioning.set_mode(STRANGER, True)
    with pytest.raises(HardwareError):
        await provider.partitioning.create(STRANGER, PIECE)
    with pytest.raises(HardwareError):
        await provider.partitioning.destroy(STRANGER, PIECE)


async def test_what_is_not_there_cannot_be_destroyed(provider: Provider, uuids: list[GpuUuid]) -> None:
    for gpu in uuids:
        with pytest.raises(HardwareError, match=r"has no 1g\.5gb at 9"):
            await provider.partitioning.destroy(gpu, PIECE)


async def test_what_lies_on_a_gpu_is_a_value(provider: Provider, uuids: list[GpuUuid]) -> None:
    for gpu in uuids:
        lying: tuple[Instance, ...] = await provider.partitioning.instances(gpu)
        assert await provider.partitioning.instances(gpu) == lying
