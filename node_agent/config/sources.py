"""Where configuration comes from, each source as a layer of plain values: command line, environment, file.

The variables are those of NVIDIA's device plugin and GPU Feature Discovery, under their own names and in their own
order, and ours for what the manifests decide; an empty one says nothing. Text that a variable cannot mean is left as it
is, for ``check`` to refuse.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from node_agent.config.check import shown
from node_agent.config.file import USUAL_XIDS
from node_agent.errors import ConfigError

SIZE_LIMIT = 1024 * 1024

Tree = dict[str, Any]


class Layer(Struct, frozen=True, kw_only=True):
    """What one source says, nested as in the file, and how to name the source to people."""

    origin: str
    values: Mapping[str, object]


def _flag(text: str) -> object:
    return {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}.get(text.lower(), text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int | str]:
    return [int(word) if re.fullmatch("[0-9]{1,18}", word) else word for word in _words(text)]


def _disabled_checks(text: str) -> object:
    """``DP_DISABLE_HEALTHCHECKS`` ignores these Xids besides the usual ones."""
    words = _numbers(text)
    if "all" in words or "xids" in words:
        return "all"
    return [*USUAL_XIDS, *words]


def _enabled_checks(text: str) -> object:
    words = _numbers(text)
    return "all" if "all" in words else words


def _duration(text: str) -> object:
    return float(text) if re.fullmatch("[0-9]{1,18}", text) else text


# Path of the key → how to read the text, and the variables in the order of their precedence.
VARIABLES: Mapping[str, tuple[Callable[[str], object], tuple[str, ...]]] = {
    "flags.migStrategy": (str, ("MIG_STRATEGY", "GFD_MIG_STRATEGY")),
    "flags.failOnInitError": (_flag, ("FAIL_ON_INIT_ERROR", "GFD_FAIL_ON_INIT_ERROR")),
    "flags.mpsRoot": (str, ("MPS_ROOT",)),
    "flags.nvidiaDriverRoot": (str, ("NVIDIA_DRIVER_ROOT",)),
    "flags.nvidiaDevRoot": (str, ("NVIDIA_DEV_ROOT",)),
    "flags.gdrcopyEnabled": (_flag, ("GDRCOPY_ENABLED",)),
    "flags.gdsEnabled": (_flag, ("GDS_ENABLED",)),
    "flags.mofedEnabled": (_flag, ("MOFED_ENABLED",)),
    "flags.useNodeFeatureAPI": (_flag, ("USE_NODE_FEATURE_API", "GFD_USE_NODE_FEATURE_API")),
    "flags.deviceDiscoveryStrategy": (str, ("DEVICE_DISCOVERY_STRATEGY",)),
    "flags.plugin.passDeviceSpecs": (_flag, ("PASS_DEVICE_SPECS",)),
    "flags.plugin.deviceListStrategy": (_words, ("DEVICE_LIST_STRATEGY",)),
    "flags.plugin.deviceIDStrategy": (str, ("DEVICE_ID_STRATEGY",)),
    "flags.plugin.cdiAnnotationPrefix": (str, ("CDI_ANNOTATION_PREFIX",)),
    "flags.plugin.nvidiaCTKPath": (str, ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH")),
    "flags.plugin.containerDriverRoot": (str, ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT")),
    "flags.plugin.sharedDevicesAllocationPolicy": (str, ("SHARED_DEVICES_ALLOCATION_POLICY",)),
    "flags.gfd.oneshot": (_flag, ("GFD_ONESHOT",)),
    "flags.gfd.noTimestamp": (_flag, ("GFD_NO_TIMESTAMP",)),
    "flags.gfd.sleepInterval": (_duration, ("GFD_SLEEP_INTERVAL",)),
    "flags.gfd.outputFile": (str, ("GFD_OUTPUT_FILE",)),
    "flags.gfd.machineTypeFile": (str, ("GFD_MACHINE_TYPE_FILE",)),
    "imex.channelIDs": (_numbers, ("IMEX_CHANNEL_IDS",)),
    "imex.required": (_flag, ("IMEX_REQUIRED",)),
    "agent.vendor": (str, ("AGENT_VENDOR",)),
    "agent.nodeName": (str, ("NODE_NAME",)),
    "agent.podName": (str, ("POD_NAME",)),
    "agent.kubeconfig": (str, ("KUBECONFIG",)),
    # What has to agree with the pod's mounts and rights, so that the manifests say both in one place.
    "agent.frontDoors.dra": (_flag, ("AGENT_DRA",)),
    "agent.frontDoors.devicePlugin": (_flag, ("AGENT_DEVICE_PLUGIN",)),
    "agent.frontDoors.computeDomains": (_flag, ("AGENT_COMPUTE_DOMAINS",)),
    "agent.labels.writer": (str, ("AGENT_LABELS_WRITER",)),
    "agent.mig.layouts": (str, ("AGENT_MIG_LAYOUTS",)),
    "agent.nodeReports.topology": (_flag, ("AGENT_TOPOLOGY",)),
    "agent.paths.devRoot": (str, ("AGENT_DEV_ROOT",)),
    "agent.paths.procRoot": (str, ("AGENT_PROC_ROOT",)),
    "agent.health.ignoredXids": (_disabled_checks, ("DP_DISABLE_HEALTHCHECKS",)),
    "agent.health.enabledXids": (_enabled_checks, ("DP_ENABLE_HEALTHCHECKS",)),
}


def from_document(data: bytes, name: str) -> Layer:
    """What a file says.

    Raises:
        ConfigError: it is no YAML, or holds something else than keys and values.
    """
    from node_agent.config.document import read  # noqa: PLC0415 - YAML costs memory, and most nodes have no file

    if len(data) > SIZE_LIMIT:
        raise ConfigError(f"{name}: more than 1 MiB, which no configuration needs")
    try:
        values = read(data)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    if values is not None and not isinstance(values, dict):
        raise ConfigError(f"{name}: expected keys and their values, such as version: v1; got {shown(values)}")
    return Layer(origin=name, values=values or {})


def from_file(path: Path) -> Layer:
    """What the file at ``path`` says. Raises ConfigError where it cannot be read or means nothing."""
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return from_document(data, str(path))


def from_environment(environment: Mapping[str, str]) -> Iterator[Layer]:
    """What each variable says that is set."""
    for path, (read, names) in VARIABLES.items():
        for name in names:
            if text := environment.get(name, "").strip():
                yield Layer(origin=f"environment variable {name}", values=nested({path: read(text)}))
                break


def from_flags(flags: Mapping[str, object]) -> Layer:
    """What the command line says: values by the dotted path of their key, None where an option was not given."""
    given = {path: _plain(value) for path, value in flags.items() if value is not None}
    return Layer(origin="command line", values=nested(given))


def overlay(layers: Iterable[Layer]) -> tuple[Tree, Mapping[str, str]]:
    """The layers on top of each other, later ones over earlier, and the origin of each value by its dotted path.

    Keys without a value are left out.
    """
    tree: Tree = {}
    origins: dict[str, str] = {}
    for layer in layers:
        _lay(layer.values, tree, origins, layer.origin, "")
    return tree, origins


def _lay(values: Mapping[str, Any], tree: Tree, origins: dict[str, str], origin: str, prefix: str) -> None:
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            _lay(value, tree.setdefault(key, {}), origins, origin, f"{path}.")
        elif value is not None:
            tree[key] = _said(value)
            origins[path] = origin


def nested(values: Mapping[str, object]) -> Tree:
    """Values by dotted path as a tree, nested as in the file."""
    tree: Tree = {}
    for path, value in values.items():
        *sections, key = path.split(".")
        section = tree
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    return tree


def _said(value: Any) -> Any:
    """A value without the keys in it that say nothing."""
    if isinstance(value, dict):
        return {key: _said(below) for key, below in value.items() if below is not None}
    return [_said(one) for one in value] if isinstance(value, list) else value


def _plain(value: object) -> object:
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
