"""The overview: what it says of GPUs, MIG devices, holders and links, each from the value that is kept anyway."""

import msgspec
from msgspec.structs import replace

from node_agent.allocation.grants import Door, Hold, Holder
from node_agent.hardware.figures import Figures, Memory
from node_agent.hardware.provider import GpuReadings
from node_agent.health.looks import Look
from node_agent.kubelet.podresources import PodDevice
from node_agent.model.gpu import PartitionMode
from node_agent.model.health import DeviceHealth, HealthReport
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.partition import Instance, Part, Partition, PartitionUuid, Placement
from node_agent.reporting.health import MissingStatus
from node_agent.reporting.holders import Holding
from node_agent.reporting.overview import Overview, overview
from tests.fakes import builders
from tests.fakes.builders import uuid
from tests.fakes.health import xid

MIG = PartitionUuid("MIG-1")
PLACE = Placement(start=0, length=4)


def shown(inventory: Inventory, **given: object) -> Overview:
    facts = {"node": "n0", "health": HealthReport(), "looks": {}, "holdings": (), **given}
    return overview(inventory=inventory, **facts)  # type: ignore[arg-type]


def cut_gpu() -> Inventory:
    """A GPU with one MIG device that takes half of it."""
    gpu = replace(builders.gpu(0), partition_mode=PartitionMode.ENABLED)
    device = Partition(
        uuid=MIG,
        parent=gpu.uuid,
        profile="3g.71gb",
        placement=PLACE,
        instance=1,
        compute_instance=0,
        slices=3,
        compute_slices=3,
        memory=76 << 30,
    )
    lying = Instance(gpu=gpu.uuid, id=1, profile="3g.71gb", placement=PLACE, slices=3, partitions=(device,))
    return replace(builders.inventory([gpu]), instances={gpu.uuid: (lying,)})


def test_a_gpu_is_shown_with_its_last_look_and_its_health() -> None:
    node = builders.inventory([replace(builders.gpu(0), memory=144 << 30, power_limit=700), builders.gpu(1)])
    readings = GpuReadings(memory_used=3 << 30, utilization=0.5, temperature=61, power=512.0)
    health = HealthReport(devices={uuid(1): DeviceHealth(causes=(xid(),))})
    sound, sick = shown(node, health=health, looks={uuid(0): Look(at=12.5, readings=readings)}).gpus
    assert (sound.at, sound.memory, sound.memory_used) == (12.5, 144 << 30, 3 << 30)
    assert (sound.utilization, sound.temperature, sound.power, sound.power_limit) == (0.5, 61, 512.0, 700)
    assert (sound.health, sick.health, [cause.code for cause in sick.causes]) == ("healthy", "withdrawn", [79])
    assert (sick.at, sick.temperature, sick.utilization) == (None, None, None)


def test_gpus_that_nvlink_joins_are_on_one_island_and_others_on_none() -> None:
    assert [gpu.island for gpu in shown(builders.bridged_node()).gpus] == [1, 1, 2, 2]
    assert {gpu.island for gpu in shown(builders.h200_node()).gpus} == {1}
    assert {gpu.island for gpu in shown(builders.l4_pair()).gpus} == {0}


def test_every_pair_has_its_link_in_one_word() -> None:
    links = {one.gpus: one for one in shown(builders.bridged_node()).links}
    assert len(links) == 6
    assert links["gpu-0", "gpu-1"].word == "NV12"
    assert links["gpu-0", "gpu-1"].bandwidth == 12 * 25_000
    assert (links["gpu-0", "gpu-2"].word, links["gpu-0", "gpu-2"].nvlinks) == ("SYS", 0)


def test_a_mig_device_is_shown_where_it_lies_and_with_its_own_memory() -> None:
    node = cut_gpu()
    (gpu,) = shown(node).gpus
    (device,) = gpu.partitions
    assert (device.profile, device.start, device.length, device.memory) == ("3g.71gb", 0, 4, 76 << 30)
    assert device.memory_used is None
    figures = Figures(partitions={MIG: Memory(total=76 << 30, used=5 << 30, free=71 << 30)})
    (gpu,) = shown(node, looks={uuid(0): Look(at=1.0, readings=GpuReadings(figures=figures))}).gpus
    assert gpu.partitions[0].memory_used == 5 << 30


def test_who_holds_a_device_is_shown_by_pod_and_by_name_of_the_gpu() -> None:
    pod = PodDevice(of="nvidia.com/gpu", device=uuid(0), namespace="ml", pod="trainer", container="main")
    holder = Holder(door=Door.LIMIT, id=f"nvidia.com/gpu/{uuid(0)}", name="nvidia.com/gpu")
    held = Holding(holder=holder, hold=Hold(device=uuid(0), gpus=(uuid(0),)), pods=(pod,))
    gone = Holding(holder=holder, hold=Hold(device="x", gpus=(uuid(7),), share_id="s1"))
    first, second = shown(builders.l4_pair(), holdings=(held, gone)).holdings
    assert (first.door, first.holder, first.gpus) == ("limit", "nvidia.com/gpu", ("gpu-0",))
    assert [(one.namespace, one.pod, one.container) for one in first.pods] == [("ml", "trainer", "main")]
    assert (second.gpus, second.share, second.pods) == ((uuid(7),), "s1", ())


def test_a_part_of_a_gpu_says_which() -> None:
    holder = Holder(door=Door.CLAIM, id="u1", name="ml/half")
    hold = Hold(device="gpu-0-mig", gpus=(uuid(0),), part=Part(profile="3g.71gb", placement=PLACE))
    (found,) = shown(cut_gpu(), holdings=(Holding(holder=holder, hold=hold),)).holdings
    assert found.part == "3g.71gb at 0"


def test_gpus_that_cannot_be_read_are_told_of() -> None:
    lost = MissingGpu(index=3, reason="lost")
    assert shown(Inventory(generation=2, missing=(lost,))).missing == (MissingStatus(index=3, reason="lost"),)
    assert shown(Inventory(generation=2, problem="not loaded")).problem == "not loaded"


def test_it_survives_the_way_through_json() -> None:
    found = shown(cut_gpu(), looks={uuid(0): Look(at=1.0, readings=GpuReadings(temperature=30))})
    assert msgspec.json.decode(msgspec.json.encode(found), type=Overview) == found
