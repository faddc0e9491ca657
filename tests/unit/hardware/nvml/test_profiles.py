"""The shapes that GPUs can be cut to, and their names: equal to the driver's, whatever its age."""

from pathlib import Path

import msgspec
import pytest

from node_agent.errors import HardwareError, NotSupported
from node_agent.hardware.nvml.partitions import create, instances, set_mode
from node_agent.hardware.nvml.profiles import profile_name, profiles
from node_agent.hardware.nvml.session import Session
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.model.partition import PartitionProfile, Piece, Placement

MIB = 1 << 20

H200 = ["1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"]


@pytest.mark.parametrize(
    ("slices", "mib", "total_mib", "suffix", "name"),
    [
        (1, 16384, 143771, "", "1g.18gb"),
        (1, 16384, 143771, "+me", "1g.18gb+me"),
        (1, 33024, 143771, "", "1g.35gb"),
        (3, 71168, 143771, "", "3g.71gb"),
        (7, 143104, 143771, "", "7g.141gb"),
        (1, 9984, 81559, "", "1g.10gb"),
        (2, 20096, 81559, "", "2g.20gb"),
        (1, 4864, 40960, "", "1g.5gb"),
        (7, 40192, 40960, "", "7g.40gb"),
        (1, 5952, 24576, "", "1g.6gb"),
        (4, 24064, 24576, "", "4g.24gb"),
        (1, 22528, 183359, "", "1g.23gb"),
        (2, 46592, 189471, "", "2g.47gb"),
        (3, 94000, 193000, "-me", "3g.95gb-me"),
    ],
)
def test_profile_names_follow_the_drivers_rule(slices: int, mib: int, total_mib: int, suffix: str, name: str) -> None:
    assert profile_name(slices, mib, total_mib, suffix) == name


def test_the_profiles_are_those_of_the_board(session: Session) -> None:
    found = {profile.name: profile for profile in profiles(session, session.gpus[0])}
    assert sorted(found) == H200
    assert found["1g.18gb+me"] == PartitionProfile(
        name="1g.18gb+me",
        id=20,
        slices=1,
        memory=16384 * MIB,
        multiprocessors=16,
        limit=1,
        placements=tuple(Placement(start=start, length=1) for start in range(7)),
        copy_engines=1,
        decoders=1,
        jpeg_engines=1,
        optical_flow_engines=1,
    )
    assert found["1g.35gb"].placements == tuple(Placement(start=start, length=2) for start in (0, 2, 4, 6))


def test_profiles_are_told_before_mig_is_on_and_are_the_same_then(session: Session) -> None:
    before = profiles(session, session.gpus[0])
    set_mode(session, session.gpus[0], enabled=True)
    assert profiles(session, session.gpus[0]) == before


def test_a_driver_without_profile_names_gives_profiles_their_usual_names(tmp_path: Path) -> None:
    profile = load_profile("h200-8")
    missing = ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlGpuInstanceGetComputeInstanceProfileInfoV")
    old = msgspec.structs.replace(profile.driver, missing_symbols=missing)
    with install(SimulatedNode(msgspec.structs.replace(profile, driver=old))):
        session = Session(sysfs=tmp_path)
        session.ensure_open()
        session.refresh()
        gpu = session.gpus[0]
        set_mode(session, gpu, enabled=True)
        offered = profiles(session, gpu)
        assert sorted(profile.name for profile in offered) == H200
        piece = Piece(profile=offered[0].name, placement=offered[0].placements[0])
        assert create(session, gpu, piece).piece == piece
        session.close()


def test_a_board_without_mig_is_not_supported_and_has_no_partitions(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetMigMode", "NOT_SUPPORTED", gpu=1)
    with pytest.raises(NotSupported):
        profiles(session, session.gpus[1])
    assert instances(session, session.gpus[1]) == ()


def test_a_guest_that_can_read_the_mode_but_has_no_profiles_is_not_supported(
    session: Session, node: SimulatedNode
) -> None:
    for call in ("nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstanceProfileInfoV"):
        node.faults.fail(call, "NOT_SUPPORTED")
    with pytest.raises(NotSupported, match="offers no MIG profile"):
        profiles(session, session.gpus[1])


def test_profiles_that_cannot_be_asked_are_an_error_and_not_no_profiles(session: Session, node: SimulatedNode) -> None:
    node.faults.fail("nvmlDeviceGetGpuInstanceProfileInfo", "UNKNOWN")
    with pytest.raises(HardwareError, match="NVML error 999") as caught:
        profiles(session, session.gpus[1])
    assert not isinstance(caught.value, NotSupported)
