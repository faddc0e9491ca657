"""The labels of a node: GFD's names and values, what is left out, and that no name makes an illegal one."""

import re
from collections.abc import Mapping
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.hardware.machine import Machine, VgpuHost
from node_agent.model.gpu import ComputeCapability, Gpu, PartitionMode
from node_agent.model.health import DeviceHealth, HealthReport, Severity
from node_agent.model.inventory import DriverInfo, Inventory, MissingGpu
from node_agent.model.partition import DeviceUuid
from node_agent.reporting.label_names import meaning
from node_agent.reporting.label_values import label_value
from node_agent.reporting.labels import labels
from node_agent.reporting.mig_labels import MigOffer
from node_agent.sharing.shares import Shared, Strategy
from tests.fakes import builders
from tests.fakes.health import NOT_PROBED, xid
from tests.fakes.names import OWN_PREFIX
from tests.fakes.nodes import inventory_of

# Kubernetes' own rules, stated anew: what it refuses, it refuses with the whole patch.
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
COMPUTE, GRAPHICS = 0x030200, 0x030000

H200 = Gpu(
    uuid=builders.uuid(0),
    name=builders.gpu(0).name,
    index=0,
    product="NVIDIA H200",
    pci=builders.gpu(0).pci,
    memory=143771 << 20,
    compute_capability=ComputeCapability(major=9, minor=0),
    partition_mode=PartitionMode.DISABLED,
)


def copies(count: int, like: Gpu = H200, start: int = 0) -> tuple[Gpu, ...]:
    """So many GPUs that differ in nothing but who they are."""
    others = [builders.gpu(start + index) for index in range(count)]
    return tuple(replace(like, uuid=one.uuid, name=one.name, index=one.index, pci=one.pci) for one in others)


def node(*gpus: Gpu, driver: DriverInfo | None = None) -> Inventory:
    return Inventory(generation=1, gpus=gpus, driver=driver or DriverInfo())


def said(inventory: Inventory, machine: str | None = None) -> Mapping[str, str]:
    """The labels without their prefix."""
    found = labels(inventory, machine=Machine(name=machine))
    assert found is not None
    assert all(key.startswith(("nvidia.com/", OWN_PREFIX)) for key in found)
    return {key.removeprefix("nvidia.com/"): value for key, value in found.items()}


def test_a_node_of_eight_h200_has_the_labels_that_gfd_gives_it() -> None:
    inventory = node(*copies(8), driver=DriverInfo(version="580.95.05", cuda="13.0"))
    assert labels(inventory, machine=Machine(name="PowerEdge XE9680", pci_classes=(COMPUTE,) * 8)) == {
        "nvidia.com/cuda.driver-version.full": "580.95.05",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.driver-version.minor": "95",
        "nvidia.com/cuda.driver-version.revision": "05",
        "nvidia.com/cuda.driver.major": "580",
        "nvidia.com/cuda.driver.minor": "95",
        "nvidia.com/cuda.driver.rev": "05",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/cuda.runtime-version.major": "13",
        "nvidia.com/cuda.runtime-version.minor": "0",
        "nvidia.com/cuda.runtime.major": "13",
        "nvidia.com/cuda.runtime.minor": "0",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.machine": "PowerEdge-XE9680",
        "nvidia.com/gpu.memory": "143771",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H200",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
    }


def test_the_labels_come_in_the_order_of_their_keys() -> None:
    found = said(node(*copies(2), driver=DriverInfo(version="580.95.05")))
    assert list(found) == sorted(found)


def test_what_a_gpu_cannot_tell_has_no_label_instead_of_a_nought() -> None:
    silent = replace(H200, memory=None, compute_capability=None, partition_mode=None)
    assert said(node(silent)) == {
        "gpu.count": "1",
        "gpu.present": "true",
        "gpu.product": "NVIDIA-H200",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": "false",
        "mps.capable": "false",
    }


def test_a_gpu_that_cannot_tell_takes_nothing_from_what_the_others_tell() -> None:
    first, second = copies(2)
    found = said(node(replace(first, memory=None, compute_capability=None), second))
    assert (found["gpu.memory"], found["gpu.family"]) == ("143771", "hopper")


def test_a_node_without_gpus_has_no_labels() -> None:
    assert labels(Inventory(generation=1)) == {}


@pytest.mark.parametrize(
    "inventory",
    [
        Inventory(),
        Inventory(generation=3, problem="the driver is not loaded"),
        Inventory(generation=3, missing=(MissingGpu(index=0, reason="it fell off the bus"),)),
    ],
    ids=["not-looked-at-yet", "no-driver", "all-lost"],
)
def test_gpus_that_cannot_be_read_leave_the_labels_as_they_were(inventory: Inventory) -> None:
    assert labels(inventory) is None


def test_a_gpu_that_is_missing_is_not_counted_and_takes_no_other_label() -> None:
    whole = said(node(*copies(8)))
    without_one = Inventory(generation=2, gpus=copies(8)[:7], missing=(MissingGpu(index=7, reason="lost"),))
    assert said(without_one) == {**whole, "gpu.count": "7"}


# Names


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TITAN X (Pascal)", "TITAN-X-Pascal"),
        ("X9SRA/X9SRA-3", "X9SRAX9SRA-3"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA RTX™ 6000 Ada", "NVIDIA-RTX-6000-Ada"),
        ("Quadro  RTX\t6000", "Quadro-RTX6000"),
        (" ProLiant DL380 Gen11. ", "ProLiant-DL380-Gen11"),
        ("_-Machine-_", "Machine"),
        ("A" * 80, "A" * 63),
        ("A" * 62 + " B", "A" * 62),
        ("x" * 80 + ".", "x" * 63),
        ("", None),
        ("()", None),
        ("...", None),
        ("温", None),
    ],
)
def test_a_name_becomes_a_value_that_kubernetes_takes(name: str, value: str | None) -> None:
    assert label_value(name) == value


def test_a_name_of_which_nothing_is_left_costs_its_own_label_and_no_other() -> None:
    whole = said(node(*copies(2)))
    found = said(node(*copies(2, like=replace(H200, product="( )"))), machine="///")
    assert found == {key: value for key, value in whole.items() if key != "gpu.product"}


@given(
    products=st.lists(st.text(max_size=90), min_size=1, max_size=4),
    machine=st.text(max_size=90),
    version=st.text(max_size=70),
    domain=st.text(max_size=70),
)
def test_no_text_from_outside_makes_an_illegal_label_or_takes_a_good_one(
    products: list[str], machine: str, version: str, domain: str
) -> None:
    gpus = [
        replace(one, product=product, nvlink_domain=domain)
        for one, product in zip(copies(len(products)), products, strict=True)
    ]
    found = said(node(*gpus, driver=DriverInfo(version=version, cuda=version)), machine=machine)
    for key, value in found.items():
        assert NAME.fullmatch(key), key
        assert NAME.fullmatch(value), value
    assert found["gpu.count"] == str(len(products))
    assert found["gpu.family"] == "hopper"


@given(st.text(alphabet="ABC123 -_.", min_size=1, max_size=40).filter(lambda text: text.strip("-_. ") == text))
def test_a_name_that_is_legal_but_for_its_spaces_keeps_all_its_characters(name: str) -> None:
    assert label_value(name) == "-".join(name.split())


# Several models


def test_models_that_differ_are_counted_each_and_none_is_called_the_product() -> None:
    l4 = replace(H200, product="NVIDIA L4", memory=23034 << 20, partition_mode=None)
    found = said(node(*copies(2), *copies(3, like=l4, start=2)))
    assert "gpu.product" not in found
    assert "gpu.memory" not in found
    assert {key: value for key, value in found.items() if "NVIDIA" in key} == {
        "gpu.NVIDIA-H200.count": "2",
        "gpu.NVIDIA-H200.memory": "143771",
        "gpu.NVIDIA-L4.count": "3",
        "gpu.NVIDIA-L4.memory": "23034",
    }
    assert found["gpu.count"] == "5"


def test_what_different_models_have_in_common_is_said_of_the_node() -> None:
    h100 = replace(H200, product="NVIDIA H100 80GB HBM3", memory=81559 << 20)
    found = said(node(*copies(1), *copies(1, like=h100, start=1)))
    assert (found["gpu.family"], found["gpu.compute.major"], found["mig.capable"]) == ("hopper", "9", "true")


def test_cards_of_one_name_with_16_and_32_gb_have_the_product_and_no_memory() -> None:
    small, large = (replace(H200, product="Tesla V100", memory=size << 30) for size in (16, 32))
    found = said(node(*copies(1, like=small), *copies(1, like=large, start=1)))
    assert found["gpu.product"] == "Tesla-V100"
    assert "gpu.memory" not in found


@given(st.permutations(range(4)))
def test_the_order_in_which_gpus_are_found_changes_no_label(order: list[int]) -> None:
    gpus = [
        replace(one, product=product)
        for one, product in zip(copies(4), ["NVIDIA L4", "NVIDIA L40S", "NVIDIA L4", "Tesla T4"], strict=True)
    ]
    assert said(node(*(gpus[place] for place in order))) == said(node(*gpus))


def test_long_models_that_begin_alike_are_counted_together_under_a_key_that_fits() -> None:
    gpus = [replace(one, product="M" * 60 + last) for one, last in zip(copies(3), "aab", strict=True)]
    assert said(node(*gpus))[f"gpu.{'M' * 52}.count"] == "3"


# MIG


@pytest.mark.parametrize("mode", list(PartitionMode))
def test_a_gpu_that_can_be_partitioned_is_capable_whatever_its_mode(mode: PartitionMode) -> None:
    off, other = copies(2)
    assert said(node(replace(off, partition_mode=None), replace(other, partition_mode=mode)))["mig.capable"] == "true"


def test_a_change_of_the_mig_mode_changes_no_label() -> None:
    first, *rest = copies(4)
    seen = [said(node(replace(first, partition_mode=mode), *rest)) for mode in PartitionMode]
    assert all(found == said(node(*copies(4))) for found in seen)


@pytest.mark.parametrize(("strategy", "value"), [("none", None), ("single", "single"), ("mixed", "mixed")])
def test_only_a_strategy_that_offers_mig_devices_is_named(
    strategy: Literal["none", "single", "mixed"], value: str | None
) -> None:
    found = labels(node(H200), mig=MigOffer(strategy=strategy))
    assert found is not None
    assert found.get("nvidia.com/mig.strategy") == value


# Facts about the hardware


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ((3, 5), "kepler"),
        ((5, 2), "maxwell"),
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 2), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 7), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 3), "blackwell"),
        ((12, 1), "blackwell"),
        ((13, 0), "rubin"),
        ((11, 0), None),
        ((4, 0), None),
        ((99, 0), None),
    ],
)
def test_the_family_follows_from_the_compute_capability(capability: tuple[int, int], family: str | None) -> None:
    major, minor = capability
    found = said(node(replace(H200, compute_capability=ComputeCapability(major=major, minor=minor))))
    assert found.get("gpu.family") == family
    assert (found["gpu.compute.major"], found["gpu.compute.minor"]) == (str(major), str(minor))


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        ([COMPUTE, COMPUTE], "compute"),
        ([GRAPHICS, GRAPHICS], "graphics"),
        ([COMPUTE, None], "compute"),
        ([COMPUTE, GRAPHICS], None),
        ([0x038000, 0x038000], None),
        ([None, None], None),
        ([], None),
    ],
)
def test_the_mode_is_named_where_all_gpus_are_of_one_class(classes: list[int | None], mode: str | None) -> None:
    found = labels(node(*copies(2)), machine=Machine(pci_classes=tuple(classes)))
    assert found is not None
    assert found.get("nvidia.com/gpu.mode") == mode


@pytest.mark.parametrize(
    ("domains", "clique"),
    [
        (["abc.1", "abc.1"], "abc.1"),
        (["abc.1", None], None),
        (["abc.1", "abc.2"], None),
        ([None, None], None),
        (["x" * 64, "x" * 64], None),
    ],
)
def test_the_clique_is_named_where_all_gpus_have_joined_the_same_one(
    domains: list[str | None], clique: str | None
) -> None:
    gpus = [replace(one, nvlink_domain=domain) for one, domain in zip(copies(2), domains, strict=True)]
    assert said(node(*gpus)).get("gpu.clique") == clique


def test_a_version_of_two_parts_has_no_revision() -> None:
    found = said(node(H200, driver=DriverInfo(version="535.129")))
    assert (found["cuda.driver-version.full"], found["cuda.driver-version.minor"]) == ("535.129", "129")
    assert not {"cuda.driver-version.revision", "cuda.driver.rev"} & found.keys()


def test_a_minor_cuda_version_above_nine_stays_whole() -> None:
    assert said(node(H200, driver=DriverInfo(cuda="12.10")))["cuda.runtime-version.minor"] == "10"


def test_a_driver_that_does_not_say_its_version_has_no_version_labels() -> None:
    assert not [key for key in said(node(H200)) if key.startswith("cuda.")]


def test_an_odd_version_costs_only_the_part_that_cannot_be_a_label() -> None:
    found = said(node(H200, driver=DriverInfo(version="580.95-beta!.05")))
    assert {key: value for key, value in found.items() if key.startswith("cuda.driver-version")} == {
        "cuda.driver-version.major": "580",
        "cuda.driver-version.revision": "05",
    }


@pytest.mark.parametrize(("switches", "label"), [(4, "4"), (0, None)])
def test_the_switches_are_counted_where_the_bus_shows_any(switches: int, label: str | None) -> None:
    found = labels(node(H200), machine=Machine(nvswitches=switches))
    assert found is not None
    assert found.get("nvidia.com/gpu.nvswitch.count") == label


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine(), {}),
        (Machine(virtual=False), {"present": "false"}),
        (
            Machine(virtual=True, vgpu_host=VgpuHost(version="550.90", branch="r550_00")),
            {"present": "true", "host-driver-version": "550.90", "host-driver-branch": "r550_00"},
        ),
        (Machine(virtual=True, vgpu_host=VgpuHost(version="", branch="?")), {"present": "true"}),
    ],
)
def test_a_virtual_gpu_is_named_with_its_hosts_driver(machine: Machine, expected: dict[str, str]) -> None:
    found = labels(node(H200), machine=machine) or {}
    start = "nvidia.com/vgpu."
    assert {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)} == expected


# NVLink


def own(inventory: Inventory, health: HealthReport | None = None) -> dict[str, str]:
    """The labels that GPU Feature Discovery does not have."""
    found = labels(inventory, health=health) or {}
    return {key.removeprefix(OWN_PREFIX): value for key, value in found.items() if key.startswith(OWN_PREFIX)}


def joined(*ends: tuple[int, int], count: int = 4, generation: int | None = 4) -> Inventory:
    gpus = [replace(gpu, nvlink_generation=generation) for gpu in copies(count)]
    return builders.inventory(gpus, {pair: builders.nvlink(18) for pair in ends})


def test_gpus_that_nvlink_joins_say_their_generation_and_how_many_they_are() -> None:
    assert own(joined((0, 1), (1, 2), (2, 3))) == {"nvlink.generation": "4", "nvlink.island-size": "4"}
    assert own(joined((0, 1), (2, 3))) == {"nvlink.generation": "4", "nvlink.island-size": "2"}


def test_islands_of_several_sizes_have_no_size_in_common() -> None:
    assert own(joined((0, 1))) == {"nvlink.generation": "4"}


def test_gpus_that_nothing_joins_say_nothing_of_nvlink() -> None:
    assert own(joined()) == {}
    assert own(joined(generation=None)) == {}


# Health


def ailing(*found: tuple[int, Severity]) -> HealthReport:
    return HealthReport(
        devices={builders.uuid(index): DeviceHealth(causes=(xid(severity=severity),)) for index, severity in found}
    )


@pytest.mark.parametrize(
    ("report", "word", "in_service"),
    [
        (ailing(), "healthy", "4"),
        (ailing((0, Severity.NONE)), "healthy", "4"),
        (ailing((0, Severity.DEGRADED)), "degraded", "4"),
        (ailing((0, Severity.DEGRADED), (1, Severity.WITHDRAWN)), "withdrawn", "3"),
        (ailing((2, Severity.EVICTED)), "evicted", "3"),
    ],
)
def test_the_worst_gpu_gives_the_nodes_health_and_those_in_service_are_counted(
    report: HealthReport, word: str, in_service: str
) -> None:
    found = own(node(*copies(4)), report)
    assert (found["health"], found["gpus-in-service"]) == (word, in_service)


def test_a_gpu_that_is_missing_makes_the_node_no_healthy_one() -> None:
    left = Inventory(generation=2, gpus=copies(3), missing=(MissingGpu(index=3, reason="lost"),))
    found = own(left, HealthReport())
    assert (found["health"], found["gpus-in-service"]) == ("withdrawn", "3")


def test_health_changes_no_label_of_gfds() -> None:
    well, ill = (
        labels(node(*copies(2)), health=ailing()),
        labels(node(*copies(2)), health=ailing((0, Severity.EVICTED))),
    )
    assert well is not None
    assert ill is not None
    assert {key for key in well if well[key] != ill[key]} == {f"{OWN_PREFIX}health", f"{OWN_PREFIX}gpus-in-service"}


def test_while_a_gpu_was_not_looked_at_yet_the_labels_stay_as_they_were() -> None:
    report = HealthReport(devices={builders.uuid(0): DeviceHealth(causes=(NOT_PROBED,))})
    assert labels(node(*copies(2)), health=report) is None


# Names


def test_every_label_of_every_simulated_node_has_a_meaning_that_is_written_down() -> None:
    host = VgpuHost(version="550.90", branch="r550_00")
    machine = Machine(name="m", pci_classes=(COMPUTE,), nvswitches=4, virtual=True, vgpu_host=host)
    for profile in ("h200-8", "gb200-4", "mixed-5", "gb10-1", "l4-2"):
        found = (
            labels(inventory_of(profile), machine=machine, mig=MigOffer(strategy="mixed"), health=HealthReport()) or {}
        )
        assert [key for key in found if not meaning(key)] == []
    mixed = labels(node(*copies(1), *copies(1, like=replace(H200, product="NVIDIA L4"), start=1))) or {}
    assert [key for key in mixed if not meaning(key)] == []


def test_what_the_agent_never_writes_has_no_meaning() -> None:
    assert [meaning(key) for key in ("nvidia.com/mig.config", "nvidia.com/gpu.", "nvidia.com/gpu.x/y.count")] == [
        None
    ] * 3


# Sharing


def with_shares(inventory: Inventory, *shares: Shared | None) -> dict[str, str]:
    """Three labels of a node whose GPUs are shared so."""
    of: dict[DeviceUuid, Shared] = {
        gpu.uuid: how for gpu, how in zip(inventory.gpus, shares, strict=True) if how is not None
    }
    found = labels(inventory, shares=of) or {}
    keys = ("gpu.product", "gpu.replicas", "gpu.sharing-strategy", "gpu.count")
    return {key.removeprefix("gpu."): found[f"nvidia.com/{key}"] for key in keys if f"nvidia.com/{key}" in found}


FOUR = Shared(strategy=Strategy.TIME_SLICING, replicas=4, resource="nvidia.com/gpu")


def test_shares_under_the_gpus_own_name_show_in_the_product_and_the_count_stays_that_of_gpus() -> None:
    assert with_shares(node(*copies(2)), FOUR, FOUR) == {
        "product": "NVIDIA-H200-SHARED",
        "replicas": "4",
        "sharing-strategy": "time-slicing",
        "count": "2",
    }


def test_shares_with_a_name_of_their_own_leave_the_product_as_it_is() -> None:
    renamed = replace(FOUR, strategy=Strategy.MPS, resource="nvidia.com/gpu.shared", renamed=True)
    assert with_shares(node(*copies(2)), renamed, renamed) == {
        "product": "NVIDIA-H200",
        "replicas": "4",
        "sharing-strategy": "mps",
        "count": "2",
    }


def test_what_does_not_hold_for_every_gpu_has_no_label() -> None:
    assert with_shares(node(*copies(2)), FOUR, None) == {"product": "NVIDIA-H200", "count": "2"}
    assert with_shares(node(*copies(2)), FOUR, replace(FOUR, replicas=2)) == {
        "product": "NVIDIA-H200-SHARED",
        "sharing-strategy": "time-slicing",
        "count": "2",
    }


def test_one_share_of_a_gpu_is_as_good_as_the_whole_in_the_products_name() -> None:
    alone = replace(FOUR, strategy=Strategy.MPS, replicas=1)
    assert with_shares(node(*copies(1)), alone)["product"] == "NVIDIA-H200"


def test_a_long_product_is_cut_so_that_the_suffix_fits() -> None:
    long = replace(H200, product="NVIDIA " + "X" * 80)
    found = with_shares(node(*copies(1, long)), FOUR)["product"]
    assert (len(found), found.endswith("X-SHARED")) == (63, True)
