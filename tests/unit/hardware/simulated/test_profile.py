"""Profiles: what is shipped holds together, and what is wrong is refused with the place of the mistake."""

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from node_agent.errors import SimulationError
from node_agent.hardware.simulated import SimulatedNode, load_profile, profile_names
from node_agent.hardware.simulated.profile import Board, MigProfile, cpu_numbers, nvml_constant, nvml_members
from tests.unit.hardware.simulated.support import EVERY_PROFILE, WITH_GPUS

GPU = {"board": "l4", "bus": "0000:3b:00.0", "minor": 0, "numa": 0, "bridges": ["0000:3a:00.0"]}
NODE: dict[str, Any] = {
    "summary": "one L4",
    "driver": {"version": "570.1", "cuda": "12.8"},
    "numa": {0: "0-7"},
    "gpus": [GPU],
}


@cache
def boards_with_mig() -> dict[str, Board]:
    boards = {name: board for profile in EVERY_PROFILE for name, board in load_profile(profile).boards.items()}
    return {name: board for name, board in boards.items() if board.mig and board.mig.profiles}


def mig_profiles() -> list[tuple[str, MigProfile]]:
    tables = {name: board.mig for name, board in boards_with_mig().items() if board.mig}
    return [(name, shape) for name, table in tables.items() for shape in table.profiles]


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**NODE, **changes}), encoding="utf-8")
    return path


def l4() -> dict[str, Any]:
    board: dict[str, Any] = msgspec.to_builtins(load_profile("l4-2").boards["l4"])
    return board


def refusal(path: Path) -> str:
    with pytest.raises(SimulationError) as refused:
        SimulatedNode(load_profile(path))
    return str(refused.value)


def test_every_shipped_profile_is_tested() -> None:
    assert profile_names() == sorted(EVERY_PROFILE)


@pytest.mark.parametrize("name", EVERY_PROFILE)
def test_a_shipped_profile_says_what_it_is(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.summary
    assert not profile.summary.endswith(".")


@pytest.mark.parametrize("name", EVERY_PROFILE)
def test_the_number_in_a_profiles_name_is_its_number_of_gpus(name: str) -> None:
    expected = 0 if name == "none" else int(name.rpartition("-")[2])
    assert len(load_profile(name).gpus) == expected


@pytest.mark.parametrize("name", WITH_GPUS)
def test_a_shipped_profile_carries_its_boards(name: str) -> None:
    profile = load_profile(name)
    assert {place.board for place in profile.gpus} == profile.boards.keys()


def test_one_profile_keeps_index_minor_and_module_apart() -> None:
    gpus = load_profile("h200-8").gpus
    assert all(index != place.minor for index, place in enumerate(gpus))
    assert any(
        place.module is not None and place.module - 1 not in (index, place.minor) for index, place in enumerate(gpus)
    )


def test_a_profile_can_be_a_file_of_ones_own(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path))
    assert profile.name == "mine"
    assert profile.boards["l4"].name == "NVIDIA L4"


def test_a_path_may_be_given_as_text(tmp_path: Path) -> None:
    assert load_profile(str(written(tmp_path))).summary == "one L4"


def test_a_file_may_bring_its_own_board(tmp_path: Path) -> None:
    board = {
        "name": "NVIDIA Test",
        "brand": "nvidia",
        "architecture": "hopper",
        "compute_capability": [9, 0],
        "pci": {"device": 0x1234, "subsystem": 1},
        "sms": 1,
        "cores_per_sm": 1,
        "clocks": {"max": {"sm": 1, "memory": 1, "video": 1}, "idle": {"sm": 1, "memory": 1, "video": 1}},
        "vbios": "1",
    }
    profile = load_profile(written(tmp_path, boards={"test": board}, gpus=[{**GPU, "board": "test"}]))
    assert profile.board_of(profile.gpus[0]).name == "NVIDIA Test"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SimulationError, match=r"no profile is named 'h300-8'; there are a100-40gb-16, .*h200-8"):
        load_profile("h300-8")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=r"absent\.yaml: cannot be read: No such file"):
        load_profile(tmp_path / "absent.yaml")


def test_text_that_is_no_yaml_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("gpus: [", encoding="utf-8")
    with pytest.raises(SimulationError, match=r"broken\.yaml: while parsing"):
        load_profile(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": []}, "unknown field `gpu`"),
        ({"summary": None}, r"Expected `str`, got `null` - at `\$\.summary`"),
        ({"driver": {"version": "570.1"}}, r"missing required field `cuda` - at `\$\.driver`"),
        ({"numa": {0: "0..7"}}, r"Expected `str` matching regex .* - at `\$\.numa"),
        ({"machine": "riscv"}, r"Invalid enum value 'riscv' - at `\$\.machine`"),
        ({"gpus": [{**GPU, "bus": "3b:00.0"}]}, r"- at `\$\.gpus\[0\]\.bus`"),
        ({"gpus": [{**GPU, "bus": 19.0}]}, r"Expected `str`, got `float` - at `\$\.gpus\[0\]\.bus`"),
        ({"gpus": [{**GPU, "minor": 248}]}, r"Expected `int` <= 247 - at `\$\.gpus\[0\]\.minor`"),
        ({"gpus": [{**GPU, "colour": "green"}]}, r"unknown field `colour` - at `\$\.gpus\[0\]`"),
        ({"gpus": [{**GPU, "board": "l5"}]}, r"no board is named 'l5' - at `\$\.gpus\[0\]\.board`; known: .*l40s"),
        ({"gpus": [{**GPU, "numa": 3}]}, r"gpus\[0\]\.numa is 3, but `numa` has only \[0\]"),
        ({"gpus": [GPU, {**GPU, "bus": "0000:af:00.0"}]}, r"two gpus share a minor: \[0, 0\]"),
        ({"gpus": [{**GPU, "minor": 1}, {**GPU, "bus": "0000:01:00.0"}]}, "in the order of their bus ids"),
        ({"gpus": [GPU, {**GPU, "minor": 1}]}, "listed once each"),
        ({"nvlink": {"direct": [{"gpus": [0, 1], "links": 1}]}}, "nvlink names GPU 1, but there are only 1"),
        ({"nvlink": {"switched": [{"gpus": [2]}]}}, "nvlink names GPU 2"),
        (
            {"driver": {"version": "1", "cuda": "1", "missing_symbols": ["nvmlDeviceGetNam"]}},
            "missing_symbols: no call is",
        ),
        ({"gpus": [{**GPU, "mig": []}]}, r"gpus\[0\]\.mig: NVIDIA L4 has no MIG"),
        ({"gpus": [{**GPU, "board": "a30", "mig": ["1g.5gb@0"]}]}, r"'1g\.5gb@0' does not fit; the form is 1g\.6gb@0"),
        ({"gpus": [{**GPU, "board": "a30", "mig": ["1g.6gb@0", "2g.12gb@0"]}]}, r"'2g\.12gb@0' does not fit"),
        ({"gpus": [{**GPU, "board": "a30", "mig": ["1g.6gb"]}]}, r"'1g\.6gb' does not fit"),
    ],
)
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = written(tmp_path, **changes)
    assert re.search(message, refusal(path))


def test_a_refusal_names_the_file(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, gpu=[])).startswith(str(tmp_path / "mine.yaml"))


def test_more_links_than_a_board_has_are_refused(tmp_path: Path) -> None:
    pair = [{**GPU, "board": "a30"}, {**GPU, "board": "a30", "bus": "0000:af:00.0", "minor": 1}]
    path = written(tmp_path, gpus=pair, nvlink={"direct": [{"gpus": [0, 1], "links": 5}]})
    assert "gpus[0] has 5 NVLinks plugged in, but its board has only 4" in refusal(path)


def test_a_misspelt_unsupported_call_names_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, boards={"l4": {**l4(), "unsupported": ["nvmlDeviceGetSeriel"]}})
    assert "boards.l4.unsupported: no call is 'nvmlDeviceGetSeriel'; there is nvmlDeviceGetSerial" in refusal(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("brand", "nvidea", "'nvidea' is none of unknown, quadro, tesla"),
        ("architecture", "hoper", "'hoper' is none of kepler"),
        ("nvlink", {"version": "9.9", "links": 1, "speed": 1}, "'9.9' is none of invalid, 1-0"),
    ],
)
def test_a_board_uses_nvmls_own_names(tmp_path: Path, field: str, value: object, message: str) -> None:
    assert message in refusal(written(tmp_path, boards={"l4": {**l4(), field: value}}))


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [("", []), ("3", [3]), ("0-2,8", [0, 1, 2, 8]), ("0-1,4-5", [0, 1, 4, 5])],
)
def test_cpu_lists_are_the_kernels(listed: str, numbers: list[int]) -> None:
    assert cpu_numbers(listed) == numbers


def test_names_of_nvmls_enumerations_leave_out_their_counts() -> None:
    assert nvml_members("NVML_GPU_FABRIC_STATE_") == {
        "not-supported": 0,
        "not-started": 1,
        "in-progress": 2,
        "completed": 3,
    }
    assert "count" not in nvml_members("NVML_MEMORY_LOCATION_")


def test_versions_may_be_written_with_a_dot() -> None:
    assert nvml_constant("NVML_NVLINK_VERSION_", "4.0") == 6


@pytest.mark.parametrize(("board", "shape"), mig_profiles(), ids=lambda value: getattr(value, "name", value))
def test_a_mig_profiles_name_follows_from_its_memory(board: str, shape: MigProfile) -> None:
    memory = boards_with_mig()[board].memory
    assert memory is not None
    eighths = math.ceil(8 * shape.mib / memory.total_mib)
    gigabytes = math.floor(eighths / 8 * math.ceil(memory.total_mib / 1024) + 0.5)
    suffix = "+me" if "rev1" in shape.kind else ""
    assert shape.name == f"{shape.slices}g.{gigabytes}gb{suffix}"


@pytest.mark.parametrize(("board", "shape"), mig_profiles(), ids=lambda value: getattr(value, "name", value))
def test_a_mig_profiles_count_is_what_fits(board: str, shape: MigProfile) -> None:
    table = boards_with_mig()[board].mig
    assert table is not None
    expected = 1 if shape.name.endswith("+me") else min(len(shape.starts), table.slices // shape.slices)
    assert shape.count == expected
    assert max(shape.starts) + shape.size <= table.memory_slices


def test_mig_names_round_half_away_from_zero() -> None:
    names = {
        name: {shape.name for shape in board.mig.profiles} for name, board in boards_with_mig().items() if board.mig
    }
    assert "1g.23gb" in names["b200-sxm"]
    assert "3g.71gb" in names["h200-sxm"]
    assert "2g.47gb" in names["gb200"]
