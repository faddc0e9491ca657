"""The spec on disk follows the node: driver upgrades, missing nodes, GPUs that come and go, wiped folders."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.cdi import publisher
from node_agent.cdi.host import NvidiaHost
from node_agent.cdi.names import file_name
from node_agent.cdi.publisher import Published, SpecPublisher
from node_agent.cdi.roots import DriverRoots
from node_agent.cdi.writer import SpecWriter
from node_agent.errors import CdiError
from node_agent.hardware.simulated import SimulatedNode, load_profile
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.inventory import DriverInfo, Inventory
from node_agent.model.partition import Partition
from tests.fakes.builders import cut, partition
from tests.fakes.names import KIND
from tests.unit.deviceplugin.conftest import node

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes can be made by root only")


class Place:
    """A simulated node's files, the CDI folder beside them, and the publisher between the two."""

    def __init__(self, root: Path, lane: Lane) -> None:
        self.tree, self.folder = root / "tree", root / "cdi"
        self.simulated = SimulatedNode(load_profile("h200-8"))
        self.simulated.write_tree(self.tree)
        self.version = self.simulated.profile.driver.version
        self.inventory: Latest[Inventory] = Latest(Inventory())
        self.publisher = SpecPublisher(
            inventory=self.inventory,
            host=NvidiaHost(
                roots=DriverRoots(driver=self.tree, dev=self.tree, sysfs=self.tree / "sys", proc=self.tree / "proc"),
                find_hook=lambda: None,
            ),
            writer=SpecWriter(self.folder),
            lane=lane,
        )

    @property
    def spec(self) -> Path:
        return self.folder / file_name(KIND)

    def has(self, gpus: int, generation: int = 1, version: str | None = None) -> None:
        found = node(gpus, generation=generation)
        self.inventory.set(replace(found, driver=DriverInfo(version=version or self.version)))

    async def until(self, condition: Callable[[Published], bool]) -> Published:
        async with asyncio.timeout(30):
            async for published in self.publisher.published.watch():
                if condition(published):
                    break
        return self.publisher.published.value

    def device_names(self) -> set[str]:
        return {device["name"] for device in json.loads(self.spec.read_text())["devices"]}


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(publisher, "SOON_SECONDS", 0.05)
    monkeypatch.setattr(publisher, "SELDOM_SECONDS", 0.1)
    with Lane("cdi") as lane:
        place = Place(tmp_path, lane)
        async with running(place.publisher.run()):
            yield place


async def test_gpus_are_reachable_once_the_spec_on_disk_names_them(place: Place) -> None:
    place.has(8)
    published = await place.until(lambda published: len(published.gpus) == 8)

    assert published.trouble is None
    assert {"GPU-0", "0", "gpu-0", "all"} < place.device_names()


async def test_nothing_is_written_before_the_first_look_at_the_gpus(place: Place) -> None:
    await asyncio.sleep(0.2)
    assert not place.spec.exists()
    assert place.publisher.published.value == Published()


async def test_a_missing_uvm_node_holds_everything_back_until_it_is_there(place: Place) -> None:
    uvm = place.tree / "dev" / "nvidia-uvm"
    number = uvm.stat().st_rdev
    uvm.unlink()
    place.has(8)
    published = await place.until(lambda published: published.trouble is not None)
    assert not published.gpus
    assert published.trouble is not None and "nvidia-modprobe -u" in published.trouble
    assert not place.spec.exists()

    os.mknod(uvm, 0o020666, os.makedev(os.major(number) + 1, 0))
    await place.until(lambda published: len(published.gpus) == 8)
    nodes = json.loads(place.spec.read_text())["containerEdits"]["deviceNodes"]
    assert [one["major"] for one in nodes if one["path"] == "/dev/nvidia-uvm"] == [os.major(number) + 1]


async def test_one_missing_node_costs_that_gpu_only(place: Place) -> None:
    (place.tree / "dev" / "nvidia3").unlink()
    place.has(8)
    published = await place.until(lambda published: published.trouble is not None)

    assert {f"GPU-{number}" for number in range(8)} - published.gpus == {"GPU-3"}
    assert "gpu-3" in str(published.trouble)
    assert "GPU-3" not in place.device_names()


async def test_a_driver_upgrade_on_disk_keeps_the_good_spec_until_the_new_one_is_whole(place: Place) -> None:
    place.has(8)
    await place.until(lambda published: len(published.gpus) == 8)
    before = place.spec.read_bytes()

    place.has(8, generation=2, version="999.1.2")
    published = await place.until(lambda published: published.trouble is not None)
    assert not published.gpus
    assert "999.1.2" in str(published.trouble)
    assert place.spec.read_bytes() == before

    libraries = place.tree / "usr" / "lib" / "x86_64-linux-gnu"
    for old in libraries.glob(f"*.so.{place.version}"):
        old.rename(old.with_name(old.name.replace(place.version, "999.1.2")))
    await place.until(lambda published: len(published.gpus) == 8)
    mounts = json.loads(place.spec.read_text())["containerEdits"]["mounts"]
    paths = [mount["hostPath"] for mount in mounts]
    assert any(path.endswith("libcuda.so.999.1.2") for path in paths)
    assert all(os.path.exists(path) for path in paths)


async def test_a_driver_that_does_not_answer_leaves_the_spec_alone(place: Place) -> None:
    place.has(8)
    await place.until(lambda published: len(published.gpus) == 8)
    before = place.spec.read_bytes()
    place.inventory.set(Inventory(generation=2, problem="driver not loaded"))
    await place.until(lambda published: not published.gpus)

    assert place.spec.read_bytes() == before


async def test_the_last_gpu_takes_the_spec_with_it(place: Place) -> None:
    place.has(2)
    await place.until(lambda published: len(published.gpus) == 2)
    place.has(0, generation=2)
    await place.until(lambda published: not published.gpus)

    assert not place.spec.exists()


async def test_a_wiped_folder_is_filled_again(place: Place) -> None:
    place.has(2)
    await place.until(lambda published: len(published.gpus) == 2)
    place.spec.unlink()
    async with asyncio.timeout(30):
        while not place.spec.exists():
            await asyncio.sleep(0.02)
    assert "GPU-1" in place.device_names()


async def test_a_folder_that_cannot_be_written_is_said_and_offers_nothing(place: Place) -> None:
    place.folder.write_text("a file where the folder should be")
    place.has(2)
    published = await place.until(lambda published: published.trouble is not None)

    assert not published.gpus
    assert str(place.folder) in str(published.trouble)


def made(place: Place, start: int) -> Partition:
    """An instance on the first GPU, and its files as the kernel shows them."""
    (mig,) = (gpu.mig for gpu in map(place.simulated.faults.gpu, range(8)) if gpu.place.minor == 0)
    assert mig is not None
    mig.enabled = mig.pending = True
    (small,) = (profile for profile in mig.table.profiles if profile.name == "1g.18gb")
    instance = mig.create(small.id, start)
    mig.create_compute(instance, instance.compute_profiles()[0].id)
    place.simulated.write_tree(place.tree)
    return partition(place.inventory.value.gpus[0], "1g.18gb", start, number=instance.id)


async def test_a_partition_is_reachable_once_the_spec_names_it(place: Place) -> None:
    place.has(8)
    await place.until(lambda published: len(published.gpus) == 8)
    one = made(place, 0)
    place.inventory.set(cut(replace(place.inventory.value, generation=2), {0: [one]}))
    await place.until(lambda published: published.partitions == {one.uuid})
    assert {one.uuid, f"0:{one.index}"} < place.device_names()


async def test_a_partition_that_was_just_made_can_be_given_before_the_spec_names_it(place: Place) -> None:
    place.has(8)
    with pytest.raises(CdiError, match="cannot be given to containers now"):
        await place.publisher.edits_of(made(place, 0))
    await place.until(lambda published: len(published.gpus) == 8)
    edits = await place.publisher.edits_of(made(place, 1))
    assert [node.path.rpartition("/")[0] for node in edits.device_nodes] == ["/dev", *["/dev/nvidia-caps"] * 2]


async def test_a_partition_whose_files_come_late_is_looked_for_again(place: Place) -> None:
    place.has(8)
    late = partition(place.inventory.value.gpus[0], "1g.18gb", 0, number=7)
    place.inventory.set(cut(replace(place.inventory.value, generation=2), {0: [late]}))
    published = await place.until(lambda published: published.trouble is not None)
    assert len(published.gpus) == 8
    assert "gi7/access" in str(published.trouble)
    made(place, 0)
    await place.until(lambda published: published.partitions == {late.uuid})
