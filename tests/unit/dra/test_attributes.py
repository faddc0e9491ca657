"""What a slice says of a GPU: names and types that users' selectors rely on, on nodes as they are sold."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.dra.attributes import (
    NvlinkFacts,
    gpu_attributes,
    gpu_capacity,
    group_attributes,
    group_capacity,
    nvlink_facts,
    shared_capacity,
)
from node_agent.dra.values import MOST_NAMES, Value
from node_agent.hardware.simulated import profile_names
from node_agent.model.gpu import Gpu
from node_agent.model.inventory import DriverInfo, Inventory
from node_agent.model.pci import PciAddress, pci_address
from tests.fakes.builders import bridged_node, cube_mesh, gpu, h200_node, l4_pair, switched_node, uuid
from tests.fakes.nodes import inventory_of

KEY = re.compile(r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z_][A-Za-z0-9_]{0,31}\Z")
SEMVER = re.compile(r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)\Z")


def first(profile: str) -> tuple[Gpu, dict[str, Value]]:
    """The first GPU of a simulated node, and its attributes."""
    node = inventory_of(profile)
    return node.gpus[0], gpu_attributes(node.gpus[0], node.driver, nvlink_facts(node))


def plain(attributes: dict[str, Value]) -> dict[str, Any]:
    return {name: next(iter(value.values())) for name, value in attributes.items()}


def attributes(gpu: Gpu, driver: DriverInfo | None = None) -> dict[str, Value]:
    return gpu_attributes(gpu, driver or DriverInfo(), NvlinkFacts())


def test_an_h200_tells_all_that_users_choose_by() -> None:
    gpu, told = first("h200-8")
    assert told == {
        "type": {"string": "gpu"},
        "uuid": {"string": gpu.uuid},
        "resource.kubernetes.io/pciBusID": {"string": "0000:1b:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:15"},
        "resource.kubernetes.io/numaNode": {"int": 0},
        "productName": {"string": "NVIDIA H200"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.95.5"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "nvlinkDomain": {"string": gpu.uuid},
        "nvlinkGeneration": {"int": 4},
        "nvlinkBandwidthMBps": {"int": 18 * 26562},
        "migCapable": {"bool": True},
        "eccEnabled": {"bool": True},
        "addressingMode": {"string": "None"},
        "coherentMemory": {"bool": False},
        "powerLimitWatts": {"int": 700},
        "deviceID": {"string": "0x2335"},
        "minor": {"int": 2},
        "serial": {"string": gpu.serial},
        "vbios": {"string": "96.00.A5.00.03"},
    }


def test_a_gb200_is_coherent_and_of_a_domain_over_several_nodes() -> None:
    told = plain(first("gb200-4")[1])
    assert told["clique"] == "b2daed23-0000-4000-8000-6a1f00c0ffee.1"
    assert (told["addressingMode"], told["coherentMemory"]) == ("ATS", True)
    assert (told["nvlinkGeneration"], told["nvlinkBandwidthMBps"]) == (5, 18 * 53125)
    assert told["resource.kubernetes.io/pciBusID"] == "0008:01:00.0"


def test_a_gb10_whose_memory_is_the_hosts_tells_no_memory() -> None:
    node = inventory_of("gb10-1")
    assert "memory" not in gpu_capacity(node.gpus[0])
    assert "memory" not in shared_capacity(node.gpus[0])


@pytest.mark.parametrize("profile", profile_names())
def test_the_api_takes_the_attributes_of_every_known_node(profile: str) -> None:
    node = inventory_of(profile)
    nvlink = nvlink_facts(node)
    for each in node.gpus:
        told = gpu_attributes(each, node.driver, nvlink)
        assert len(told) + len(gpu_capacity(each)) <= 32
        for name, value in told.items():
            assert KEY.match(name) and len(value) == 1
            kind, content = next(iter(value.items()))
            if isinstance(content, str):
                assert 0 < len(content.encode()) <= 64
            assert kind != "version" or SEMVER.match(str(content))
            assert isinstance(content, {"int": int, "bool": bool, "string": str, "version": str}[kind])


@pytest.mark.parametrize("profile", profile_names())
def test_all_gpus_of_one_product_have_the_same_kinds_of_attributes(profile: str) -> None:
    """A selector on an attribute that only some GPUs have fails the whole scheduling attempt."""
    node = inventory_of(profile)
    nvlink = nvlink_facts(node)
    shapes = {
        (each.product, each.partition_mode, frozenset(gpu_attributes(each, node.driver, nvlink))) for each in node.gpus
    }
    assert len(shapes) == len({(each.product, each.partition_mode) for each in node.gpus})


def test_what_is_unknown_is_absent() -> None:
    told = attributes(gpu(3, numa=None))
    assert told.keys() == {
        "type",
        "uuid",
        "resource.kubernetes.io/pciBusID",
        "productName",
        "migCapable",
        "minor",
    }
    assert told["migCapable"] == {"bool": False}
    assert gpu_capacity(gpu(3)) == {}


def test_ecc_that_is_off_is_not_ecc_that_is_unknown() -> None:
    assert attributes(replace(gpu(), ecc_enabled=False))["eccEnabled"] == {"bool": False}
    assert "eccEnabled" not in attributes(gpu())


def test_a_product_name_of_67_bytes_is_cut_and_the_device_stays() -> None:
    name = "NVIDIA " + "A" * 56 + "éBC"
    assert len(name.encode()) == 67
    told = attributes(replace(gpu(), product=name))
    assert told["productName"] == {"string": "NVIDIA " + "A" * 56}
    assert told["uuid"] == {"string": gpu().uuid}


def test_a_driver_version_that_cannot_be_fixed_is_left_out_and_all_else_stays() -> None:
    good, bad = DriverInfo(version="570.124.06", cuda="12.8"), DriverInfo(version="570.124.06.1", cuda="12.8")
    assert attributes(gpu(), good)["driverVersion"] == {"version": "570.124.6"}
    assert attributes(gpu(), good).keys() - attributes(gpu(), bad).keys() == {"driverVersion"}


def test_a_pci_address_that_the_standard_form_has_no_room_for_is_left_out() -> None:
    """Domains of more than four digits are made up by some host bridges."""
    assert "resource.kubernetes.io/pciBusID" not in attributes(replace(gpu(), pci=pci_address("10000:e1:00.0")))


def test_a_pci_address_is_published_as_sysfs_spells_it() -> None:
    told = attributes(replace(gpu(), pci=pci_address("00000001:0A:00.0")))
    assert told["resource.kubernetes.io/pciBusID"] == {"string": "0001:0a:00.0"}


def test_no_attribute_is_made_up_from_a_strange_address() -> None:
    assert "resource.kubernetes.io/pciBusID" not in attributes(replace(gpu(), pci=PciAddress("vmbus-7")))


# NVLink


def domains(node: Inventory) -> list[list[int]]:
    """The indices of the GPUs that have one nvlinkDomain."""
    found: dict[str, list[int]] = {}
    facts = nvlink_facts(node)
    for each in node.gpus:
        if each.uuid in facts.domains:
            found.setdefault(facts.domains[each.uuid], []).append(each.index)
    return list(found.values())


def test_all_gpus_on_one_switch_are_of_one_domain() -> None:
    assert domains(h200_node()) == [list(range(8))]


def test_bridged_pairs_are_domains_of_their_own() -> None:
    assert domains(bridged_node()) == [[0, 1], [2, 3]]


def test_a_mesh_in_which_not_all_are_neighbours_is_one_domain() -> None:
    assert domains(cube_mesh()) == [list(range(8))]


def test_gpus_without_nvlink_have_no_domain_and_no_bandwidth() -> None:
    assert nvlink_facts(l4_pair()) == NvlinkFacts()


def test_the_name_of_a_domain_is_no_other_nodes() -> None:
    assert set(nvlink_facts(h200_node()).domains.values()) == {uuid(0)}


def test_links_to_several_neighbours_add_up_and_links_to_a_switch_count_once() -> None:
    mesh = nvlink_facts(cube_mesh()).bandwidth
    assert set(mesh.values()) == {6 * 25_781}
    assert set(nvlink_facts(switched_node([0, 0, 0, 0], links=12, each=25_000)).bandwidth.values()) == {300_000}


# Capacities


def known(memory: int | None = 143771 << 20, multiprocessors: int | None = 132) -> Gpu:
    return replace(gpu(), memory=memory, multiprocessors=multiprocessors)


def test_capacities_are_bytes_and_multiprocessors() -> None:
    assert gpu_capacity(known()) == {"memory": {"value": "143771Mi"}, "multiprocessors": {"value": "132"}}


def test_a_gpu_that_is_not_shared_has_no_policy() -> None:
    """The API refuses one there."""
    assert all(each.keys() == {"value"} for each in gpu_capacity(known()).values())


def test_a_share_that_asks_for_nothing_gets_all_memory_and_shares_the_rest() -> None:
    assert shared_capacity(known()) == {
        "memory": {
            "value": "143771Mi",
            "requestPolicy": {"default": "143771Mi", "validRange": {"min": "1Mi", "step": "1Mi"}},
        },
        "multiprocessors": {
            "value": "132",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
        },
        "cores": {
            "value": "100",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
        },
    }


def test_memory_that_is_no_multiple_of_the_step_is_given_out_in_whole_steps() -> None:
    """The API wants the default to be the least and some steps."""
    policy = shared_capacity(known(memory=(5 << 20) + 4096))["memory"]["requestPolicy"]
    assert policy["default"] == "5Mi"


def test_a_capacity_with_no_room_for_two_shares_has_no_policy() -> None:
    assert shared_capacity(known(multiprocessors=1))["multiprocessors"] == {"value": "1"}


# Groups


def test_a_group_says_what_is_true_of_all_its_members() -> None:
    one = attributes(replace(gpu(0, numa=0), architecture="Hopper"))
    other = attributes(replace(gpu(1, numa=1), architecture="Hopper"))
    assert plain(group_attributes([one, other])) == {
        "type": "group",
        "gpuCount": 2,
        "productName": "NVIDIA H200",
        "architecture": "Hopper",
        "migCapable": False,
    }


def test_members_of_one_numa_node_and_one_domain_say_so_together() -> None:
    node = h200_node()
    nvlink = nvlink_facts(node)
    members = [gpu_attributes(each, node.driver, nvlink) for each in node.gpus[:4]]
    told = plain(group_attributes(members))
    assert (told["resource.kubernetes.io/numaNode"], told["nvlinkDomain"], told["gpuCount"]) == (0, uuid(0), 4)
    across = plain(group_attributes([gpu_attributes(each, node.driver, nvlink) for each in node.gpus]))
    assert "resource.kubernetes.io/numaNode" not in across


def test_a_group_never_loses_its_kind_and_count_to_the_limit() -> None:
    many: dict[str, Value] = {"type": {"string": "gpu"}, **{f"a{i}": {"int": i} for i in range(MOST_NAMES - 1)}}
    told = group_attributes([many, many])
    assert len(told) == MOST_NAMES
    assert (told["type"], told["gpuCount"]) == ({"string": "group"}, {"int": 2})


def test_a_group_has_its_members_capacities_together() -> None:
    assert group_capacity([known(), known()]) == {"memory": {"value": "287542Mi"}, "multiprocessors": {"value": "264"}}


def test_what_one_member_does_not_tell_is_not_known_of_the_group() -> None:
    assert group_capacity([known(), known(memory=None)]) == {"multiprocessors": {"value": "264"}}
