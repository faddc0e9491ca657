"""The driver's capabilities: the device nodes that let a process use one partition of a GPU, beside the GPU's own.

The driver has one for each GPU instance and one for each compute instance. Which number a node has is in a file that
comes and goes with the instance; the host needs no such node, since a runtime makes it from the numbers.
"""

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from node_agent.cdi.edits import DeviceNode
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import CdiError
from node_agent.model.gpu import Gpu
from node_agent.model.partition import Partition

_MAJOR = re.compile(r"^\s*(\d+) nvidia-caps$", re.MULTILINE)
_FIELD = r"^{}:\s*(\d+)$"


def capability_nodes(roots: DriverRoots, gpu: Gpu, partition: Partition) -> tuple[DeviceNode, ...]:
    """The nodes for the GPU instance and for the compute instance. Raises CdiError where these are not shown."""
    instance = roots.proc / "driver/nvidia/capabilities" / f"gpu{gpu.minor}/mig/gi{partition.instance}"
    files = (instance / "access", instance / f"ci{partition.compute_instance}" / "access")
    return described_nodes(roots, files)


def described_nodes(roots: DriverRoots, files: Iterable[Path]) -> tuple[DeviceNode, ...]:
    """The nodes of the capabilities that the driver describes in ``files``. Raises CdiError where it does not."""
    major = number_in(roots.proc / "devices", _MAJOR)
    return tuple(_described(roots, major, file) for file in files)


def numbered_node(roots: DriverRoots, place: str, *, major: int, minor: int, file_mode: int) -> DeviceNode:
    """A character device that containers get at ``place``; a runtime makes it from its numbers."""
    on_host = roots.device_node_on_host(PurePosixPath(place))
    return DeviceNode(
        path=place,
        host_path=on_host if on_host != place else None,
        type="c",
        major=major,
        minor=minor,
        file_mode=file_mode,
        permissions="rwm",
    )


def _described(roots: DriverRoots, major: int, file: Path) -> DeviceNode:
    minor = number_in(file, re.compile(_FIELD.format("DeviceFileMinor"), re.MULTILINE))
    mode = number_in(file, re.compile(_FIELD.format("DeviceFileMode"), re.MULTILINE))
    place = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return numbered_node(roots, place, major=major, minor=minor, file_mode=mode)


def number_in(file: Path, wanted: re.Pattern[str]) -> int:
    """The number that a file of the kernel's says. Raises CdiError where it cannot be read, or says none."""
    try:
        found = wanted.search(file.read_text())
    except OSError as error:
        raise CdiError(f"{file} cannot be read: {error.strerror}") from error
    if found is None:
        raise CdiError(f"{file} does not say {wanted.pattern.strip('^$')}")
    return int(found[1])
