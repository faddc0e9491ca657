import json
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import pytest

from node_agent.cdi.edits import ContainerEdits, Device, DeviceNode, Spec, encode
from node_agent.cdi.writer import SpecWriter
from node_agent.errors import CdiError, InvalidSpec
from tests.fakes.names import KIND

FILE = "node-agent.gpu.nvidia.com-gpu.json"
CLAIM = "node-agent.gpu.nvidia.com/claim"


def spec(minor: int = 0, *, version: str = "0.5.0", kind: str = KIND) -> Spec:
    edits = ContainerEdits(device_nodes=(DeviceNode(path=f"/dev/nvidia{minor}"),))
    return Spec(cdi_version=version, kind=kind, devices=(Device(name=str(minor), container_edits=edits),))


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_spec_is_written_under_the_name_of_its_kind(tmp_path: Path) -> None:
    assert SpecWriter(tmp_path).write(spec())
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).read_bytes() == encode(spec())


@pytest.mark.usefixtures("narrow_umask")
def test_every_runtime_can_read_the_folder_and_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "cdi"
    SpecWriter(folder).write(spec())
    assert S_IMODE(folder.stat().st_mode) == 0o755
    assert S_IMODE((folder / FILE).stat().st_mode) == 0o644


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    SpecWriter(tmp_path).write(spec())
    assert S_IMODE(tmp_path.stat().st_mode) == 0o750


def test_an_unchanged_spec_is_not_written_again(tmp_path: Path) -> None:
    writer = SpecWriter(tmp_path)
    writer.write(spec())
    before = (tmp_path / FILE).stat()
    assert not writer.write(spec())
    after = (tmp_path / FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_changed_spec_replaces_the_last(tmp_path: Path) -> None:
    writer = SpecWriter(tmp_path)
    writer.write(spec())
    assert writer.write(spec(1))
    assert json.loads((tmp_path / FILE).read_bytes())["devices"][0]["name"] == "1"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "bad", [Spec(cdi_version="0.5.0", kind=KIND, devices=()), spec(version="0.3.0")], ids=["empty", "version too low"]
)
def test_a_bad_spec_never_replaces_a_good_one(tmp_path: Path, bad: Spec) -> None:
    writer = SpecWriter(tmp_path)
    writer.write(spec())
    with pytest.raises(InvalidSpec):
        writer.write(bad)
    assert (tmp_path / FILE).read_bytes() == encode(spec())
    assert len(list(tmp_path.iterdir())) == 1


def test_a_bad_spec_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec):
        SpecWriter(tmp_path / "cdi").write(Spec(cdi_version="0.5.0", kind=KIND, devices=()))
    assert not (tmp_path / "cdi").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("a file where the folder should be")
    with pytest.raises(CdiError, match=rf"{tmp_path}/cdi/{FILE}") as error:
        SpecWriter(tmp_path / "cdi").write(spec())
    assert isinstance(error.value.__cause__, OSError)


def test_a_write_that_fails_leaves_the_last_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpecWriter(tmp_path)
    writer.write(spec())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CdiError, match="No space left on device"):
        writer.write(spec(1))
    assert (tmp_path / FILE).read_bytes() == encode(spec())
    assert len(list(tmp_path.iterdir())) == 1


def test_a_removed_spec_is_gone(tmp_path: Path) -> None:
    writer = SpecWriter(tmp_path)
    writer.write(spec())
    assert writer.remove(KIND)
    assert list(tmp_path.iterdir()) == []


def test_removing_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    assert not SpecWriter(tmp_path).remove(KIND)
    assert not SpecWriter(tmp_path / "no-folder").remove(KIND)


def test_the_specs_of_claims_come_and_go_beside_the_nodes(tmp_path: Path) -> None:
    writer = SpecWriter(tmp_path)
    writer.write(spec())
    writer.write(spec(1, kind=CLAIM), transient="claim-a")
    writer.write(spec(2, kind=CLAIM), transient="claim-b")
    assert writer.remove(CLAIM, transient="claim-a")
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "node-agent.gpu.nvidia.com-claim_claim-b.json"}


def test_other_programs_specs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\n")
    writer = SpecWriter(tmp_path)
    writer.write(spec())
    writer.remove(KIND)
    assert [path.name for path in tmp_path.iterdir()] == ["nvidia.yaml"]


def test_the_specs_that_come_and_go_are_listed_by_what_they_are_for(tmp_path: Path) -> None:
    writer = SpecWriter(tmp_path)
    writer.write(spec())
    writer.write(spec(1, kind=CLAIM), transient="claim-a")
    writer.write(spec(2, kind=CLAIM), transient="claim-b")
    (tmp_path / "other.com-claim_c.json").write_text("{}")
    assert writer.transients(CLAIM) == {"claim-a", "claim-b"}
    assert writer.transients(KIND) == frozenset()
    assert SpecWriter(tmp_path / "no-folder").transients(CLAIM) == frozenset()


def test_listing_removes_what_a_killed_writer_has_left_of_the_kind(tmp_path: Path) -> None:
    ours, others = tmp_path / ".node-agent.gpu.nvidia.com-claim_a.json.x7", tmp_path / ".nvidia.yaml.x7"
    for left in (ours, others):
        left.write_text("{")
        os.utime(left, (0, 0))
    assert SpecWriter(tmp_path).transients(CLAIM) == frozenset()
    assert list(tmp_path.iterdir()) == [others]


def test_listing_leaves_alone_what_another_agent_is_writing(tmp_path: Path) -> None:
    young = tmp_path / ".node-agent.gpu.nvidia.com-claim_a.json.x7"
    young.write_text("{")
    assert SpecWriter(tmp_path).transients(CLAIM) == frozenset()
    assert list(tmp_path.iterdir()) == [young]


def test_what_cannot_be_removed_is_named(tmp_path: Path) -> None:
    left = tmp_path / ".node-agent.gpu.nvidia.com-claim_a.json.x7"
    left.mkdir()
    os.utime(left, (0, 0))
    with pytest.raises(CdiError, match=r"claim_a.json.x7"):
        SpecWriter(tmp_path).transients(CLAIM)


def test_a_spec_made_of_checked_parts_is_not_checked_again(tmp_path: Path) -> None:
    unchecked = Spec(cdi_version="0.5.0", kind=KIND, devices=())
    assert SpecWriter(tmp_path).write(unchecked, checked=True)
    assert (tmp_path / FILE).read_bytes() == encode(unchecked)


def test_what_is_made_anew_in_each_boot_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    writer, folder = SpecWriter(tmp_path), str(tmp_path)
    writer.write(spec(), "uid")
    writer.remove(KIND, "uid")
    assert synced == []
    writer.write(spec())
    assert [path != folder for path in synced] == [True, False], "its content, then where it stands"
    writer.remove(KIND)
    assert synced[2:] == [folder]
