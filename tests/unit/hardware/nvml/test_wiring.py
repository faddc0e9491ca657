"""Which links are down, and whom that concerns: a dead link looks like one with nothing plugged into it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pynvml
import pytest

from node_agent.errors import HardwareError
from node_agent.hardware.nvml import partitions
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.nvml.wiring import Wiring
from node_agent.hardware.provider import GpuLinks
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.model.gpu import GpuUuid

Look = tuple[SimulatedNode, Session, Wiring]

ASKS_FAR_END = ("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2")


@pytest.fixture
def look(tmp_path: Path) -> Iterator[Callable[[str], Look]]:
    """The wiring of a node by its profile's name."""
    with ExitStack() as stack:

        def start(profile: str) -> Look:
            node = stack.enter_context(install(SimulatedNode(load_profile(profile))))
            session = Session(sysfs=tmp_path)
            session.ensure_open()
            session.refresh()
            stack.callback(session.close)
            return node, session, Wiring(session)

        yield start


def others(session: Session, gpu: GpuUuid) -> frozenset[GpuUuid]:
    return frozenset(session.gpus) - {gpu}


def hide_far_ends_of(node: SimulatedNode) -> None:
    """Let the driver say nothing of where links lead."""
    for call in ASKS_FAR_END:
        node.faults.fail(call, "NOT_SUPPORTED")


@pytest.mark.parametrize(
    ("profile", "up"), [("h200-8", 18), ("a100-80gb-8", 12), ("v100-8", 6), ("b200-8", 18), ("a100-pcie-4", 12)]
)
def test_on_a_healthy_node_all_links_are_up(look: Callable[[str], Look], profile: str, up: int) -> None:
    _, session, wiring = look(profile)
    assert [wiring.links(gpu) for gpu in session.gpus] == [GpuLinks(up=up)] * len(session.gpus)


@pytest.mark.parametrize("profile", ["l40s-8", "t4-4", "gb10-1"])
def test_a_board_without_nvlink_has_no_links_to_speak_of(look: Callable[[str], Look], profile: str) -> None:
    _, session, wiring = look(profile)
    assert {wiring.links(gpu) for gpu in session.gpus} == {None}


def test_a_board_is_asked_only_once_which_links_it_has(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("l40s-8")
    wiring.links(session.gpus[0])
    node.faults.fail("nvmlDeviceGetNvLinkState", "UNKNOWN")
    assert wiring.links(session.gpus[0]) is None
    with pytest.raises(HardwareError):
        wiring.links(session.gpus[1])


def test_links_that_nothing_is_plugged_into_are_not_down(look: Callable[[str], Look]) -> None:
    _, session, wiring = look("mixed-5")
    found = [wiring.links(gpu) for gpu in session.gpus]
    assert all(links is None or not links.down for links in found)


def test_a_dead_link_into_a_switch_concerns_all_other_gpus(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("h200-8")
    node.faults.link(2, 5, up=False)
    gpu = session.gpus[2]
    assert wiring.links(gpu) == GpuLinks(up=17, down={5: others(session, gpu)})
    assert wiring.links(session.gpus[3]) == GpuLinks(up=18)


def test_a_switched_board_needs_no_word_on_a_dead_link(look: Callable[[str], Look]) -> None:
    """All its other links lead to switches, so that this one does, too."""
    node, session, wiring = look("h200-8")
    node.faults.link(2, 5, up=False)
    wiring.links(session.gpus[2])
    hide_far_ends_of(node)
    node.faults.link(2, 6, up=False)
    assert (links := wiring.links(session.gpus[2])) is not None
    assert links.down.keys() == {5, 6}


def test_a_dead_link_between_two_gpus_concerns_these_two(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("v100-8")
    node.faults.link(0, 0, up=False)
    far = node.faults.gpu(0).links[0].peer
    assert far is not None
    assert wiring.links(session.gpus[0]) == GpuLinks(up=5, down={0: frozenset({session.gpus[far]})})
    assert (links := wiring.links(session.gpus[far])) is not None
    assert set(links.down.values()) == {frozenset({session.gpus[0]})}


def test_a_link_that_was_up_is_known_when_it_is_down(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("v100-8")
    wiring.links(session.gpus[0])
    hide_far_ends_of(node)
    far = node.faults.gpu(0).links[0].peer
    node.faults.link(0, 0, up=False)
    assert far is not None
    assert wiring.links(session.gpus[0]) == GpuLinks(up=5, down={0: frozenset({session.gpus[far]})})
    node.faults.link(0, 0, up=True)
    assert wiring.links(session.gpus[0]) == GpuLinks(up=6)


def test_a_link_that_was_down_from_the_start_and_is_not_told_of_passes_for_an_empty_one(
    look: Callable[[str], Look],
) -> None:
    node, session, wiring = look("v100-8")
    hide_far_ends_of(node)
    node.faults.link(0, 0, up=False)
    assert wiring.links(session.gpus[0]) == GpuLinks(up=5)


def test_a_dead_link_that_leads_nobody_knows_where_concerns_all(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("v100-8")
    hide_far_ends_of(node)
    wiring.links(session.gpus[0])
    node.faults.link(0, 0, up=False)
    assert wiring.links(session.gpus[0]) == GpuLinks(up=5, down={0: others(session, session.gpus[0])})


def test_the_far_end_is_remembered_when_its_gpu_is_lost(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("v100-8")
    wiring.links(session.gpus[0])
    far = node.faults.gpu(0).links[0].peer
    assert far is not None
    lost = session.gpus[far]
    node.faults.lose(far)
    node.faults.link(0, 0, up=False)
    session.refresh()
    assert wiring.links(session.gpus[0]) == GpuLinks(up=5, down={0: frozenset({lost})})


def test_a_gpu_that_is_cut_may_have_its_links_switched_off(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("a100-80gb-8")
    gpu = session.gpus[0]
    partitions.set_mode(session, gpu, enabled=True)
    node.faults.restore(0)
    for link in range(12):
        node.faults.link(0, link, up=False)
    assert wiring.links(gpu) is None


def test_a_driver_that_lacks_the_field_is_asked_by_the_call(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("h200-8")
    found = node.faults.gpu(1)
    found.board = msgspec.structs.replace(found.board, unsupported_fields=(pynvml.NVML_FI_DEV_NVLINK_GET_STATE,))
    node.faults.link(1, 7, up=False)
    assert wiring.links(session.gpus[1]) == GpuLinks(up=17, down={7: others(session, session.gpus[1])})


def test_another_gpu_that_is_lost_takes_no_links_with_it(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("v100-8")
    node.faults.lose(5)
    node.faults.link(0, 0, up=False)
    far = node.faults.gpu(0).links[0].peer
    assert far not in (None, 5)
    assert (links := wiring.links(session.gpus[0])) is not None
    assert links.up == 5
    assert links.down.keys() == {0}


# Errors


class Clock:
    """Seconds that the test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def counted(wiring: Wiring, gpu: GpuUuid, clock: Clock, seconds: float) -> frozenset[int]:
    """The noisy links of a GPU after so many seconds."""
    clock.now += seconds
    links = wiring.links(gpu)
    assert links is not None
    return frozenset(links.noisy)


def test_a_link_with_many_errors_in_little_time_is_noisy_until_they_end(look: Callable[[str], Look]) -> None:
    node, session, _ = look("h200-8")
    clock, gpu = Clock(), session.gpus[3]
    wiring = Wiring(session, clock)
    node.faults.link_errors(3, 4, "crc-flit", 1_000_000)
    assert counted(wiring, gpu, clock, 0) == frozenset(), "errors of before tell nothing of now"

    node.faults.link_errors(3, 4, "crc-flit", 2000)
    node.faults.link_errors(3, 4, "crc-data", 1000)
    node.faults.link_errors(3, 9, "crc-data", 2999)
    assert counted(wiring, gpu, clock, 30) == {4}
    assert (links := wiring.links(gpu)) is not None
    assert links.noisy == {4: others(session, gpu)}
    assert links.up == 18

    assert counted(wiring, gpu, clock, 30) == frozenset()


def test_a_count_that_comes_too_soon_tells_nothing(look: Callable[[str], Look]) -> None:
    node, session, _ = look("h200-8")
    clock, gpu = Clock(), session.gpus[3]
    wiring = Wiring(session, clock)
    counted(wiring, gpu, clock, 0)
    node.faults.link_errors(3, 4, "crc-data", 400)
    assert counted(wiring, gpu, clock, 1) == frozenset()
    assert counted(wiring, gpu, clock, 29) == frozenset()
    node.faults.link_errors(3, 4, "crc-data", 5000)
    assert counted(wiring, gpu, clock, 30) == {4}
    assert counted(wiring, gpu, clock, 1) == {4}, "it is what it was until it is counted again"


def test_a_noisy_link_that_goes_down_is_down(look: Callable[[str], Look]) -> None:
    node, session, _ = look("h200-8")
    clock, gpu = Clock(), session.gpus[3]
    wiring = Wiring(session, clock)
    counted(wiring, gpu, clock, 0)
    node.faults.link_errors(3, 4, "crc-data", 5000)
    node.faults.link(3, 4, up=False)
    clock.now += 30
    assert wiring.links(gpu) == GpuLinks(up=17, down={4: others(session, gpu)})


def test_links_that_count_no_errors_are_not_noisy(look: Callable[[str], Look]) -> None:
    node, session, _ = look("h200-8")
    found = node.faults.gpu(3)
    found.board = msgspec.structs.replace(found.board, unsupported_fields=(pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,))
    clock = Clock()
    wiring = Wiring(session, clock)
    counted(wiring, session.gpus[3], clock, 0)
    node.faults.link_errors(3, 4, "crc-data", 5000)
    assert counted(wiring, session.gpus[3], clock, 30) == frozenset()


def test_a_state_that_cannot_be_read_is_an_error(look: Callable[[str], Look]) -> None:
    node, session, wiring = look("h200-8")
    node.faults.fail("nvmlDeviceGetNvLinkState", "UNKNOWN", gpu=1)
    with pytest.raises(HardwareError, match="NVML error 999"):
        wiring.links(session.gpus[1])
    node.faults.clear()
    assert wiring.links(session.gpus[1]) == GpuLinks(up=18)
