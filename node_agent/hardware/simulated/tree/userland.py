"""The part of a simulated tree that a driver package installs: libraries, binaries, firmware, sockets of services."""

import sys
from collections.abc import Iterator

from node_agent.hardware.simulated import mps
from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.tree.elf import shared_object
from node_agent.hardware.simulated.tree.entries import Entry, File, Link, Socket
from node_agent.hardware.simulated.tree.smi import smi_script

# Name and SONAME suffix of every library, whose file is <name>.so.<driver version>. None: the SONAME is the file name.
LIBRARIES: dict[str, str | None] = {
    "libnvidia-ml": "1",
    "libnvidia-cfg": "1",
    "libcuda": "1",
    "libcudadebugger": "1",
    "libnvidia-opencl": "1",
    "libnvidia-gpucomp": None,
    "libnvidia-ptxjitcompiler": "1",
    "libnvidia-nvvm": "4",
    "libnvidia-allocator": "1",
    "libnvidia-pkcs11-openssl3": None,
    "libnvidia-sandboxutils": "1",
    "libnvcuvid": "1",
    "libnvidia-encode": "1",
    "libnvidia-opticalflow": "1",
    "libnvidia-ngx": "1",
    "libGLX_nvidia": "0",
    "libEGL_nvidia": "0",
    "libGLESv1_CM_nvidia": "1",
    "libGLESv2_nvidia": "2",
    "libnvidia-glcore": None,
    "libnvidia-eglcore": None,
    "libnvidia-glsi": None,
    "libnvidia-tls": None,
    "libnvidia-rtcore": None,
    "libnvidia-fbc": "1",
    "libnvidia-glvkspirv": None,
    "libnvoptix": "1",
}

# Links that programs rely on besides those that ldconfig makes from the SONAMEs.
EXTRA_LINKS = {"libcuda.so": "libcuda.so.1", "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1"}

# Placeholders that can be mounted and run, and say what they are.
BINARIES = (
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-modprobe",
    "nvidia-cuda-mps-server",
)

# A program that works, unlike the placeholders: the daemon of shared GPUs.
_MPS_CONTROL = f"""#!/bin/sh
SIMULATED_ROOT="$(dirname "$0")/../.." exec {sys.executable} -I -S {mps.__file__} "$@"
"""

# What the loaders of EGL, Vulkan and OpenCL look for.
CONFIGS = {
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json": b'{"ICD": {"library_path": "libEGL_nvidia.so.0"}}\n',
    "etc/vulkan/icd.d/nvidia_icd.json": b'{"ICD": {"library_path": "libGLX_nvidia.so.0"}}\n',
    "etc/OpenCL/vendors/nvidia.icd": b"libnvidia-opencl.so.1\n",
}

# Ampere and later, and Turing with GA100: which one is needed is for the driver to know.
FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")


def userland_entries(driver: Driver) -> Iterator[tuple[str, Entry]]:
    """Everything under the driver version that the module reports."""
    yield from _libraries(driver)
    for name in BINARIES:
        script = f"#!/bin/sh\necho 'simulated {name} of driver {driver.version}'\n"
        yield f"usr/bin/{name}", File(content=script.encode(), mode=0o755)
    yield "usr/bin/nvidia-smi", File(content=smi_script(driver.version, (gpu.uuid for gpu in driver.gpus)), mode=0o755)
    yield f"usr/bin/{mps.CONTROL}", File(content=_MPS_CONTROL.encode(), mode=0o755)
    for path, content in CONFIGS.items():
        yield path, File(content=content)
    if any(gpu.board.gsp for gpu in driver.gpus):
        for name in FIRMWARE:
            yield f"lib/firmware/nvidia/{driver.version}/{name}", File(content=b"simulated firmware\n")
    yield "run/nvidia-persistenced/socket", Socket()
    if any(island.switches for island in driver.profile.nvlink.switched):
        yield "run/nvidia-fabricmanager/socket", Socket()


def _libraries(driver: Driver) -> Iterator[tuple[str, Entry]]:
    folder = f"usr/lib/{driver.profile.machine}-linux-gnu"
    for name, suffix in LIBRARIES.items():
        file = f"{name}.so.{driver.version}"
        soname = file if suffix is None else f"{name}.so.{suffix}"
        yield f"{folder}/{file}", File(content=shared_object(soname, driver.profile.machine), mode=0o755)
        if soname != file:
            yield f"{folder}/{soname}", Link(target=file)
    for name, target in EXTRA_LINKS.items():
        yield f"{folder}/{name}", Link(target=target)
    yield f"{folder}/gbm/nvidia-drm_gbm.so", Link(target="../libnvidia-allocator.so.1")
