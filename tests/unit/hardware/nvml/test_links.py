"""How GPUs reach each other, read link by link."""

from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from node_agent.errors import DriverUnavailable
from node_agent.hardware.nvml.links import links
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.hardware.simulated.profile import DirectLinks, Island, NvLinkPort, NvLinks
from node_agent.model.gpu import GpuUuid
from node_agent.model.links import NO_LINK, Link, LinkGraph, PciePath

SPEED = 26562


def wired(nvlink: NvLinks, **port: Any) -> SimulatedNode:
    """The eight H200s, plugged together in another way, perhaps with other ports."""
    profile = load_profile("h200-8")
    ((name, board),) = profile.boards.items()
    assert board.nvlink is not None
    board = msgspec.structs.replace(board, nvlink=msgspec.structs.replace(board.nvlink, **port))
    return SimulatedNode(msgspec.structs.replace(profile, nvlink=nvlink, boards={name: board}))


def graph_of(node: SimulatedNode, sysfs: Path) -> tuple[tuple[GpuUuid, ...], LinkGraph]:
    with install(node):
        session = Session(sysfs=sysfs)
        session.ensure_open()
        session.refresh()
        uuids = session.gpus
        graph = links(session, uuids)
        session.close()
    return uuids, graph


def test_gpus_on_one_switch_fabric_have_all_their_links_to_each_other(session: Session) -> None:
    graph = links(session, session.gpus)
    assert len(graph.links) == 28
    for a, b in combinations(range(8), 2):
        path = PciePath.NUMA_NODE if a // 4 == b // 4 else PciePath.SYSTEM
        expected = Link(nvlinks=18, bandwidth=18 * SPEED, switched=True, path=path)
        assert graph.between(session.gpus[a], session.gpus[b]) == expected


def test_through_a_switch_a_pair_has_as_many_links_as_the_lesser_end(session: Session, node: SimulatedNode) -> None:
    for link in node.faults.gpu(2).links[:5]:
        link.up = False
    graph = links(session, session.gpus)
    assert {graph.between(session.gpus[2], gpu).nvlinks for gpu in session.gpus if gpu != session.gpus[2]} == {13}
    assert graph.between(session.gpus[0], session.gpus[2]).bandwidth == 13 * SPEED
    assert graph.between(session.gpus[0], session.gpus[1]).nvlinks == 18


def test_a_gpu_whose_links_are_all_down_is_reached_over_pcie(session: Session, node: SimulatedNode) -> None:
    for link in node.faults.gpu(2).links:
        link.up = False
    graph = links(session, session.gpus)
    assert graph.between(session.gpus[2], session.gpus[3]) == Link(path=PciePath.NUMA_NODE)
    assert graph.island(session.gpus[0]) == set(session.gpus) - {session.gpus[2]}


def test_only_the_gpus_asked_for_are_in_the_graph(session: Session) -> None:
    asked = session.gpus[1:4]
    assert links(session, asked).links.keys() == {frozenset(pair) for pair in combinations(asked, 2)}


def test_direct_links_count_by_pair(tmp_path: Path) -> None:
    pairs = (DirectLinks(gpus=(0, 3), links=2), DirectLinks(gpus=(0, 1), links=1), DirectLinks(gpus=(1, 2), links=2))
    uuids, graph = graph_of(wired(NvLinks(direct=pairs), links=6, speed=25781, version="2-0"), tmp_path)
    counted = {(a, b): graph.between(uuids[a], uuids[b]) for a, b in combinations(range(4), 2)}
    assert {ends: link.nvlinks for ends, link in counted.items() if link.nvlinks} == {(0, 3): 2, (0, 1): 1, (1, 2): 2}
    assert counted[0, 3] == Link(nvlinks=2, bandwidth=2 * 25781, switched=False, path=PciePath.NUMA_NODE)


def test_links_that_lead_nowhere_count_for_nobody(tmp_path: Path) -> None:
    uuids, graph = graph_of(wired(NvLinks(direct=(DirectLinks(gpus=(0, 1), links=4),))), tmp_path)
    assert graph.between(uuids[0], uuids[1]).nvlinks == 4
    assert graph.between(uuids[2], uuids[3]).nvlinks == 0


def test_gpus_on_two_fabrics_do_not_reach_each_other_over_nvlink(tmp_path: Path) -> None:
    switched = (
        Island(gpus=(0, 1, 2, 3), switches=("0000:05:00.0",)),
        Island(gpus=(4, 5, 6, 7), switches=("0000:06:00.0",)),
    )
    uuids, graph = graph_of(wired(NvLinks(switched=switched)), tmp_path)
    assert graph.island(uuids[0]) == set(uuids[:4])
    assert graph.between(uuids[0], uuids[4]) == Link(path=PciePath.SYSTEM)


def test_switches_that_are_not_on_the_pci_bus_join_gpus_all_the_same(tmp_path: Path) -> None:
    uuids, graph = graph_of(wired(NvLinks(switched=(Island(gpus=(0, 1)),))), tmp_path)
    assert graph.between(uuids[0], uuids[1]).nvlinks == 18
    assert graph.between(uuids[0], uuids[1]).switched


def test_nvlinks_that_peers_must_not_use_are_no_links(session: Session, node: SimulatedNode) -> None:
    mig = node.faults.gpu(1).mig
    assert mig is not None
    mig.set_mode(True)
    graph = links(session, session.gpus)
    assert graph.between(session.gpus[0], session.gpus[1]) == Link(path=PciePath.NUMA_NODE)
    assert graph.between(session.gpus[0], session.gpus[2]).nvlinks == 18


@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "UNKNOWN", "FUNCTION_NOT_FOUND"])
def test_a_peer_status_that_cannot_be_asked_forbids_nothing(session: Session, node: SimulatedNode, code: str) -> None:
    node.faults.fail("nvmlDeviceGetP2PStatus", code)
    assert links(session, session.gpus).between(*session.gpus[:2]).nvlinks == 18


def test_a_link_that_does_not_answer_costs_itself(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetNvLinkState", "UNKNOWN", gpu=0, times=3)
    graph = links(session, session.gpus)
    assert graph.between(session.gpus[0], session.gpus[1]).nvlinks == 15
    assert graph.between(session.gpus[1], session.gpus[2]).nvlinks == 18


def test_links_with_an_unknown_far_end_are_not_guessed(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetNvLinkRemoteDeviceType", "NOT_SUPPORTED", gpu=0)
    node.faults.fail("nvmlDeviceGetNvLinkRemotePciInfo_v2", "NOT_SUPPORTED", gpu=0)
    graph = links(session, session.gpus)
    assert graph.between(session.gpus[0], session.gpus[1]).nvlinks == 0
    assert graph.between(session.gpus[1], session.gpus[2]).nvlinks == 18


def test_a_pair_without_a_common_point_has_links_but_no_path(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetTopologyCommonAncestor", "UNKNOWN")
    link = links(session, session.gpus).between(*session.gpus[:2])
    assert link == Link(nvlinks=18, bandwidth=18 * SPEED, switched=True, path=None)


def test_a_pair_of_which_nothing_is_known_is_not_listed(tmp_path: Path) -> None:
    node = wired(NvLinks())
    node.faults.fail("nvmlDeviceGetTopologyCommonAncestor", "NOT_SUPPORTED")
    uuids, graph = graph_of(node, tmp_path)
    assert graph.links == {}
    assert graph.between(uuids[0], uuids[1]) == NO_LINK


def test_a_lost_gpu_has_no_links_and_the_others_keep_theirs(session: Session, node: SimulatedNode) -> None:
    uuids = session.gpus
    node.faults.lose(3)
    graph = links(session, uuids)
    assert len(graph.links) == 21
    assert all(uuids[3] not in ends for ends in graph.links)


def test_a_gpu_that_nobody_lists_has_no_links(session: Session) -> None:
    graph = links(session, [GpuUuid("GPU-elsewhere"), *session.gpus[:2]])
    assert graph.links.keys() == {frozenset(session.gpus[:2])}


def test_a_driver_that_is_gone_is_said_so(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetNvLinkState", "DRIVER_NOT_LOADED")
    with pytest.raises(DriverUnavailable):
        links(session, session.gpus)


def test_the_speed_of_all_links_serves_where_a_link_has_none_of_its_own(tmp_path: Path) -> None:
    node = wired(NvLinks(switched=(Island(gpus=(0, 1)),)))
    for gpu in (0, 1):
        own = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
        board = node.faults.gpu(gpu).board
        node.faults.gpu(gpu).board = msgspec.structs.replace(board, unsupported_fields=(own,))
    uuids, graph = graph_of(node, tmp_path)
    assert graph.between(uuids[0], uuids[1]).bandwidth == 18 * SPEED


@pytest.mark.parametrize(
    ("version", "speed"),
    [("1-0", 20000), ("2-2", 25781), ("3-0", 25000), ("4-0", 26562), ("5-0", 53125), ("6-0", 0)],
)
@pytest.mark.parametrize("code", ["NOT_SUPPORTED", "UNKNOWN"])
def test_a_driver_without_speeds_gives_those_of_the_nvlink_version(
    tmp_path: Path, version: str, speed: int, code: str
) -> None:
    node = wired(NvLinks(switched=(Island(gpus=(0, 1)),)), version=version)
    node.faults.fail("nvmlDeviceGetFieldValues", code)
    uuids, graph = graph_of(node, tmp_path)
    assert graph.between(uuids[0], uuids[1]).nvlinks == 18
    assert graph.between(uuids[0], uuids[1]).bandwidth == 18 * speed


def test_boards_without_nvlink_are_joined_by_pcie_alone(tmp_path: Path) -> None:
    profile = load_profile("h200-8")
    ((name, board),) = profile.boards.items()
    plain = msgspec.structs.replace(board, nvlink=None)
    node = SimulatedNode(msgspec.structs.replace(profile, nvlink=NvLinks(), boards={name: plain}))
    _, graph = graph_of(node, tmp_path)
    assert {link.nvlinks for link in graph.links.values()} == {0}
    assert {link.path for link in graph.links.values()} == {PciePath.NUMA_NODE, PciePath.SYSTEM}


def test_a_port_is_what_a_board_says(tmp_path: Path) -> None:
    port = NvLinkPort(version="5-0", links=18, speed=53125)
    node = wired(NvLinks(switched=(Island(gpus=(0, 1)),)), **msgspec.structs.asdict(port))
    uuids, graph = graph_of(node, tmp_path)
    assert graph.between(uuids[0], uuids[1]).bandwidth == 18 * 53125
