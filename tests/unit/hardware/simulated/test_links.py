"""NVLinks from islands and pairs, and the PCIe ancestor from the bridges above two GPUs."""

import pytest

from node_agent.hardware.simulated import load_profile
from node_agent.hardware.simulated.links import build_links, common_ancestor, root_complex
from node_agent.hardware.simulated.profile import GpuPlace
from tests.unit.hardware.simulated.support import EVERY_PROFILE

SINGLE, MULTIPLE, HOST_BRIDGE, NODE, SYSTEM = 10, 20, 30, 40, 50


def place(*bridges: str, numa: int | None = 0, bus: str = "0000:19:00.0") -> GpuPlace:
    return GpuPlace(board="any", bus=bus, minor=0, numa=numa, bridges=bridges)


@pytest.mark.parametrize(
    ("one", "other", "level"),
    [
        (
            place("0000:15:01.0", "0000:16:00.0", "0000:17:00.0"),
            place("0000:15:01.0", "0000:16:00.0", "0000:17:04.0"),
            SINGLE,
        ),
        (
            place("0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0"),
            place("0000:15:01.0", "0000:16:00.0", "0000:17:04.0", "0000:1a:00.0"),
            MULTIPLE,
        ),
        (
            place("0000:15:01.0", "0000:16:00.0", "0000:17:00.0"),
            place("0000:15:01.0", "0000:16:00.0", "0000:17:04.0", "0000:1a:00.0"),
            MULTIPLE,
        ),
        (place("0000:15:01.0"), place("0000:15:02.0"), HOST_BRIDGE),
        (place("0000:15:01.0"), place("0000:3d:01.0"), NODE),
        (place("0000:15:01.0"), place("0000:97:01.0", numa=1), SYSTEM),
        (place("0000:15:01.0", numa=None), place("0000:97:01.0", numa=None), SYSTEM),
        (place("0008:00:00.0", bus="0008:01:00.0"), place("0009:00:00.0", bus="0009:01:00.0"), NODE),
        (place(bus="0000:00:04.0", numa=None), place(bus="0000:00:05.0", numa=None), HOST_BRIDGE),
    ],
)
def test_two_gpus_meet_where_their_bridges_part(one: GpuPlace, other: GpuPlace, level: int) -> None:
    assert common_ancestor(one, other) == common_ancestor(other, one) == level


def test_the_root_complex_keeps_the_domain() -> None:
    assert root_complex(place("0018:00:00.0", bus="0018:01:00.0")) == "0018:00"
    assert root_complex(place(bus="0000:02:00.0")) == "0000:02"


@pytest.mark.parametrize("name", EVERY_PROFILE)
def test_links_to_gpus_are_seen_from_both_ends(name: str) -> None:
    links = build_links(load_profile(name))
    for slot, own in enumerate(links):
        for number, link in enumerate(own):
            if link.peer is not None:
                assert link.peer_link is not None
                far = links[link.peer][link.peer_link]
                assert (far.peer, far.peer_link) == (slot, number)


@pytest.mark.parametrize("name", EVERY_PROFILE)
def test_a_gpu_has_all_the_links_of_its_board(name: str) -> None:
    profile = load_profile(name)
    for place_, links in zip(profile.gpus, build_links(profile), strict=True):
        port = profile.board_of(place_).nvlink
        assert len(links) == (port.links if port else 0)


def test_the_cube_mesh_has_six_links_to_four_neighbours() -> None:
    neighbours = [sorted(link.peer or 0 for link in links) for links in build_links(load_profile("v100-8"))]
    assert neighbours == [
        [1, 2, 3, 3, 4, 4],
        [0, 2, 2, 3, 5, 5],
        [0, 1, 1, 3, 3, 6],
        [0, 0, 1, 2, 2, 7],
        [0, 0, 5, 6, 7, 7],
        [1, 1, 4, 6, 6, 7],
        [2, 4, 5, 5, 7, 7],
        [3, 4, 4, 5, 6, 6],
    ]


def test_links_are_dealt_out_to_the_switches_in_turn() -> None:
    links = build_links(load_profile("a100-40gb-8"))[0]
    assert [link.switch for link in links] == [f"0000:c{number}:00.0" for number in (4, 5, 6, 7, 8, 9)] * 2


def test_switches_that_are_not_on_the_bus_have_no_address() -> None:
    links = build_links(load_profile("b200-8"))[0]
    assert {(link.island, link.switch, link.connected) for link in links} == {(0, None, True)}


def test_a_port_without_a_cable_is_never_active() -> None:
    profile = load_profile("a100-pcie-4")
    bare = type(profile)(
        summary="no bridges", driver=profile.driver, numa=profile.numa, gpus=profile.gpus, boards=profile.boards
    )
    links = build_links(bare)[0]
    assert len(links) == 12
    assert not any(link.connected or link.active for link in links)


def test_a_link_that_is_down_stays_connected() -> None:
    link = build_links(load_profile("h200-8"))[0][0]
    link.up = False
    assert link.connected
    assert not link.active
