"""A release is the commit's and nobody else's: made twice it is the same, and what is in it is what was meant."""

import hashlib
import os
import zipfile
from email import message_from_bytes
from pathlib import Path

import click
import pytest

from node_agent import __version__
from tools import release
from tools.release import ROOT, build, committed, notes

CHANGELOG = """# Changelog

## Unreleased

### Added

- Something new.

## 0.2.0 - 2027-01-02

### Fixed

- Something old.

## 0.1.0 - 2026-12-01

- The first.
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What the wheel is made of, laid out and built twice by people with different habits."""
    return [_built(tmp_path_factory.mktemp("release"), umask) for umask in (0o022, 0o077)]


def _built(folder: Path, umask: int) -> Path:
    before = os.umask(umask)
    try:
        epoch = committed(ROOT, folder / "source", "pyproject.toml", "README.md", "LICENSE", "node_agent")
        os.utime(folder / "source" / "node_agent" / "__init__.py")
        build(folder / "source", folder / "out", epoch)
    finally:
        os.umask(before)
    return folder / "out"


def test_wheel_and_source_archive_are_the_same_each_time(built: list[Path]) -> None:
    one, other = (
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} for folder in built
    )
    assert set(one) == {
        f"gpu_node_agent-{__version__}-py3-none-any.whl",
        f"gpu_node_agent-{__version__}.tar.gz",
    }
    assert one == other


def test_the_wheel_has_the_agent_its_licence_and_nothing_of_the_tests(built: list[Path]) -> None:
    (wheel,) = built[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        about = message_from_bytes(opened.read(f"gpu_node_agent-{__version__}.dist-info/METADATA"))
    assert {name.partition("/")[0] for name in names} == {"node_agent", f"gpu_node_agent-{__version__}.dist-info"}
    assert f"gpu_node_agent-{__version__}.dist-info/licenses/LICENSE" in names
    assert "node_agent/hardware/simulated/profiles/h200-8.yaml" in names
    assert (about["Version"], about["License-Expression"]) == (__version__, "Apache-2.0")


def test_the_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "b.whl").write_bytes(b"wheel")
    (tmp_path / "a.json").write_bytes(b"{}")
    (tmp_path / release.SUMS).write_text("of before")
    assert release.sums(tmp_path).splitlines() == [
        f"{hashlib.sha256(b'{}').hexdigest()}  a.json",
        f"{hashlib.sha256(b'wheel').hexdigest()}  b.whl",
    ]


@pytest.mark.parametrize(
    ("heading", "said"),
    [
        ("Unreleased", "### Added\n\n- Something new.\n"),
        ("0.2.0", "### Fixed\n\n- Something old.\n"),
        ("0.1.0", "- The first.\n"),
    ],
)
def test_the_notes_are_what_the_changelog_says_of_the_version(heading: str, said: str) -> None:
    assert notes(CHANGELOG, heading) == said


@pytest.mark.parametrize("changelog", [CHANGELOG, "## 0.3.0 - 2027-02-03\n\n## 0.2.0 - 2027-01-02\n\n- Old.\n"])
def test_a_version_of_which_the_changelog_says_nothing_is_not_released(changelog: str) -> None:
    with pytest.raises(click.ClickException, match=r"'## 0\.3\.0 - YYYY-MM-DD'"):
        notes(changelog, "0.3.0")


def test_a_folder_that_has_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old.whl").touch()
    with pytest.raises(click.ClickException, match="has files already"):
        release.main.main(["--out", str(tmp_path)], standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["old.whl"]
