"""NVLink domains over several nodes: joined, still joining, broken, and none."""

import uuid
from pathlib import Path

import msgspec
import pynvml
import pytest

from node_agent.hardware.nvml.scan import scan
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.provider import GpuFacts
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.gpu import FabricState

DOMAIN = "b2daed23-0000-4000-8000-6a1f00c0ffee.1"


@pytest.fixture
def node() -> SimulatedNode:
    """Four GPUs of a rack that is one NVLink domain."""
    return SimulatedNode(load_profile("gb200-4"))


def look(node: SimulatedNode, sysfs: Path) -> tuple[GpuFacts, ...]:
    with install(node):
        session = Session(sysfs=sysfs)
        found = scan(session).gpus
        session.close()
    assert len(found) == len(node.profile.gpus), "a fabric never costs a GPU"
    return found


def fabric_of(node: SimulatedNode, gpu: int) -> FabricState:
    fabric = node.faults.gpu(gpu).fabric
    assert fabric is not None
    return fabric


def test_a_gpu_names_the_domain_that_it_has_joined(node: SimulatedNode, tmp_path: Path) -> None:
    assert {gpu.nvlink_domain for gpu in look(node, tmp_path)} == {DOMAIN}


@pytest.mark.parametrize("state", [pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS])
def test_a_gpu_that_is_still_joining_has_no_domain_until_it_has_joined(
    node: SimulatedNode, tmp_path: Path, state: int
) -> None:
    fabric_of(node, 2).state = state
    joining = look(node, tmp_path)
    assert [gpu.nvlink_domain for gpu in joining] == [DOMAIN, DOMAIN, None, DOMAIN]
    assert joining[2].failed == {}
    fabric_of(node, 2).state = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    assert look(node, tmp_path)[2].nvlink_domain == DOMAIN


def test_a_gpu_that_could_not_join_says_why(node: SimulatedNode, tmp_path: Path) -> None:
    fabric_of(node, 1).status = pynvml.NVML_ERROR_INVALID_STATE
    gpu = look(node, tmp_path)[1]
    assert gpu.nvlink_domain is None
    assert "could not be joined (NVML error 29)" in gpu.failed["nvlink_domain"]


@pytest.mark.parametrize(
    ("summary", "mask", "words"),
    [
        (pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY, 0x1AA, "it is unhealthy"),
        (pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY, 0x1AA, "its capacity is limited"),
        (pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY, 0x19A, "a route is unhealthy"),
        (pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED, 0x1A9, "its bandwidth is degraded"),
        (pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED, 0x16A, "recovers from an access timeout"),
        (pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED, 0x5AA, "its configuration is wrong (NVML's reason 5)"),
    ],
)
def test_a_broken_fabric_is_reported_as_broken(
    node: SimulatedNode, tmp_path: Path, summary: int, mask: int, words: str
) -> None:
    fabric_of(node, 0).summary, fabric_of(node, 0).health_mask = summary, mask
    gpu = look(node, tmp_path)[0]
    assert gpu.nvlink_domain is None
    assert words in gpu.failed["nvlink_domain"]


@pytest.mark.parametrize("mask", [0, 0x1AA, 0x51AA])
def test_a_driver_that_does_not_sum_up_its_health_is_healthy_by_its_mask(
    node: SimulatedNode, tmp_path: Path, mask: int
) -> None:
    fabric_of(node, 0).summary = pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED
    fabric_of(node, 0).health_mask = mask
    assert look(node, tmp_path)[0].nvlink_domain == DOMAIN


def test_the_switches_of_a_single_node_are_no_domain(tmp_path: Path) -> None:
    gpus = look(SimulatedNode(load_profile("h200-8")), tmp_path)
    assert {gpu.nvlink_domain for gpu in gpus} == {None}
    assert all(gpu.failed == {} for gpu in gpus)


def test_a_gpu_without_fabric_has_no_domain_and_no_failure(tmp_path: Path) -> None:
    (gpu,) = look(SimulatedNode(load_profile("gb10-1")), tmp_path)
    assert (gpu.nvlink_domain, gpu.failed) == (None, {})


@pytest.mark.parametrize("missing", [(), ("nvmlDeviceGetGpuFabricInfoV",)])
def test_older_drivers_tell_the_domain_in_older_forms(tmp_path: Path, missing: tuple[str, ...]) -> None:
    profile = load_profile("gb200-4")
    old = msgspec.structs.replace(profile.driver, missing_symbols=missing)
    node = SimulatedNode(msgspec.structs.replace(profile, driver=old))
    if not missing:
        node.faults.fail("nvmlDeviceGetGpuFabricInfoV", "ARGUMENT_VERSION_MISMATCH", times=1)
    assert {gpu.nvlink_domain for gpu in look(node, tmp_path)} == {DOMAIN}


def test_two_domains_in_one_node_are_told_apart(node: SimulatedNode, tmp_path: Path) -> None:
    fabric_of(node, 3).clique = 7
    fabric_of(node, 2).cluster = uuid.UUID(int=5)
    assert [gpu.nvlink_domain for gpu in look(node, tmp_path)] == [
        DOMAIN,
        DOMAIN,
        f"{uuid.UUID(int=5)}.1",
        DOMAIN.removesuffix("1") + "7",
    ]
