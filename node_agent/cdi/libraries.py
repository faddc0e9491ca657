"""Finds the driver's libraries and every name that programs load them by. ``catalogue`` says which are wanted.

On a plain host links hold those names: ldconfig makes one for the SONAME, packages make others. A container has none of
them, so they are gathered here, and ``build`` provides them.
"""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from msgspec import Struct, field

from node_agent.cdi import catalogue, elf, ldcache
from node_agent.cdi.roots import DriverRoots

_CACHE = PurePosixPath("/etc/ld.so.cache")


class Library(Struct, frozen=True, kw_only=True):
    """One library: the ``name`` of its file, the ``folder`` as a place in the driver's root, its path on the host.

    ``links`` are its other names, relative to the folder, and what a link of each name points at. ``below`` is the part
    of ``folder`` under a folder that the loader searches (empty for such a folder itself), None where the loader has no
    part in finding the library.
    """

    name: str
    folder: PurePosixPath
    host_path: str
    architecture: str
    below: str | None = ""
    links: Mapping[str, str] = field(default_factory=dict)


def library_folders(roots: DriverRoots) -> tuple[PurePosixPath, ...]:
    """The folders to search, each once and without links: where the loader's cache has the driver, then the usual."""
    cached = ldcache.read(roots.driver_file(roots.resolve(_CACHE)))
    known = [place.parent for name, place in cached.items() if _stem(name) in catalogue.REQUIRED]
    usual = [PurePosixPath(folder) for folder in catalogue.LIBRARY_FOLDERS]
    return tuple(dict.fromkeys(place for folder in known + usual for place in _existing(roots, folder)))


def find_libraries(roots: DriverRoots, folders: Iterable[PurePosixPath], version: str) -> tuple[Library, ...]:
    """The 64-bit libraries of one driver version; of several files of one name the first folder's. Raises OSError."""
    folders = tuple(folders)
    patterns = (f"*.so.{version}", *catalogue.UNVERSIONED)
    places = [(folder / below, below) for folder in folders for below in catalogue.LIBRARY_SUBFOLDERS]
    found: dict[str, Library] = {}
    for folder, below in places:
        for library in _in_folder(roots, folder, patterns, below):
            found.setdefault(library.name, library)
    for library in _xorg_modules(roots, folders, version):
        found.setdefault(library.name, library)
    return tuple(found.values())


def _xorg_modules(roots: DriverRoots, folders: Iterable[PurePosixPath], version: str) -> Iterator[Library]:
    patterns = [module.format(version=version) for module in catalogue.XORG_MODULES]
    beside = [folder / below for folder in folders for below in catalogue.XORG_SUBFOLDERS]
    for folder in (*beside, *map(PurePosixPath, catalogue.XORG_FOLDERS)):
        yield from _in_folder(roots, folder, patterns, None)


def _in_folder(
    roots: DriverRoots, folder: PurePosixPath, patterns: Iterable[str], below: str | None
) -> Iterator[Library]:
    for place in _existing(roots, folder):
        names = sorted(entry.name for entry in roots.driver_file(place).iterdir())
        wanted = [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
        for name in wanted:
            real = roots.resolve(place / name)
            another_name = real.parent == place and real.name != name and real.name in wanted
            file = roots.driver_file(real)
            # A link that leads nowhere, left by a package that is gone, is no reason to do without the driver.
            facts = elf.read(file) if file.is_file() and not another_name else None
            if facts is not None:
                yield Library(
                    name=name,
                    folder=place,
                    host_path=roots.driver_file_on_host(real),
                    architecture=facts.machine,
                    below=below,
                    links=_links(name, facts.soname, _aliases(roots, place, name, names)),
                )


def _existing(roots: DriverRoots, folder: PurePosixPath) -> Iterator[PurePosixPath]:
    place = roots.resolve(folder)
    if roots.driver_file(place).is_dir():
        yield place


def _aliases(roots: DriverRoots, folder: PurePosixPath, name: str, names: Iterable[str]) -> list[str]:
    """The other names in the folder that lead to the same file."""
    real = roots.resolve(folder / name)
    related = [other for other in names if _stem(other) == _stem(name) and other != name]
    return [other for other in related if roots.resolve(folder / other) == real]


def _links(name: str, soname: str | None, aliases: Iterable[str]) -> dict[str, str]:
    asked_for = soname or name
    links = {asked_for: name}
    for alias in aliases:
        # The name that compilers link with goes through the SONAME, as on the host.
        links.setdefault(alias, asked_for if alias.endswith(".so") else name)
    for link, target in catalogue.LINKS.get(_stem(name), {}).items():
        links.setdefault(link, target.format(name=name, soname=asked_for))
    # A library without a SONAME, or whose SONAME carries the version, is loaded by the name of its file.
    links.pop(name, None)
    return links


def _stem(name: str) -> str:
    return name.partition(".so")[0]
