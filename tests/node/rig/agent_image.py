"""The agent's image, built from the Dockerfile as it is: without a registry, and without an engine that runs.

``buildah`` works in a chroot. The Dockerfile's public base is made from Debian's packages, and so is its stand-in here.
What was built stays in the cache, layer by layer, so that only what has changed is built again.
"""

import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node_agent import __version__
from tests.node.rig import binaries, packages
from tests.node.rig.command import run
from tests.node.rig.machine import Machine

NAME = f"docker.io/library/gpu-node-agent:{__version__}"
"""What the shipped manifest calls the image, in full."""

PROJECT = Path(__file__).resolve().parents[3]
RELEASE = "bookworm"
BASE = f"docker.io/library/debian:{RELEASE}-slim"
CACHE = binaries.CACHE.parent / "image"
KEPT = 4
"""How many archives stay beside a new one."""
PACKAGES = {"buildah": "buildah", "debootstrap": "debootstrap"}
ENVIRONMENT = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "overlay"}


@functools.cache
def archive() -> Path:
    """Build what the cache lacks; answers an archive of the image that ``ctr images import`` takes, in the cache."""
    with _locked(), tempfile.TemporaryDirectory() as folder:
        packages.ensure(PACKAGES)
        if BASE not in _buildah("images", "--format={{.Name}}:{{.Tag}}").split():
            _make_base(Path(folder) / "base")
        _buildah("build", "--layers", "--pull-never", *_trust(Path(folder)), f"--tag={NAME}", str(PROJECT))
        number = _buildah("images", "--quiet", "--no-trunc", NAME).strip().removeprefix("sha256:")
        path = CACHE / "archives" / f"{number}.tar"
        if not path.exists():
            _write(path)
        path.touch()
        return path


def bring(machine: Machine) -> None:
    """Give the image to a machine that has not got it yet."""
    if (machine.folder / "agent-image").exists():
        return
    machine.run(["ctr", "--namespace=k8s.io", "images", "import", str(archive())], timeout=300)
    (machine.folder / "agent-image").touch()


def _write(path: Path) -> None:
    """Write an archive beside the few that were in use last; those of checkouts that have gone on are not."""
    path.parent.mkdir(exist_ok=True)
    for old in sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime)[:-KEPT]:
        old.unlink()
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    _buildah("push", "--disable-compression", NAME, f"oci-archive:{partial}:{NAME}")
    partial.rename(path)


def _make_base(root: Path) -> None:
    run(["debootstrap", "--variant=minbase", RELEASE, str(root)], timeout=900)
    for left in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / left)
    container = _buildah("from", "scratch").strip()
    _buildah("copy", container, str(root), "/")
    _buildah("commit", "--rm", container, BASE)


def _trust(folder: Path) -> list[str]:
    """Where the host's pip trusts an authority of its own, so does the one in the build."""
    authorities = os.environ.get("PIP_CERT")
    if authorities is None:
        return []
    config = folder / "pip.conf"
    config.write_text("[global]\ncert = /run/authorities.pem\n")
    return [f"--volume={authorities}:/run/authorities.pem:ro", f"--volume={config}:/etc/pip.conf:ro"]


def _buildah(*arguments: str) -> str:
    places = [f"--root={CACHE / 'storage'}", f"--runroot={CACHE / 'run'}"]
    return run(["buildah", *places, *arguments], timeout=900, environment=ENVIRONMENT)


@contextmanager
def _locked() -> Iterator[None]:
    """One at a time: the nodes of one run are nodes of several processes."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
