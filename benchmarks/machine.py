"""Where the figures were taken: the facts of the machine that they depend on."""

import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path


def facts() -> Mapping[str, str]:
    """The facts by name, in the order in which they are shown."""
    load = " ".join(f"{average:.2f}" for average in os.getloadavg())
    return {
        "processor": _processor(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "grpcio": version("grpcio"),
        "protobuf": version("protobuf"),
        "load average": load,
    }


def _processor() -> str:
    """The model's name, where the kernel tells it; the architecture always."""
    return next(models(Path("/proc/cpuinfo").read_text()), "unknown model") + f" ({platform.machine()})"


def models(cpuinfo: str) -> Iterator[str]:
    """The model of each processor in the kernel's list; none where it tells no names, as on Arm."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            yield value.strip()
