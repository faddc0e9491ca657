"""Applying a tree: what differs is written, what an earlier tree wrote is removed, everything else is left alone."""

import os
import stat
from pathlib import Path

import pytest

from node_agent.errors import SimulationError
from node_agent.hardware.simulated.tree.entries import MANIFEST, CharDevice, File, Folder, Link, Socket, Tree, apply
from tests.unit.allocation.support import full_disk

MAY_MAKE_DEVICES = os.geteuid() == 0


def file(text: str = "", mode: int = 0o644) -> File:
    return File(content=text.encode(), mode=mode)


def names(root: Path) -> set[str]:
    """All paths below a root but the manifest."""
    return {str(path.relative_to(root)) for path in root.rglob("*")} - {MANIFEST}


def test_every_kind_of_entry_is_written(tmp_path: Path) -> None:
    tree: Tree = {
        "a/file": file("hello"),
        "a/program": file("#!/bin/sh", 0o755),
        "a/link": Link(target="file"),
        "b/empty": Folder(),
        "c/socket": Socket(),
    }
    apply(tree, tmp_path, "placeholder")
    assert (tmp_path / "a/file").read_text() == "hello"
    assert stat.S_IMODE((tmp_path / "a/program").stat().st_mode) == 0o755
    assert (tmp_path / "a/link").readlink() == Path("file")
    assert list((tmp_path / "b/empty").iterdir()) == []
    assert (tmp_path / "c/socket").is_socket()


def test_the_root_is_made(tmp_path: Path) -> None:
    apply({"file": file("x")}, tmp_path / "some" / "where", "placeholder")
    assert (tmp_path / "some/where/file").read_text() == "x"


def test_a_placeholder_names_its_device(tmp_path: Path) -> None:
    apply({"dev/nvidia0": CharDevice(major=195, minor=7)}, tmp_path, "placeholder")
    assert (tmp_path / "dev/nvidia0").read_text() == "c 195:7\n"
    assert stat.S_IMODE((tmp_path / "dev/nvidia0").stat().st_mode) == 0o666


@pytest.mark.skipif(not MAY_MAKE_DEVICES, reason="needs the right to make device nodes")
@pytest.mark.parametrize("devices", ["auto", "real"])
def test_a_device_is_real_where_it_may_be_made(tmp_path: Path, devices: str) -> None:
    assert devices in ("auto", "real")
    apply({"dev/cap": CharDevice(major=238, minor=3, mode=0o400)}, tmp_path, "real" if devices == "real" else "auto")
    found = (tmp_path / "dev/cap").stat()
    assert stat.S_ISCHR(found.st_mode)
    assert (os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(found.st_mode)) == (238, 3, 0o400)


def refuse(*_: object) -> None:
    raise PermissionError("Operation not permitted")


def test_without_the_right_to_make_devices_there_are_placeholders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mknod", refuse)
    apply({"dev/nvidia0": CharDevice(major=195, minor=0)}, tmp_path, "auto")
    assert (tmp_path / "dev/nvidia0").read_text() == "c 195:0\n"


def test_who_insists_on_devices_is_told_that_it_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "mknod", refuse)
    with pytest.raises(PermissionError):
        apply({"dev/nvidia0": CharDevice(major=195, minor=0)}, tmp_path, "real")


def test_what_is_the_same_is_not_written_again(tmp_path: Path) -> None:
    tree: Tree = {
        "file": file("x"),
        "link": Link(target="file"),
        "socket": Socket(),
        "dev": CharDevice(major=195, minor=0),
    }
    apply(tree, tmp_path, "auto")
    before = {path: (tmp_path / path).lstat().st_ino for path in tree}
    apply(tree, tmp_path, "auto")
    assert {path: (tmp_path / path).lstat().st_ino for path in tree} == before


def test_what_differs_is_replaced(tmp_path: Path) -> None:
    before: Tree = {"file": file("x"), "link": Link(target="x"), "turn": file("x")}
    after: Tree = {"file": file("y"), "link": Link(target="y"), "turn": Link(target="file")}
    apply(before, tmp_path, "placeholder")
    apply(after, tmp_path, "placeholder")
    assert (tmp_path / "file").read_text() == "y"
    assert (tmp_path / "link").readlink() == Path("y")
    assert (tmp_path / "turn").is_symlink()


def test_what_is_no_more_is_removed_with_its_empty_folders(tmp_path: Path) -> None:
    tree: Tree = {"a/b/c/gone": file("x"), "a/b/d/gone": Link(target="x"), "a/stays": file("x"), "e/empty": Folder()}
    apply(tree, tmp_path, "placeholder")
    apply({"a/stays": file("x")}, tmp_path, "placeholder")
    assert names(tmp_path) == {"a", "a/stays"}


def test_what_others_put_there_is_left_alone(tmp_path: Path) -> None:
    apply({"a/ours": file("x")}, tmp_path, "placeholder")
    (tmp_path / "a/theirs").write_text("precious", encoding="utf-8")
    apply({}, tmp_path, "placeholder")
    assert names(tmp_path) == {"a", "a/theirs"}
    assert (tmp_path / "a/theirs").read_text(encoding="utf-8") == "precious"


def test_what_others_put_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious", encoding="utf-8")
    with pytest.raises(SimulationError, match="a exists and was not written by a simulated node: use another folder"):
        apply({"b": file("x"), "a": file("x")}, tmp_path, "placeholder")
    assert names(tmp_path) == {"a"}


def test_a_tree_can_be_gone_already(tmp_path: Path) -> None:
    tree: Tree = {"a/b": file("x"), "c": Folder()}
    apply(tree, tmp_path, "placeholder")
    (tmp_path / "a/b").unlink()
    (tmp_path / "c").rmdir()
    apply({}, tmp_path, "placeholder")
    assert names(tmp_path) == set()


def test_a_broken_writer_leaves_what_it_wrote_removable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree: Tree = {"a": file("x"), "b": CharDevice(major=1, minor=1)}
    with monkeypatch.context() as patch:
        patch.setattr(os, "mknod", refuse)
        with pytest.raises(PermissionError):
            apply(tree, tmp_path, "real")
    apply({}, tmp_path, "placeholder")
    assert names(tmp_path) == set()


def test_a_tree_whose_writer_dies_while_it_notes_what_is_its_own_can_be_written_again(tmp_path: Path) -> None:
    before: Tree = {"the-first": file("1"), "the-second": file("2")}
    apply(before, tmp_path, "placeholder")
    with full_disk(), pytest.raises(OSError, match="File too large"):
        apply({"the-first": file("1"), "the-third": file("3")}, tmp_path, "placeholder")
    after: Tree = {"the-first": file("1"), "the-fourth": file("4")}
    apply(after, tmp_path, "placeholder")
    assert names(tmp_path) == set(after)
