"""Names of GPUs: how they are chosen, and that they stay."""

import json
import logging
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.hardware.names import NameFile, Names, named
from node_agent.hardware.provider import GpuFacts
from node_agent.model.gpu import DeviceName, GpuUuid
from node_agent.model.pci import pci_address


def facts(uuid: str, minor: int | None, index: int = 0) -> GpuFacts:
    return GpuFacts(
        uuid=GpuUuid(uuid), index=index, product="NVIDIA H200", pci=pci_address(f"0000:{index:02x}:00.0"), minor=minor
    )


def names(**pairs: str) -> Names:
    return {GpuUuid(uuid): DeviceName(name) for uuid, name in pairs.items()}


def test_a_new_gpu_is_named_after_its_minor_number() -> None:
    assert named({}, [facts("a", minor=2, index=0), facts("b", minor=0, index=1)]) == names(a="gpu-2", b="gpu-0")


def test_a_gpu_without_minor_number_is_named_after_its_index() -> None:
    assert named({}, [facts("a", minor=None, index=5)]) == names(a="gpu-5")


def test_a_known_gpu_keeps_its_name_when_its_minor_number_moves() -> None:
    known = names(a="gpu-0", b="gpu-1")
    assert named(known, [facts("b", minor=0)]) == known


def test_a_name_is_kept_for_a_gpu_that_is_away() -> None:
    known = names(a="gpu-0", b="gpu-1")
    assert named(known, [facts("b", minor=1), facts("new", minor=0)]) == {**known, **names(new="gpu-2")}


def test_a_replaced_board_takes_no_name_that_another_new_gpu_wants() -> None:
    away = names(old="gpu-1")
    given_now = named(away, [facts("new", minor=1), facts("c", minor=2), facts("d", minor=3)])
    assert given_now == {**away, **names(new="gpu-4", c="gpu-2", d="gpu-3")}


def test_two_gpus_that_want_one_name_get_two() -> None:
    assert named({}, [facts("a", minor=None, index=0), facts("b", minor=0, index=1)]) == names(a="gpu-0", b="gpu-1")


def test_names_do_not_depend_on_the_order_of_enumeration() -> None:
    gpus = [facts("a", minor=0), facts("b", minor=2), facts("c", minor=1)]
    assert len({tuple(sorted(named({}, order).items())) for order in permutations(gpus)}) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 9))), max_size=8))
def test_every_gpu_has_a_name_of_its_own_and_no_name_ever_moves(steps: list[tuple[int, int | None]]) -> None:
    known: Names = {}
    for uuid, minor in steps:
        after = named(known, [facts(str(uuid), minor=minor, index=uuid)])
        assert known.items() <= after.items()
        assert GpuUuid(str(uuid)) in after
        assert len(set(after.values())) == len(after)
        known = after


def test_names_survive_a_restart(tmp_path: Path) -> None:
    NameFile(tmp_path / "names.json").keep(names(a="gpu-3"))
    assert NameFile(tmp_path / "names.json").load() == names(a="gpu-3")


def test_without_a_file_there_are_no_names(tmp_path: Path) -> None:
    assert NameFile(tmp_path / "names.json").load() == {}


def test_unchanged_names_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    NameFile(path).keep(names(a="gpu-3"))
    file = NameFile(path)
    kept = file.load()
    before = path.stat().st_ino
    file.keep(kept)
    assert path.stat().st_ino == before
    file.keep({**kept, **names(b="gpu-4")})
    assert path.stat().st_ino != before


DAMAGED = {
    "half a file": b'{"version": 1, "names": {"GPU-',
    "no object": b"[]",
    "another version": b'{"version": 2, "names": {}}',
    "no names": b'{"version": 1}',
    "a name that is no text": b'{"version": 1, "names": {"a": 3}}',
    "a name that Kubernetes refuses": b'{"version": 1, "names": {"a": "GPU_3"}}',
    "one name for two": b'{"version": 1, "names": {"a": "gpu-3", "b": "gpu-3"}}',
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_set_aside_and_names_start_anew(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "names.json"
    path.write_bytes(content)
    file = NameFile(path)
    assert file.load() == {}
    assert path.with_name("names.json.damaged").read_bytes() == content
    assert "names of gpus cannot be read and may change" in caplog.messages
    file.keep(names(a="gpu-0"))
    assert json.loads(path.read_text()) == {"version": 1, "names": {"a": "gpu-0"}}


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    """A folder that is a file: nobody can write below it, root neither."""
    folder = tmp_path / "state"
    folder.write_text("")
    yield folder


def test_names_that_cannot_be_written_are_said_once_and_tried_again(
    unwritable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = NameFile(unwritable / "names.json")
    file.keep(names(a="gpu-0"))
    file.keep(names(a="gpu-0"))
    assert caplog.messages == ["names of gpus cannot be kept and may change at restart"]
    unwritable.unlink()
    unwritable.mkdir()
    file.keep(names(a="gpu-0"))
    assert NameFile(unwritable / "names.json").load() == names(a="gpu-0")


def test_a_file_that_cannot_be_read_nor_set_aside_costs_only_the_old_names(
    unwritable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert NameFile(unwritable / "names.json").load() == {}
    assert "damaged file cannot be set aside and is overwritten" in caplog.messages


def test_a_read_only_file_gives_names_and_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    NameFile(path).keep(names(a="gpu-7"))
    before = path.read_bytes()
    reader = NameFile(path, read_only=True)

    assert reader.load() == names(a="gpu-7")
    reader.keep(names(a="gpu-7", b="gpu-8"))
    assert path.read_bytes() == before


def test_a_damaged_file_is_left_to_the_agent_by_those_who_only_read(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_text("{")
    assert NameFile(path, read_only=True).load() == {}
    assert path.read_text() == "{"
