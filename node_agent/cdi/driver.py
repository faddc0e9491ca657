"""The files of the installed driver that a container needs: ``libraries`` and ``files`` together, of one version.

Only files of the version that the loaded driver reports are taken: after an upgrade without a reload two versions lie
on disk, and only one of them can talk to the kernel's modules. What is optional and not there is noted, not an error.
"""

import os
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from msgspec import Struct

from node_agent.cdi import catalogue
from node_agent.cdi.edits import Mount
from node_agent.cdi.files import find_files
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.libraries import Library, find_libraries, library_folders
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import DriverFilesMissing


class DriverFiles(Struct, frozen=True, kw_only=True):
    """What was found of one driver version; ``mounts`` are its files but the libraries, ready for a container."""

    version: str
    architecture: str
    libraries: tuple[Library, ...]
    mounts: tuple[Mount, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def find_driver_files(roots: DriverRoots, version: str | None, kernel: str | None = None) -> DriverFiles:
    """Search the driver's root for the files of a driver version; ``kernel`` is the release that runs, as uname has it.

    Raises DriverFilesMissing where there is no version to look for, where neither libcuda nor libnvidia-ml has it, or
    where the root cannot be read.
    """
    if not version:
        raise DriverFilesMissing("the driver did not report its version, so its files cannot be told from another's")
    try:
        return _find(roots, version, kernel or os.uname().release)
    except OSError as error:
        raise DriverFilesMissing(f"the driver's files under {roots.driver} cannot be read: {error}") from error


def _find(roots: DriverRoots, version: str, kernel: str) -> DriverFiles:
    folders = library_folders(roots)
    libraries = {library.name: library for library in find_libraries(roots, folders, version)}
    required = [libraries.get(f"{name}.so.{version}") for name in catalogue.REQUIRED]
    architecture = next((library.architecture for library in required if library), None)
    if architecture is None:
        raise DriverFilesMissing(_nothing_there(roots, version, folders))
    files = tuple(find_files(roots, version=version, architecture=architecture, kernel=kernel))
    return DriverFiles(
        version=version,
        architecture=architecture,
        libraries=tuple(libraries.values()),
        mounts=tuple(item for item in files if isinstance(item, Mount)),
        left_out=(
            *_missing_libraries(version, libraries),
            *(item for item in files if isinstance(item, LeftOut)),
        ),
    )


def _missing_libraries(version: str, found: Collection[str]) -> Iterator[LeftOut]:
    for category, names in catalogue.LIBRARIES.items():
        for name in (f"{name}.so.{version}" for name in names):
            if name not in found:
                yield LeftOut(what=name, why=f"a library for {category}, in none of the folders searched")


def _nothing_there(roots: DriverRoots, version: str, folders: Collection[PurePosixPath]) -> str:
    wanted = " nor ".join(f"{name}.so.{version}" for name in catalogue.REQUIRED)
    searched = ", ".join(map(str, folders)) or "none: no library folder exists there"
    others = sorted({path.name for folder in folders for path in roots.driver_file(folder).glob("libcuda.so.*.*")})
    advice = (
        f"found {', '.join(others)} instead: reload the driver or reboot, so that the modules fit the files"
        if others
        else "install the driver, or set the driver root to where it is installed"
    )
    return f"neither {wanted} under {roots.driver} (folders searched: {searched}); {advice}"
