"""A ConfigMap as the kubelet mounts it: files are links into a folder that is swapped as a whole."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from shutil import rmtree


class MountedConfigMap:
    """``write`` replaces all entries in the kubelet's steps: folder, link beside, rename, links of the entries."""

    def __init__(self, folder: Path, entries: Mapping[str, str]) -> None:
        self.folder = folder
        self._numbers = count(1)
        folder.mkdir(parents=True, exist_ok=True)
        self.write(entries)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def write(self, entries: Mapping[str, str]) -> None:
        before = self.swap(entries)
        self.finish(entries, before)

    def swap(self, entries: Mapping[str, str]) -> Path | None:
        """The first half: the new content is in place, and the links are still those of before."""
        link = self.folder / "..data"
        before = link.resolve() if link.exists() else None
        present = self.folder / f"..2026_01_31_{next(self._numbers)}"
        present.mkdir()
        for name, text in entries.items():
            (present / name).write_text(text)
        beside = self.folder / "..data_tmp"
        beside.symlink_to(present.name)
        beside.rename(link)
        return before

    def finish(self, entries: Mapping[str, str], before: Path | None) -> None:
        """The second half: links for all entries and for no others, and the old content is gone."""
        for name in entries:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for link in self.folder.iterdir():
            if not link.name.startswith("..") and link.name not in entries:
                link.unlink()
        if before is not None:
            rmtree(before)
