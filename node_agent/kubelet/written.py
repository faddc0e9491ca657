"""What the kubelet has written down of the devices that it gave out: its own file, which names more than it tells.

Its pod resources leave out the containers that only run before the others. Its device manager's checkpoint has those,
too, but also pods that have ended since it was written, which is at each grant and at each list that a plugin sends.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node_agent.errors import KubeletError
from node_agent.kit.latest import Latest
from node_agent.kit.unix import identity

FILE = Path("device-plugins/kubelet_internal_checkpoint")

# It is written within milliseconds of a list; a node may be busy, and its disk slow.
WRITTEN_SECONDS = 2.0
LOOK_SECONDS = 0.05


class WrittenDevices:
    """The checkpoint at ``file``. Whoever sends the kubelet a list sends it again when ``wanted`` changes."""

    def __init__(self, file: Path, patience: float = WRITTEN_SECONDS) -> None:
        self._file = file
        self._patience = patience
        self.wanted = Latest(0)

    async def anew(self) -> Mapping[str, frozenset[str]]:
        """The ids of the devices that pods have by their limits, by resource, as the kubelet writes them from now on.

        Nothing where it has no such file.

        Raises:
            KubeletError: it did not write within the time, as where no plugin is registered, or nobody can read it.
        """
        before, deadline = identity(self._file), time.monotonic() + self._patience
        if before is None:
            return {}
        self.wanted.set(self.wanted.value + 1)
        while identity(self._file) in (before, None):
            if time.monotonic() > deadline:
                raise KubeletError(f"{self._file}: the kubelet has not written it for {self._patience:g} s")
            await asyncio.sleep(LOOK_SECONDS)
        try:
            return devices_in(json.loads(self._file.read_bytes()))
        except (OSError, ValueError) as error:
            raise KubeletError(f"{self._file}: cannot be read: {error}") from error


def devices_in(document: Any) -> dict[str, frozenset[str]]:
    """The devices that a checkpoint names, by resource. Raises ValueError where it has another form."""
    found: dict[str, frozenset[str]] = {}
    try:
        for entry in document["Data"]["PodDeviceEntries"] or ():
            resource, by_numa_node = entry["ResourceName"], entry["DeviceIDs"] or {}
            ids = [name for names in by_numa_node.values() for name in names or ()]
            found[resource] = found.get(resource, frozenset()).union(ids)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it has another form than those of Kubernetes 1.20 to 1.37: {error!r}") from error
    return found
