"""The CDI folder and the container runtime that reads it."""

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from node_agent.cdi.names import file_name
from node_agent.cdi.validate import validate_document
from node_agent.doctor.finding import Finding, failed, ok, or_ok, skipped, warning
from node_agent.doctor.place import Place
from node_agent.errors import InvalidSpec

CONTAINERD = Path("etc/containerd/config.toml")
CRIO = Path("etc/crio")
# Where containerd keeps the settings of its CRI plugin, in the file's versions 3 and 2.
_SECTIONS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_USUAL_FOLDERS = ("/etc/cdi", "/var/run/cdi")


def folder(place: Place) -> Iterator[Finding]:
    """Whether the agent may write where the runtime reads."""
    path = place.settings.paths.cdi_dir
    if not path.is_dir():
        yield warning("cdi.folder", "the CDI folder is not there yet; the agent makes it", path, fix=_MOUNT)
    elif not os.access(path, os.W_OK):
        yield failed("cdi.folder", "the CDI folder cannot be written", path, fix=_MOUNT)
    else:
        yield ok("cdi.folder", "the CDI folder can be written", path)


_MOUNT = "in a container mount the host's /var/run/cdi there, writable"


def spec(place: Place) -> Iterator[Finding]:
    """Whether the agent's spec is sound, and names no file that is gone."""
    path = place.settings.paths.cdi_dir / file_name(place.settings.vendor.cdi_kind)
    try:
        content = json.loads(path.read_text())
        validate_document(content)
    except FileNotFoundError:
        yield skipped("cdi.spec", "no spec has been written, as before the agent's first start", path)
        return
    except (OSError, ValueError, InvalidSpec) as error:
        yield failed("cdi.spec", f"the spec cannot be used: {error}", path, fix="restart the agent: it writes it anew")
        return
    gone = sorted(file for file in _files(content) if not Path(file).exists())
    # In a container the host's files are below a mount point, and cannot be found by their names.
    if gone and place.roots.host_driver in (None, place.roots.driver):
        fix = "restart the agent, or wait for its next look: it writes the spec for the driver that is there"
        yield failed("cdi.spec", f"the spec names {len(gone)} files that are gone, such as {gone[0]}", path, fix=fix)
    else:
        yield ok("cdi.spec", f"the spec has {len(content['devices'])} devices", path)


def _files(content: Any) -> Iterator[str]:
    for edits in (content.get("containerEdits", {}), *(one["containerEdits"] for one in content["devices"])):
        yield from (mount["hostPath"] for mount in edits.get("mounts", ()))
        yield from (node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", ()))


def kinds(place: Place) -> Iterator[Finding]:
    """Whether somebody else defines the agent's kind: a name that two files define resolves to nothing."""
    kind, found = place.settings.vendor.cdi_kind, []
    own = file_name(kind)
    for path in sorted(place.settings.paths.cdi_dir.glob("*")):
        if path.suffix not in (".json", ".yaml", ".yml") or path.name == own or path.name.startswith(f"{own[:-5]}_"):
            continue
        # A text search finds it in both forms, without a parser for files of others.
        if kind in path.read_text(errors="replace"):
            found.append(failed("cdi.kinds", f"another file defines {kind}", path, fix="remove that file"))
    yield from or_ok(found, "cdi.kinds", f"nobody else defines {kind}", place.settings.paths.cdi_dir)


def runtime(place: Place) -> Iterator[Finding]:
    """Whether the container runtime takes CDI names, and reads the agent's folder, as far as its files tell."""
    main = place.host / CONTAINERD
    if not main.exists():
        if (place.host / CRIO).is_dir():
            yield ok("cdi.runtime", "CRI-O takes CDI names from 1.23 on", place.host / CRIO)
        else:
            yield skipped("cdi.runtime", "no configuration of containerd or CRI-O is to be seen from here", main)
        return
    try:
        version, settings = _containerd(main, place.host)
    except (OSError, ValueError) as error:
        yield skipped("cdi.runtime", f"containerd's configuration cannot be read: {error}", main)
        return
    enabled, folders = settings.get("enable_cdi"), settings.get("cdi_spec_dirs", _USUAL_FOLDERS)
    wanted = os.path.normpath(str(place.settings.paths.cdi_dir)).replace("/var/run/", "/run/")
    read = [os.path.normpath(str(one)).replace("/var/run/", "/run/") for one in folders]
    if enabled is False or (enabled is None and version < 3):
        said = "has enable_cdi off" if enabled is False else "does not say enable_cdi, which is off before 2.0"
        say = failed if enabled is False else warning
        yield say("cdi.runtime", f"containerd {said}: pods start without their GPUs", main, fix=_ENABLE)
    elif wanted not in read and _is_host_path(place):
        fix = f"add {place.settings.paths.cdi_dir} to cdi_spec_dirs there, or set agent.paths.cdiDir to one of them"
        yield failed("cdi.runtime", f"containerd reads specs in {', '.join(map(str, folders))} only", main, fix=fix)
    else:
        yield ok("cdi.runtime", f"containerd takes CDI names and reads {', '.join(map(str, folders))}", main)


_ENABLE = (
    'set enable_cdi = true in [plugins."io.containerd.grpc.v1.cri"] and restart containerd;'
    " from 2.0 on it is the default"
)


def _is_host_path(place: Place) -> bool:
    """Whether the agent's folder is called as on the host: a test's and a demo's folder are read by no runtime."""
    return str(place.settings.paths.cdi_dir).startswith(("/etc/", "/run/", "/var/"))


def _containerd(main: Path, host: Path) -> tuple[int, dict[str, Any]]:
    """The version of the file's form, and the settings of the CRI plugin with those of the files that it imports."""
    content = tomllib.loads(main.read_text())
    settings = _cri(content)
    for pattern in content.get("imports", ()):
        for path in sorted(host.glob(str(pattern).lstrip("/"))):
            settings |= _cri(tomllib.loads(path.read_text()))
    return int(content.get("version", 1)), settings


def _cri(content: dict[str, Any]) -> dict[str, Any]:
    plugins = content.get("plugins", {})
    return {key: value for section in _SECTIONS for key, value in plugins.get(section, {}).items()}
