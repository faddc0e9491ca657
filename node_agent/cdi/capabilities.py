"""The driver's capabilities: the device nodes that let a process use one partition of a GPU, beside the GPU's own.

The driver has one for each GPU instance and one for each compute instance. Which number a node has is in a file that
comes and goes with the instance; the host needs no such node, since a runtime makes it from the numbers.
"""

import re
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
    return tuple(capability_node(roots, file) for file in files)


def capability_node(roots: DriverRoots, file: Path) -> DeviceNode:
    """The node of the capability that the driver describes in ``file``. Raises CdiError where it does not."""
    minor = number_in(file, re.compile(_FIELD.format("DeviceFileMinor"), re.MULTILINE))
    place = PurePosixPath(f"/dev/nvidia-caps/nvidia-cap{minor}")
    on_host = roots.device_node_on_host(place)
    return DeviceNode(
        path=str(place),
        host_path=on_host if on_host != str(place) else None,
        type="c",
        major=number_in(roots.proc / "devices", _MAJOR),
        minor=minor,
        file_mode=number_in(file, re.compile(_FIELD.format("DeviceFileMode"), re.MULTILINE)),
        permissions="rwm",
    )


def number_in(file: Path, wanted: re.Pattern[str]) -> int:
    """The number that a file of the kernel's says. Raises CdiError where it cannot be read, or says none."""
    try:
        found = wanted.search(file.read_text())
    except OSError as error:
        raise CdiError(f"{file} cannot be read: {error.strerror}") from error
    if found is None:
        raise CdiError(f"{file} does not say {wanted.pattern.strip('^$')}")
    return int(found[1])
