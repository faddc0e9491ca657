"""Which boot this is."""

from pathlib import Path

from node_agent.kit.boot import read_boot_id


def test_the_boot_id_is_the_systems_and_empty_where_it_has_none(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("2f1c-77\n")
    assert read_boot_id(tmp_path / "boot_id") == "2f1c-77"
    assert read_boot_id(tmp_path / "none") == ""
    assert len(read_boot_id()) == 36
