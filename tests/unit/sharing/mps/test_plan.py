"""What a daemon of some devices is, and what its clients may take."""

from pathlib import Path

import pytest

from node_agent.errors import MpsImpossible
from node_agent.model.gpu import ComputeCapability, GpuUuid
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.mps.plan import (
    NO_LIMITS,
    Folders,
    Limits,
    check_possible,
    client_edits,
    client_limit,
    daemon_environment,
    daemon_key,
    default_commands,
    of_all,
    server_commands,
)
from tests.unit.sharing.mps.conftest import GIB

A, B, C = (GpuUuid(f"GPU-{letter}") for letter in "abc")
MIB = 1 << 20


def folders(*, own_shm: bool) -> Folders:
    return Folders.below(Path("/run/mps/1234"), own_shm=own_shm)


def test_the_same_devices_have_the_same_daemon_in_whatever_order() -> None:
    assert daemon_key([A, B]) == daemon_key([B, A])
    assert len({daemon_key([A]), daemon_key([B]), daemon_key([A, B])}) == 3


def test_a_key_leaves_room_for_the_paths_of_sockets() -> None:
    assert len(daemon_key([A, B, C])) == 12


def test_a_daemon_has_its_devices_and_folders_and_no_others() -> None:
    assert daemon_environment([B, A], folders(own_shm=True)) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps/1234/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/run/mps/1234/log",
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a",
    }


def test_a_client_gets_the_pipe_and_the_shared_memory_of_its_own_daemon() -> None:
    own, hosts = (client_edits([A], folders(own_shm=own), NO_LIMITS) for own in (True, False))
    assert own.environment == hosts.environment == {"CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps"}
    assert own.mounts == {"/run/mps/1234/pipe": "/run/nvidia-mps", "/run/mps/1234/shm": "/dev/shm"}
    assert hosts.mounts == {"/run/mps/1234/pipe": "/run/nvidia-mps", "/dev/shm": "/dev/shm"}


def test_limits_go_by_the_number_that_the_daemon_has_for_a_device() -> None:
    limits = Limits(memory={A: 20 * GIB, C: 3 * MIB // 2}, threads=25)
    edits = client_edits([C, B, A], folders(own_shm=True), limits)
    assert edits.environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=1M,2=20480M"
    assert edits.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert default_commands([C, B, A], limits) == [
        "set_default_active_thread_percentage 25",
        "set_default_device_pinned_mem_limit 0 1M",
        "set_default_device_pinned_mem_limit 2 20480M",
    ]
    assert server_commands(77, [A], limits) == [
        "set_active_thread_percentage 77 25",
        "set_device_pinned_mem_limit 77 0 20480M",
    ]


@pytest.mark.parametrize(
    ("users", "memory", "threads"),
    [
        ([Limits(memory={A: GIB}, threads=10), Limits(memory={A: 3 * GIB}, threads=40)], {A: 3 * GIB}, 40),
        ([Limits(memory={A: GIB}, threads=10), NO_LIMITS], {A: 80 * GIB}, 100),
        ([Limits(memory={A: GIB}), Limits(memory={A: 2 * GIB}, threads=5)], {A: 2 * GIB}, 100),
        ([NO_LIMITS], {A: 80 * GIB}, 100),
        ([], {A: 80 * GIB}, 100),
    ],
)
def test_a_daemon_holds_all_to_the_widest_limits(
    users: list[Limits], memory: dict[DeviceUuid, int], threads: int
) -> None:
    assert of_all(users, [A], {A: 80 * GIB}) == Limits(memory=memory, threads=threads)


def test_a_device_of_unknown_size_is_limited_only_where_every_user_is() -> None:
    limited = Limits(memory={A: GIB, B: GIB})
    assert of_all([limited, Limits(memory={A: GIB})], [A, B], {}) == Limits(memory={A: GIB}, threads=100)


@pytest.mark.parametrize(("memory", "threads"), [({A: MIB - 1}, None), ({A: 0}, None), ({}, 0), ({}, 101)])
def test_limits_that_no_client_could_live_with_are_none(memory: dict[DeviceUuid, int], threads: int | None) -> None:
    with pytest.raises(ValueError, match="a limit of"):
        Limits(memory=memory, threads=threads)


@pytest.mark.parametrize(
    ("capability", "cuda", "part", "clients"),
    [
        ((6, 1), "12.4", 1.0, 16),
        ((7, 0), "12.4", 1.0, 48),
        ((9, 0), "13.0", 1.0, 48),
        ((9, 0), "13.1", 1.0, 60),
        ((10, 0), "14.0", 1.0, 60),
        ((9, 0), "12.4", 1 / 8, 6),
        ((9, 0), "12.4", 1 / 100, 1),
        (None, None, 1.0, 48),
    ],
)
def test_how_many_clients_there_may_be(
    capability: tuple[int, int] | None, cuda: str | None, part: float, clients: int
) -> None:
    known = ComputeCapability(major=capability[0], minor=capability[1]) if capability else None
    assert client_limit(known, cuda, part) == clients


def test_before_volta_clients_cannot_be_limited() -> None:
    pascal, volta = (ComputeCapability(major=major, minor=0) for major in (6, 7))
    check_possible("gpu-0", pascal, NO_LIMITS, False)
    check_possible("gpu-0", None, Limits(threads=5), True)
    check_possible("gpu-0", volta, Limits(threads=5), True)
    for limits, multi_user in ((Limits(threads=5), False), (NO_LIMITS, True)):
        with pytest.raises(MpsImpossible, match=r"gpu-0 has compute capability 6\.0.* from 7\.0 on"):
            check_possible("gpu-0", pascal, limits, multi_user)
