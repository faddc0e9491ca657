"""What parts of a GPU are at work between two looks, and that no sample is left behind."""

import time
from pathlib import Path

import pytest
from msgspec.structs import asdict

from node_agent.hardware.figures import Figures
from node_agent.hardware.nvml import activity, partitions
from node_agent.hardware.nvml.readings import Reader
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode
from node_agent.model.partition import Piece, Placement
from tests.unit.hardware.nvml.test_readings import looking_at


def look(reader: Reader, session: Session, index: int = 4) -> Figures:
    found = reader.read(session.gpus[index], figures=True).figures
    assert found is not None
    return found


def test_the_first_look_has_nothing_to_compare_with(session: Session) -> None:
    found = look(Reader(session), session)
    assert (found.activities, found.failed) == ({}, {})


def test_a_second_look_tells_what_was_at_work_since_the_first(session: Session, node: SimulatedNode) -> None:
    reader = Reader(session)
    node.faults.load(4, 0.5)
    look(reader, session)
    time.sleep(0.02)
    told = look(reader, session).activities[None]
    assert asdict(told) == pytest.approx(
        {
            "graphics": 0.5,
            "tensor": 0.2,
            "memory": 0.3,
            "pcie_sent": 4000 * (1 << 20),
            "pcie_received": 6000 * (1 << 20),
        },
        rel=0.05,
    )


def test_two_looks_that_are_far_apart_tell_nothing(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(session)
    look(reader, session)
    monkeypatch.setattr(activity, "LONGEST_SECONDS", 0.0)
    assert not look(reader, session).activities


def test_each_instance_tells_of_itself(session: Session, node: SimulatedNode) -> None:
    gpu, reader = session.gpus[4], Reader(session)
    partitions.set_mode(session, gpu, True)
    pieces = [Piece(profile="1g.18gb", placement=Placement(start=start, length=1)) for start in (0, 1)]
    made = [partitions.create(session, gpu, piece) for piece in pieces]
    look(reader, session)
    time.sleep(0.01)
    found = look(reader, session)
    assert found.activities.keys() == {instance.id for instance in made}
    assert not found.failed

    partitions.destroy(session, gpu, pieces[0])
    assert look(reader, session).activities.keys() == {made[1].id}
    assert node.samples == 1


def test_however_often_it_is_looked_one_sample_of_each_gpu_is_kept(session: Session, node: SimulatedNode) -> None:
    reader = Reader(session)
    for _ in range(20):
        for index in range(len(session.gpus)):
            look(reader, session, index)
    assert node.samples == len(session.gpus)


def test_who_may_not_ask_goes_without_says_why_and_leaves_no_sample(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlGpmSampleGet", "NO_PERMISSION", gpu=4)
    found = look(Reader(session), session)
    assert found.activities == {}
    assert "privileged" in found.failed["activities"]
    assert found.sm_clock is not None
    assert node.samples == 0


def test_a_sample_that_cannot_be_taken_leaves_the_one_before_to_be_compared_with(
    session: Session, node: SimulatedNode
) -> None:
    reader = Reader(session)
    look(reader, session)
    node.faults.fail("nvmlGpmSampleGet", "UNKNOWN", gpu=4, times=1)
    assert "activities" in look(reader, session).failed
    assert node.samples == 1
    assert look(reader, session).activities.keys() == {None}
    assert node.samples == 1


def test_a_library_that_was_opened_anew_begins_anew(session: Session, node: SimulatedNode) -> None:
    reader = Reader(session)
    look(reader, session)
    session.close()
    session.ensure_open()
    session.refresh()
    assert look(reader, session).failed == {}
    assert node.samples == 1


@pytest.mark.parametrize("profile", ["a100-40gb-8", "l4-2", "t4-4"])
def test_an_older_gpu_has_none_and_nothing_has_failed(profile: str, tmp_path: Path) -> None:
    with looking_at(profile, tmp_path) as (_, session):
        reader = Reader(session)
        for _ in range(2):
            found = look(reader, session, 0)
    assert (found.activities, found.failed) == ({}, {})


def test_a_library_before_these_metrics_has_none(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlGpmQueryDeviceSupport", "FUNCTION_NOT_FOUND")
    found = look(Reader(session), session)
    assert (found.failed, "activities" in found.failed) == ({}, False)
