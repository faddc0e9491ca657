"""Finds the driver's files other than libraries: programs, sockets, firmware, settings. ``catalogue`` says which.

Each is answered as the mount that gives it to a container, or as what is left out because the host has none.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from node_agent.cdi import catalogue
from node_agent.cdi.edits import Mount
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.roots import DriverRoots

# What a container reads or runs, and what it talks to: connecting to a socket takes the right to write.
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

_FIRMWARE_PARAMETER = "module/firmware_class/parameters/path"


def find_files(roots: DriverRoots, *, version: str, architecture: str, kernel: str) -> Iterator[Mount | LeftOut]:
    """All files of one driver version but its libraries; ``kernel`` is the release that runs. Raises OSError."""
    look = _Look(roots=roots, facts={"version": version, "architecture": architecture, "kernel": kernel})
    yield from look.at_binaries()
    yield from look.at_sockets()
    yield from look.at_firmware()
    yield from look.at_configs()


class _Look(Struct, frozen=True, kw_only=True):
    """One look at the driver's root. ``facts`` fill the placeholders of the catalogue."""

    roots: DriverRoots
    facts: dict[str, str]

    def at_binaries(self) -> Iterator[Mount | LeftOut]:
        for name, use in catalogue.BINARIES.items():
            places = [PurePosixPath(folder, name) for folder in catalogue.BINARY_FOLDERS]
            yield self._first(places) or LeftOut(what=name, why=f"a program for {use}, in none of the usual folders")

    def at_sockets(self) -> Iterator[Mount | LeftOut]:
        for service, places in catalogue.SOCKETS.items():
            found = self._first(map(PurePosixPath, places), options=SOCKET)
            yield found or LeftOut(what=places[0], why=f"the {service} does not run, or not where it usually does")

    def at_firmware(self) -> Iterator[Mount | LeftOut]:
        folders = [folder / "nvidia" / self.facts["version"] for folder in self._firmware_folders()]
        for pattern in catalogue.FIRMWARE:
            # The kernel loads from the first folder that has the file; those behind it hold leftovers.
            found = next(filter(None, (self._matching(folder, pattern) for folder in folders)), [])
            yield from map(self._mount, found)
            if not found:
                what = f"nvidia/{self.facts['version']}/{pattern}"
                yield LeftOut(what=what, why="firmware, in none of the folders that the kernel searches")

    def at_configs(self) -> Iterator[Mount | LeftOut]:
        for names, folders, in_container in catalogue.CONFIGS:
            for name in (name.format_map(self.facts) for name in names):
                places = [PurePosixPath(folder, name) for folder in folders]
                found = self._first(places, container_path=f"{in_container}/{name}")
                yield found or LeftOut(what=name, why=f"not under {' or '.join(folders)}")

    def _firmware_folders(self) -> list[PurePosixPath]:
        parameter = self.roots.sysfs / _FIRMWARE_PARAMETER
        own = parameter.read_text().strip() if parameter.exists() else ""
        usual = [PurePosixPath(folder.format_map(self.facts)) for folder in catalogue.FIRMWARE_FOLDERS]
        return [self.roots.place_on_host(own), *usual] if own else usual

    def _matching(self, folder: PurePosixPath, pattern: str) -> list[PurePosixPath]:
        place = self.roots.resolve(folder)
        return [folder / found.name for found in sorted(self._path(place).glob(pattern))]

    def _first(
        self, places: Iterable[PurePosixPath], container_path: str | None = None, options: tuple[str, ...] = READ_ONLY
    ) -> Mount | None:
        found = next((place for place in places if self._path(self.roots.resolve(place)).exists()), None)
        return self._mount(found, container_path, options) if found else None

    def _mount(
        self, place: PurePosixPath, container_path: str | None = None, options: tuple[str, ...] = READ_ONLY
    ) -> Mount:
        real = self.roots.driver_file_on_host(self.roots.resolve(place))
        return Mount(host_path=real, container_path=container_path or str(place), options=options)

    def _path(self, place: PurePosixPath) -> Path:
        return self.roots.driver_file(place)
