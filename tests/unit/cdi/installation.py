"""A driver installation in a folder, as packages and runfiles leave it: libraries with SONAMEs, links, other files.

The bytes that the agent parses (ELF, the loader's cache) are written here a second time, from the formats' own
descriptions and not with the agent's constants. Device nodes are stat results: making real ones takes root.
"""

import os
import stat
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from node_agent.cdi.roots import DriverRoots
from node_agent.model.inventory import Inventory

VERSION = "570.172.08"
KERNEL = "6.8.0-60-generic"
DEBIAN = "/usr/lib/x86_64-linux-gnu"
RED_HAT = "/usr/lib64"

X86_64, AARCH64, RISCV = 62, 183, 243

BASE = 0x40_0000
"""The address that a test library is loaded at: not its offset in the file."""

SONAMES = {
    "libnvidia-ml": "libnvidia-ml.so.1",
    "libnvidia-cfg": "libnvidia-cfg.so.1",
    "libnvidia-nscq": "libnvidia-nscq.so.2",
    "libcuda": "libcuda.so.1",
    "libcudadebugger": "libcudadebugger.so.1",
    "libnvidia-opencl": "libnvidia-opencl.so.1",
    "libnvidia-gpucomp": None,
    "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm": "libnvidia-nvvm.so.4",
    "libnvidia-allocator": "libnvidia-allocator.so.1",
    "libnvidia-pkcs11": None,
    "libnvidia-pkcs11-openssl3": None,
    "libnvidia-sandboxutils": "libnvidia-sandboxutils.so.1",
    "libnvcuvid": "libnvcuvid.so.1",
    "libnvidia-encode": "libnvidia-encode.so.1",
    "libnvidia-opticalflow": "libnvidia-opticalflow.so.1",
}
"""What a server's driver without graphics installs, and the SONAME of each; None: the versioned name itself."""

GRAPHICS = {
    "libGLX_nvidia": "libGLX_nvidia.so.0",
    "libEGL_nvidia": "libEGL_nvidia.so.0",
    "libGLESv1_CM_nvidia": "libGLESv1_CM_nvidia.so.1",
    "libGLESv2_nvidia": "libGLESv2_nvidia.so.2",
    "libnvidia-glcore": None,
    "libnvidia-eglcore": None,
    "libnvidia-glsi": None,
    "libnvidia-tls": None,
    "libnvidia-rtcore": None,
    "libnvidia-fbc": "libnvidia-fbc.so.1",
    "libnvidia-glvkspirv": None,
    "libnvoptix": "libnvoptix.so.1",
    "libnvidia-ngx": "libnvidia-ngx.so.1",
}


class Installation:
    """Puts files below ``root``, which stands for the root of a host or of a driver container."""

    def __init__(self, root: Path, version: str = VERSION) -> None:
        self.root = root
        self.version = version

    def file(self, place: str, content: bytes = b"", mode: int = 0o644) -> Path:
        path = self.at(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def link(self, place: str, target: str) -> None:
        self.at(place).parent.mkdir(parents=True, exist_ok=True)
        self.at(place).unlink(missing_ok=True)
        self.at(place).symlink_to(target)

    def library(self, name: str, soname: str | None = None, folder: str = DEBIAN, machine: int = X86_64) -> str:
        """A library of the driver's version, with the link that ldconfig makes; answers its file name."""
        file = f"{name}.so.{self.version}"
        self.file(f"{folder}/{file}", elf(soname or file, machine))
        if soname:
            self.link(f"{folder}/{soname}", file)
        return file

    def libraries(self, names: Mapping[str, str | None], folder: str = DEBIAN, machine: int = X86_64) -> "Installation":
        for name, soname in names.items():
            self.library(name, soname, folder, machine)
        return self

    def server(self, folder: str = DEBIAN, machine: int = X86_64) -> "Installation":
        """A server's driver with the programs, firmware and sockets that run on an NVSwitch board."""
        self.libraries(SONAMES, folder, machine)
        self.link(f"{folder}/libcuda.so", "libcuda.so.1")
        for program in ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced"):
            self.file(f"/usr/bin/{program}", mode=0o755)
        for program in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl"):
            self.file(f"/usr/bin/{program}", mode=0o755)
        for firmware in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
            self.file(f"/lib/firmware/nvidia/{self.version}/{firmware}")
        for service in ("nvidia-persistenced", "nvidia-fabricmanager"):
            self.file(f"/run/{service}/socket")
        self.file("/etc/OpenCL/vendors/nvidia.icd")
        return self

    def graphics(self, folder: str = DEBIAN) -> "Installation":
        """What a driver with graphics adds."""
        self.libraries(GRAPHICS, folder)
        self.library("libvdpau_nvidia", "libvdpau_nvidia.so.1", f"{folder}/vdpau")
        for name, version in (("gbm", "1.1.2"), ("wayland", "1.1.18")):
            self.file(f"{folder}/libnvidia-egl-{name}.so.{version}", elf(f"libnvidia-egl-{name}.so.1"))
            self.link(f"{folder}/libnvidia-egl-{name}.so.1", f"libnvidia-egl-{name}.so.{version}")
        self.file("/usr/lib/xorg/modules/drivers/nvidia_drv.so", elf("nvidia_drv.so"))
        modules = "/usr/lib/xorg/modules/extensions"
        self.file(f"{modules}/libglxserver_nvidia.so.{self.version}", elf("libglxserver_nvidia.so"))
        self.link(f"{modules}/libglxserver_nvidia.so", f"libglxserver_nvidia.so.{self.version}")
        self.file("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
        self.file("/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json")
        self.file("/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json")
        self.file("/usr/share/nvidia/nvoptix.bin")
        self.file(f"/usr/share/nvidia/nvidia-application-profiles-{self.version}-rc")
        self.file("/usr/share/X11/xorg.conf.d/10-nvidia.conf")
        self.file("/usr/share/vulkan/icd.d/nvidia_icd.json")
        self.file("/usr/share/vulkan/implicit_layer.d/nvidia_layers.json")
        return self

    def hook(self, names: Iterable[str], place: str = "/usr/bin/nvidia-cdi-hook") -> None:
        """A hook program that knows the given hooks: their names are somewhere in its file."""
        self.file(place, b"\x7fELF" + b"".join(b"\0" + name.encode() + b"\0" for name in names), mode=0o755)

    def at(self, place: str) -> Path:
        return self.root / place.lstrip("/")


def elf(soname: str | None, machine: int = X86_64, *, bits: int = 64, order: int = 1) -> bytes:
    """A library that holds no more than its SONAME: header, two segments, dynamic section, strings."""
    strings = b"\0libc.so.6\0" + (soname or "").encode() + b"\0"
    dynamic_at = 64 + 2 * 56
    tags = [(1, 1), (5, 0), *([(14, 11)] if soname else []), (0, 0)]
    strings_at = dynamic_at + 16 * len(tags)
    tags = [(tag, BASE + strings_at if tag == 5 else value) for tag, value in tags]
    size = strings_at + len(strings)
    identity = struct.pack("<4sBBBB8x", b"\x7fELF", 2 if bits == 64 else 1, order, 1, 0)
    header = identity + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 4096)
    dynamic = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, BASE + dynamic_at, 0, 16 * len(tags), 16 * len(tags), 8)
    return header + load + dynamic + b"".join(struct.pack("<qQ", *tag) for tag in tags) + strings


def loader_cache(libraries: Iterable[tuple[str, str, int]], old_format_too: bool = False) -> bytes:
    """``/etc/ld.so.cache`` of (name, place, flags): 0x0303 is libc6 on x86_64, 0x0003 its 32-bit twin."""
    entries, strings = b"", b""
    libraries = list(libraries)
    strings_at = 48 + 24 * len(libraries)
    for name, place, flags in libraries:
        name_at = strings_at + len(strings)
        strings += name.encode() + b"\0"
        place_at = strings_at + len(strings)
        strings += place.encode() + b"\0"
        entries += struct.pack("<iIIIQ", flags, name_at, place_at, 0, 0)
    header = b"glibc-ld.so.cache" + b"1.1" + struct.pack("<IIB3xI12x", len(libraries), len(strings), 2, 0)
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + struct.pack("<iII", 3, 0, 0) + b"\0" * 4
    return (old if old_format_too else b"") + header + entries + strings


class Capabilities:
    """The kernel's files of MIG instances below ``proc``, with the major number of this boot."""

    def __init__(self, proc: Path, *, major: int = 238) -> None:
        self.proc = proc
        proc.mkdir(parents=True, exist_ok=True)
        (proc / "devices").write_text(f"Character devices:\n195 nvidia\n{major} nvidia-caps\n\nBlock devices:\n8 sd\n")

    def add(self, gpu_minor: int, instance: int, *, minor: int, compute_instance: int = 0) -> None:
        """An instance with one compute instance, whose number is the next one."""
        folder = self.proc / f"driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{instance}"
        for file, number in ((folder / "access", minor), (folder / f"ci{compute_instance}" / "access", minor + 1)):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")


class Nodes:
    """Stands in for ``os.stat`` on device nodes: what is not in ``nodes`` is not there."""

    def __init__(self, roots: DriverRoots | None = None) -> None:
        self._roots = roots or DriverRoots()
        self._nodes: dict[Path, os.stat_result] = {}

    def __call__(self, path: Path) -> os.stat_result:
        if path not in self._nodes:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return self._nodes[path]

    def add(
        self, place: str, major: int, minor: int, *, mode: int = 0o666, gid: int = 0, kind: int = stat.S_IFCHR
    ) -> "Nodes":
        facts = (kind | mode, 0, 0, 1, 0, gid, 0, 0, 0, 0)
        self._nodes[self._path(place)] = os.stat_result(facts, {"st_rdev": os.makedev(major, minor)})
        return self

    def remove(self, place: str) -> "Nodes":
        del self._nodes[self._path(place)]
        return self

    def server(self, inventory: Inventory, *, mode: int = 0o666, gid: int = 0, uvm: int = 511) -> "Nodes":
        """The nodes of a server with its GPUs; ``uvm`` is the major number of this boot."""
        for gpu in inventory.gpus:
            assert gpu.minor is not None
            self.add(f"/dev/nvidia{gpu.minor}", 195, gpu.minor, mode=mode, gid=gid)
        self.add("/dev/nvidiactl", 195, 255, mode=mode, gid=gid)
        self.add("/dev/nvidia-modeset", 195, 254, mode=mode, gid=gid)
        self.add("/dev/nvidia-uvm", uvm, 0)
        return self.add("/dev/nvidia-uvm-tools", uvm, 1)

    def _path(self, place: str) -> Path:
        return self._roots.device_node(PurePosixPath(place))
