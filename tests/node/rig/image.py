"""OCI images of one layer, made from a folder, and those that every node of the rig has.

No image can be pulled in a test: pods name these and say ``imagePullPolicy: Never``. The node imports the archives.
"""

import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.node.rig.command import run

BUSYBOX = "rig.local/busybox:1"
PUBLIC_BUSYBOX = "docker.io/library/busybox:1.37"
"""What the examples name: there is no way to the registry that has it, so the machine's own goes by that name too."""
PAUSE = "rig.local/pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MEDIA_TYPE = "application/vnd.oci.image"


def write_archive(archive: Path, *, name: str, content: Path, command: Sequence[str]) -> None:
    """Write an archive that ``ctr images import`` takes: everything below ``content``, owned by root."""
    layer = _layer(content)
    config = _json(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA_TYPE}.manifest.v1+json",
            "config": _descriptor("config.v1+json", config),
            "layers": [_descriptor("layer.v1.tar", layer)],
        }
    )
    named = _descriptor("manifest.v1+json", manifest) | {"annotations": {"io.containerd.image.name": name}}
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _json({"schemaVersion": 2, "manifests": [named]}))
        for blob in (layer, config, manifest):
            _add(tar, f"blobs/{_digest(blob).replace(':', '/')}", blob)


def fill_with_busybox(folder: Path) -> None:
    """Make ``folder`` the content of an image: the machine's static busybox, its applets, and a /tmp for all."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    busybox = shutil.copy(str(shutil.which("busybox")), str(binaries))
    applets = run([busybox, "--list"]).split()
    for applet in set(applets) - {"busybox"}:
        (binaries / applet).symlink_to("busybox")


def _layer(content: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(content, arcname=".", filter=_owned_by_root)
    return buffer.getvalue()


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    return member.replace(uid=0, gid=0, uname="root", gname="root", deep=False)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"{MEDIA_TYPE}.{media_type}", "digest": _digest(blob), "size": len(blob)}


def _add(tar: tarfile.TarFile, path: str, blob: bytes) -> None:
    member = tarfile.TarInfo(path)
    member.size = len(blob)
    tar.addfile(member, io.BytesIO(blob))
