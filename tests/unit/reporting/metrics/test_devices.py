"""Of what there are series, and with which labels."""

import pytest
from msgspec.structs import replace

from node_agent.model.gpu import GpuUuid
from node_agent.model.pci import pci_address
from node_agent.reporting.metrics.devices import STALE_SECONDS, Device, devices, labelled
from tests.fakes.builders import gpu, inventory
from tests.unit.reporting.metrics.conftest import GIB, NAMING, NOW, A, B, holding, look, looks, node


def labels_of(found: tuple[Device, ...], *, per_share: bool = False) -> list[str]:
    return [one.labels for one in labelled(found, NAMING, per_share=per_share)]


def test_a_whole_gpu_is_a_device_with_the_labels_of_dcgm_exporter() -> None:
    found = devices(node(whole=True), looks(), [], NOW)
    assert labels_of(found)[0] == (
        f'gpu="0",UUID="{A}",pci_bus_id="00000000:10:00.0",device="nvidia0",modelName="NVIDIA H200",'
        'Hostname="node-a",DCGM_FI_DRIVER_VERSION="580.95.05"'
    )


def test_instances_take_the_place_of_the_gpu_that_is_cut_to_them() -> None:
    whole, *cut = devices(node(), looks(), [], NOW)
    assert (whole.gpu.uuid, whole.instance) == (A, None)
    assert [one.gpu.uuid for one in cut] == [B, B]
    assert f'UUID="{B}"' in labels_of((cut[1],))[0]
    assert 'GPU_I_PROFILE="1g.18gb",GPU_I_ID="8"' in labels_of((cut[1],))[0]
    assert [one.memory.used if one.memory else None for one in cut] == [GIB, 0]


def test_a_gpu_in_mig_mode_that_is_not_cut_yet_is_still_told_of() -> None:
    empty = replace(node(), instances={B: ()})
    assert [one.gpu.uuid for one in devices(empty, looks(), [], NOW)] == [A, B]


def test_a_device_that_one_container_has_is_labelled_with_it() -> None:
    found = devices(node(), looks(), [holding(A, "train"), holding(B, "infer", at=1)], NOW)
    first, second, third = labels_of(found)
    assert first.endswith(',container="main",namespace="team",pod="train"')
    assert "pod=" not in second
    assert third.endswith(',pod="infer"')


def test_a_device_that_several_have_is_told_of_once_and_without_them() -> None:
    shares = [holding(A, "one", share="0"), holding(A, "two", share="1")]
    (labels,) = labels_of(devices(node(whole=True), looks(), shares, NOW)[:1])
    assert "pod=" not in labels


def test_where_that_is_wanted_it_is_told_of_for_each_of_them() -> None:
    shares = [holding(A, "one", share="0"), holding(A, "two", share="1")]
    first, second = labels_of(devices(node(whole=True), looks(), shares, NOW)[:1], per_share=True)
    assert first.endswith(',vgpu="0",container="main",namespace="team",pod="one"')
    assert second.endswith(',vgpu="1",container="main",namespace="team",pod="two"')


def test_a_claim_that_several_pods_share_is_told_apart_by_number() -> None:
    found = devices(node(whole=True), looks(), [holding(A, "one", "two")], NOW)[:1]
    first, second = labels_of(found, per_share=True)
    assert ('vgpu="0"' in first, 'vgpu="1"' in second) == (True, True)


def test_who_only_looks_at_a_device_does_not_hold_it() -> None:
    assert not devices(node(), looks(), [holding(A, "monitor", admin=True)], NOW)[0].holders


def test_a_grant_of_which_the_kubelet_tells_no_pod_labels_nothing() -> None:
    assert "pod=" not in labels_of(devices(node(), looks(), [holding(A)], NOW))[0]


def test_the_holder_of_a_whole_group_holds_each_of_its_gpus() -> None:
    one = holding(A, "train")
    both = replace(one, hold=replace(one.hold, gpus=(A, B)))
    found = devices(node(whole=True), looks(), [both], NOW)
    assert [labels.endswith('pod="train"') for labels in labels_of(found)] == [True, True]


@pytest.mark.parametrize(("age", "told"), [(0.0, True), (STALE_SECONDS - 1, True), (STALE_SECONDS, False)])
def test_what_was_told_too_long_ago_is_told_no_more(age: float, told: bool) -> None:
    found = devices(node(whole=True), {A: look(at=NOW - age)}, [], NOW)[0]
    assert (found.look.readings.temperature is not None, found.memory is not None) == (told, told)


def test_a_gpu_that_could_not_be_read_is_there_without_figures() -> None:
    found = devices(node(whole=True), {}, [], NOW)
    assert [one.look.readings.temperature for one in found] == [None, None]


def test_an_instance_that_was_made_since_the_last_look_has_no_memory_yet() -> None:
    seen = look(figures=None)
    assert [one.memory for one in devices(node(), {B: seen}, [], NOW)] == [None, None, None]


def test_bus_and_device_are_spelled_as_nvml_does() -> None:
    odd = replace(gpu(0), uuid=GpuUuid("GPU-odd"), pci=pci_address("10000:e1:00.0"), minor=None)
    (labels,) = labels_of(devices(inventory([odd]), {}, [], NOW))
    assert 'pci_bus_id="00010000:E1:00.0",modelName=' in labels
