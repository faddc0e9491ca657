"""Where the driver, /dev, /sys and /proc are: for the agent, which looks, and for the host, whose paths specs hold.

On a plain host all are where they always are. In a container the agent sees the driver under a mount point, and
a containerised driver has a root of its own on the host as well. A *place* is a path inside a root, as a process that
had that root for its own would write it; it is also where a container is given the file.
"""

import errno
import os
from collections import deque
from pathlib import Path, PurePosixPath

from msgspec import Struct

_LINKS_LIMIT = 40
# Something else, nothing, below something that is no folder.
_NO_LINK = (errno.EINVAL, errno.ENOENT, errno.ENOTDIR)


class DriverRoots(Struct, frozen=True, kw_only=True):
    """``driver`` and ``dev`` are the roots as the agent sees them, ``host_…`` where the host has them, if elsewhere.

    ``driver`` is the root of the driver's installation (its libraries lie in ``<driver>/usr/lib…``), ``dev`` the root
    of its device nodes (``<dev>/dev/nvidia0``).
    """

    driver: Path = Path("/")
    host_driver: Path | None = None
    dev: Path = Path("/")
    host_dev: Path | None = None
    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")

    def driver_file(self, place: PurePosixPath) -> Path:
        """Where the agent finds a file of the driver."""
        return self.driver / place.relative_to("/")

    def driver_file_on_host(self, place: PurePosixPath) -> str:
        """Where the host has a file of the driver."""
        return str((self.host_driver or self.driver) / place.relative_to("/"))

    def place_on_host(self, path: str) -> PurePosixPath:
        """The place of a file by its path on the host; a path outside the driver's root is taken for a place."""
        on_host, root = PurePosixPath(path), self.host_driver or self.driver
        return "/" / on_host.relative_to(root) if on_host.is_relative_to(root) else on_host

    def device_node(self, place: PurePosixPath) -> Path:
        """Where the agent finds a device node."""
        return self.dev / place.relative_to("/")

    def device_node_on_host(self, place: PurePosixPath) -> str:
        """Where the host has a device node."""
        return str((self.host_dev or self.dev) / place.relative_to("/"))

    def resolve(self, place: PurePosixPath) -> PurePosixPath:
        """Follow the links in a place of the driver's root as a process with that root would.

        An absolute link starts at the driver's root, not at the agent's. What does not exist is taken as it is written.
        Raises OSError where links go round in circles.
        """
        root, todo, links = str(self.driver), deque(place.parts[1:]), 0
        found: list[str] = []
        while todo:
            part = todo.popleft()
            if part == "..":
                del found[-1:]
                continue
            target = _link_target("/".join((root, *found, part)))
            if target is None:
                found.append(part)
                continue
            links += 1
            if links > _LINKS_LIMIT:
                raise OSError(f"{self.driver_file(place)}: links go round in circles")
            if target.startswith("/"):
                found.clear()
            todo.extendleft(reversed([part for part in target.split("/") if part not in ("", ".")]))
        return PurePosixPath("/", *found)


def _link_target(path: str) -> str | None:
    """What a link points at; None where there is no link."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in _NO_LINK:
            return None
        raise
