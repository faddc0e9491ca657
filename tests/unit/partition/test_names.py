"""Every profile has one legal spelling in each place, and each spelling leads back to the profile."""

import re
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.file import MigProfileName
from node_agent.hardware.simulated import load_profile, profile_names
from node_agent.model.gpu import device_name
from node_agent.model.partition import Placement
from node_agent.partition.names import (
    PartitionName,
    partition_name,
    partition_of,
    piece_name,
    profile_name,
    profile_of,
    resource_name,
)
from tests.unit.partition import boards

SIMULATED = {
    profile.name
    for node in profile_names()
    for board in load_profile(node).boards.values()
    if board.mig
    for profile in board.mig.profiles
}
OTHERS = {
    "1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb", "3g.48gb", "7g.96gb",
    "1g.36gb", "3g.72gb", "7g.144gb", "3g.95gb", "7g.189gb", "1g.34gb+me", "1g.67gb", "3g.135gb", "7g.269gb",
    "3g.139gb", "1g.24gb+gfx", "1g.24gb-me", "1g.24gb+me.all", "2g.48gb+gfx", "2g.48gb-me", "2g.48gb+me.all",
    "4g.96gb+gfx",
    "2g.12gb+me", "1c.2g.20gb", "1c.3g.71gb", "2c.3g.71gb", "4c.7g.141gb", "1c.2g.48gb-me", "3g.39gb", "7g.79gb",
}  # fmt: skip
GPU = device_name("gpu-3")

# What a label's value and the last part of a resource may be, and a device.
QUALIFIED = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=5).filter(lambda word: word != "no")


@st.composite
def names(draw: st.DrawFn) -> str:
    slices = draw(st.integers(1, 16))
    computes = draw(st.none() | st.integers(1, 16).filter(lambda size: size != slices))
    attribute = draw(st.just("") | st.tuples(st.sampled_from("+-"), st.lists(WORDS, min_size=1, max_size=3)))
    spelled = attribute if isinstance(attribute, str) else attribute[0] + ".".join(attribute[1])
    return f"{'' if computes is None else f'{computes}c.'}{slices}g.{draw(st.integers(1, 2048))}gb{spelled}"


def check(profile: str, start: int, compute_start: int | None) -> None:
    resource = resource_name(profile)
    assert QUALIFIED.fullmatch(resource.removeprefix("nvidia.com/"))
    assert profile_of(resource) == profile
    device = partition_name(GPU, profile, Placement(start=start, length=1), compute_start)
    assert DNS_LABEL.fullmatch(device)
    assert partition_of(device) == PartitionName(gpu=GPU, profile=profile, start=start, compute_start=compute_start)


@pytest.mark.parametrize("profile", sorted(SIMULATED | OTHERS))
def test_every_known_profile_has_legal_and_reversible_names(profile: str) -> None:
    assert str(profile_name(profile)) == profile
    for start in range(8):
        check(profile, start, None)
        check(profile, start, start)


@given(names(), st.integers(0, 15), st.none() | st.integers(0, 15))
def test_so_has_every_profile_that_a_driver_may_come_to_name(profile: str, start: int, compute: int | None) -> None:
    check(profile, start, compute)


@given(st.lists(names(), min_size=2, max_size=2, unique=True), st.integers(0, 7))
def test_no_two_profiles_share_a_name(pair: list[str], start: int) -> None:
    one, other = pair
    assert resource_name(one) != resource_name(other)
    place = Placement(start=start, length=1)
    assert partition_name(GPU, one, place) != partition_name(GPU, other, place)


@pytest.mark.parametrize(
    ("profile", "resource", "device"),
    [
        ("1g.18gb", "nvidia.com/mig-1g.18gb", "gpu-3-mig-1g-18gb-6"),
        ("1g.18gb+me", "nvidia.com/mig-1g.18gb.me", "gpu-3-mig-1g-18gb-me-6"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me", "gpu-3-mig-1g-24gb-no-me-6"),
        ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all", "gpu-3-mig-1g-24gb-me-all-6"),
        ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx", "gpu-3-mig-1g-24gb-gfx-6"),
        ("1c.3g.71gb", "nvidia.com/mig-1c.3g.71gb", "gpu-3-mig-1c-3g-71gb-6"),
    ],
)
def test_names_look_like_nvidias(profile: str, resource: str, device: str) -> None:
    assert resource_name(profile) == resource
    assert partition_name(GPU, profile, Placement(start=6, length=1)) == device


def test_compute_instances_in_one_gpu_instance_have_names_of_their_own() -> None:
    place = Placement(start=4, length=4)
    assert partition_name(GPU, "1c.3g.71gb", place, 2) == "gpu-3-mig-1c-3g-71gb-4-c2"


def test_all_pieces_of_a_board_have_different_names() -> None:
    for node in boards.NODES:
        pieces = boards.rules(node).pieces
        assert len({piece_name(GPU, piece) for piece in pieces}) == len(pieces)


def test_a_part_as_large_as_its_instance_is_the_instance() -> None:
    assert str(profile_name("3c.3g.71gb")) == "3g.71gb"
    assert profile_name("1c.3g.71gb+me").whole == "3g.71gb+me"


@pytest.mark.parametrize(
    "text", ["", "gpu", "profile 14", "1g", "1g.18", "1g.18gb+", "1g.18gb+me,gfx", "1g.18gb+no", "x1g.18gb"]
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no MIG profile"):
        profile_name(text)


@pytest.mark.parametrize(
    "text", ["nvidia.com/gpu", "nvidia.com/mig-", "amd.com/mig-1g.18gb", "nvidia.com/mig-1g.18gb+me"]
)
def test_what_is_no_resource_of_a_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no resource of a MIG profile"):
        profile_of(text)


@pytest.mark.parametrize("text", ["gpu-3", "group-0-1", "gpu-3-mig-1g-18gb", "gpu-3-mig-19-0", "-mig-1g-18gb-0"])
def test_what_names_no_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no partition"):
        partition_of(text)


@pytest.mark.parametrize("name", sorted(SIMULATED | OTHERS))
def test_every_profile_may_be_named_in_the_configuration(name: str) -> None:
    assert msgspec.convert([name], tuple[MigProfileName, ...]) == (name,)


@pytest.mark.parametrize("word", ["3g71", "3g.71", "g.71gb", "3g.71gb+", "3g.71GB", ""])
def test_what_is_no_profile_is_refused_there_and_not_only_when_it_is_needed(word: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([word], tuple[MigProfileName, ...])
