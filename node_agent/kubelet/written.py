"""What the kubelet has written down of the devices that it gave out; ``podresources`` has what it tells of its pods.

That leaves out the containers that only run before the others. This file of its device manager has those, too, but also
pods that have ended since it was written, which is at each grant and at each list that a plugin sends.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from node_agent.errors import KubeletError
from node_agent.kit.latest import Latest
from node_agent.kit.unix import FileIdentity, identity

FILE = Path("device-plugins/kubelet_internal_checkpoint")

# It is written within milliseconds of a list; a node may be busy, and its disk slow.
WRITTEN_SECONDS = 2.0
LOOK_SECONDS = 0.05


class Written(Struct, frozen=True, kw_only=True):
    """The ids of the devices that pods have by their limits, by resource, as written ``at`` (wall-clock seconds).

    ``is_new`` where that was after it had been asked for: pods that had ended by then are not in it.
    """

    devices: Mapping[str, frozenset[str]]
    at: float
    is_new: bool


NOTHING = Written(devices={}, at=0.0, is_new=True)
"""By a kubelet that writes no such file."""


async def always() -> bool:
    return True


class WrittenDevices:
    """The kubelet's ``file``. Whoever sends the kubelet a list sends it again when ``wanted`` changes.

    That is asked for while ``is_right`` says that it may be.
    """

    def __init__(
        self, file: Path, is_right: Callable[[], Awaitable[bool]] = always, patience: float = WRITTEN_SECONDS
    ) -> None:
        self._file = file
        self._is_right = is_right
        self._patience = patience
        self.wanted = Latest(0)

    async def look(self) -> Written:
        """Have the kubelet write, and read that; or what stands there, where it does not write within the time.

        That is so where no plugin is registered, for instance. Raises KubeletError where it cannot be read.
        """
        try:
            before, deadline = identity(self._file), time.monotonic() + self._patience
            if await self._is_right():
                self.wanted.set(self.wanted.value + 1)
            while (now := identity(self._file)) in (before, None) and time.monotonic() < deadline:
                await asyncio.sleep(LOOK_SECONDS)
            if now is None:
                return NOTHING
            return await asyncio.to_thread(self._read, now, now != before)
        except (OSError, ValueError) as error:
            raise KubeletError(f"{self._file}: cannot be read: {error}") from error

    def _read(self, file: FileIdentity, is_new: bool) -> Written:
        devices = devices_in(json.loads(self._file.read_bytes()))
        return Written(devices=devices, at=file.modified_ns / 1e9, is_new=is_new)


def devices_in(document: Any) -> dict[str, frozenset[str]]:
    """The devices that such a file names, by resource. Raises ValueError where it has another form."""
    found: dict[str, frozenset[str]] = {}
    try:
        for entry in document["Data"]["PodDeviceEntries"] or ():
            resource, by_numa_node = entry["ResourceName"], entry["DeviceIDs"] or {}
            ids = [name for names in by_numa_node.values() for name in names or ()]
            found[resource] = found.get(resource, frozenset()).union(ids)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it has another form than those of Kubernetes 1.20 to 1.37: {error!r}") from error
    return found
