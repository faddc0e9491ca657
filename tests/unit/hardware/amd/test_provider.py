"""AMD's provider: what it serves follows the files, and what it does not serve is said not to be supported."""

from pathlib import Path

import pytest

from node_agent.errors import DeviceLost, NotSupported
from node_agent.hardware.amd.provider import AmdProvider
from node_agent.hardware.simulated.amd import SimulatedAmdNode


async def test_what_it_reads_follows_the_gpus(provider: AmdProvider, node: SimulatedAmdNode) -> None:
    first = node.uuids[0]
    assert len((await provider.discovery.scan()).gpus) == 8
    assert (await provider.readings.read(first)).power == 140.0
    node.lose(first)
    with pytest.raises(DeviceLost):
        await provider.readings.read(first)
    assert len((await provider.discovery.scan()).gpus) == 7
    node.restore(first)
    await provider.discovery.scan()
    assert (await provider.readings.read(first)).power == 140.0


async def test_partitions_events_and_modes_are_not_supported_and_the_message_says_whose_gpu_it_is(
    provider: AmdProvider, node: SimulatedAmdNode
) -> None:
    first = node.uuids[0]
    await provider.discovery.scan()
    with pytest.raises(NotSupported, match=f"AMD's GPUs .*{first} cannot do that"):
        await provider.partitioning.profiles(first)
    for device in node.uuids:
        with pytest.raises(NotSupported):
            await provider.modes.compute_mode(device)
    assert isinstance((await provider.events.subscribe([first]))[first], NotSupported)


async def test_links_that_cannot_be_read_are_none_and_said_once(
    provider: AmdProvider, node: SimulatedAmdNode, sysfs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scan = await provider.discovery.scan()
    broken = sysfs / "class/kfd/kfd/topology/nodes/2/io_links/1/properties"
    broken.unlink()
    broken.mkdir()
    for _ in range(2):
        assert not (await provider.topology.links([gpu.uuid for gpu in scan.gpus])).links
    assert caplog.text.count("links cannot be read") == 1
