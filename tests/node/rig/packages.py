"""What the rig needs of the operating system: a handful of Debian packages, Go, and root.

``ensure`` installs what is absent. The programs of Kubernetes itself come from ``binaries``, beside this module.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.node.rig.command import run
from tests.node.rig.waiting import RigError

CNI_PLUGINS = Path("/usr/lib/cni")

# One file of each package tells whether it is there, so that machines which have the programs elsewhere on PATH pass.
PACKAGES = {
    "runc": "runc",
    str(CNI_PLUGINS / "ptp"): "containernetworking-plugins",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "chromium": "chromium",
}
GO_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")


def absent(wanted: Mapping[str, str] = PACKAGES) -> list[str]:
    """The packages of which no program is found."""
    return [package for program, package in wanted.items() if shutil.which(program) is None]


def ensure(wanted: Mapping[str, str] = PACKAGES) -> None:
    """Install the packages that are absent; a RigError says what is missing where that is not possible."""
    if os.geteuid() != 0:
        raise RigError("the rig makes namespaces, mounts and cgroups: run the node tests as root")
    if shutil.which("go") is None:
        raise RigError(
            f"no `go` on PATH: install Go 1.26 or newer, or add its folder ({' or '.join(GO_FOLDERS)}) to PATH"
        )
    if missing := absent(wanted):
        _install(missing)
    if missing := absent(wanted):
        raise RigError(f"still missing after they were installed: {' '.join(missing)}")


def _install(packages: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise RigError(f"this machine has no apt-get: install what Debian calls {' '.join(packages)}")
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        run(["apt-get", "--quiet", *arguments], timeout=600, environment={"DEBIAN_FRONTEND": "noninteractive"})
