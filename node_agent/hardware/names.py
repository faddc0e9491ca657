"""Stable names of GPUs: ``gpu-3`` from the minor number when first seen, then bound to the UUID for good.

Minor numbers and indices move when a GPU drops out or is bound anew; a name never moves to another GPU.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from node_agent.hardware.provider import GpuFacts
from node_agent.kit.files import write_atomic
from node_agent.kit.logs import Log, Steady
from node_agent.model.gpu import DeviceName, GpuUuid, device_name

log = Log(__name__)

Names = Mapping[GpuUuid, DeviceName]


def named(known: Names, gpus: Iterable[GpuFacts]) -> Names:
    """``known`` with a name for each GPU that has none yet: by its number, else the next number that is free."""
    names = dict(known)
    strangers = sorted((gpu for gpu in gpus if gpu.uuid not in names), key=_number)
    # First everyone whose name is free: nobody takes a name that another newcomer asks for.
    for gpu in strangers:
        if _name(_number(gpu)) not in names.values():
            names[gpu.uuid] = _name(_number(gpu))
    for gpu in strangers:
        if gpu.uuid not in names:
            free = (_name(number) for number in count(_number(gpu)) if _name(number) not in names.values())
            names[gpu.uuid] = next(free)
    return names


class NameFile:
    """Keeps the names in ``path`` over restarts. Names that cannot be kept are still good while the agent runs.

    One that is ``read_only`` looks up the names of the agent on this node and never writes: for commands beside it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        self._kept: Names = {}
        self._trouble = Steady()

    def load(self) -> Names:
        """The names of old; none where there is no file. A damaged file is set aside, and names start anew."""
        try:
            self._kept = _decoded(self._path.read_bytes())
        except FileNotFoundError:
            self._kept = {}
        except (OSError, ValueError) as error:
            log.error("names of gpus cannot be read and may change", file=self._path, reason=error)
            if not self._read_only:
                self._set_aside()
            self._kept = {}
        return self._kept

    def keep(self, names: Names) -> None:
        """Write the names down, if they differ from those in the file."""
        if self._read_only or names == self._kept:
            return
        content = json.dumps({"version": 1, "names": names}, indent=2) + "\n"
        try:
            write_atomic(self._path, content.encode())
        except OSError as error:
            if self._trouble.should_say(str(error.strerror)):
                log.error("names of gpus cannot be kept and may change at restart", file=self._path, reason=error)
        else:
            self._kept = names

    def _set_aside(self) -> None:
        aside = self._path.with_name(f"{self._path.name}.damaged")
        try:
            self._path.replace(aside)
        except OSError as error:
            log.error("damaged file cannot be set aside and is overwritten", file=self._path, reason=error)
        else:
            log.info("damaged file set aside", file=self._path, aside=aside)


def _number(gpu: GpuFacts) -> int:
    return gpu.index if gpu.minor is None else gpu.minor


def _name(number: int) -> DeviceName:
    return device_name(f"gpu-{number}")


def _decoded(content: bytes) -> Names:
    """Raises ValueError where the content is not what ``save`` writes."""
    document = json.loads(content)
    names = document.get("names") if isinstance(document, dict) and document.get("version") == 1 else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError('it is not of the form {"version": 1, "names": {uuid: name}}')
    if len(set(names.values())) < len(names):
        raise ValueError("it gives one name to two GPUs")
    return {GpuUuid(uuid): device_name(name) for uuid, name in names.items()}
