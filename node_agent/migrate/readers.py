"""What is made of the values of NVIDIA's keys. The tables that say which reader is whose are in ``tables``."""

from collections.abc import Iterator, Mapping
from typing import Any

from node_agent.config.document import read
from node_agent.config.notices import UNSERVED_VARIABLES
from node_agent.config.sources import VARIABLES
from node_agent.errors import ConfigError
from node_agent.migrate.keys import Fate, Finding, Layouts, Monitoring, Named, Piece, PodPart, Reader, Setting

USUAL_MPS_ROOT, OPERATOR_DRIVER = "/run/nvidia/mps", "/run/nvidia/driver"

_MANIFEST = "the DaemonSet has it"
# Of a container that is not ours: what these variables were for is there anyway, or cannot be had.
_THEIR_VARIABLES: Mapping[str, tuple[Fate, str]] = {
    "NVIDIA_VISIBLE_DEVICES": ("not needed", _MANIFEST),
    "NVIDIA_DRIVER_CAPABILITIES": ("not needed", _MANIFEST),
    "DCGM_EXPORTER_KUBERNETES": ("not needed", "series always name the pod that has the device"),
    "DCGM_EXPORTER_INTERVAL": ("not needed", "figures are read while somebody scrapes"),
    "DCGM_EXPORTER_COLLECTORS": ("to decide", "a list of metrics of your own: give its ConfigMap as a file, too"),
    "WITH_REBOOT": ("no equal", "the agent never reboots a node; nvidia.com/mig.config.state says what it waits for"),
    "MPS_ROOT": ("not needed", f"the component mps has {USUAL_MPS_ROOT}"),
    **dict.fromkeys(("NODE_NAME", "POD_NAME", "KUBECONFIG"), ("not needed", _MANIFEST)),
    **dict.fromkeys(("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"), ("not needed", _MANIFEST)),
    **{name: ("no equal", why) for name, why in UNSERVED_VARIABLES.items()},
}
_BY_VARIABLE = {name: (path, as_value) for path, (as_value, names) in VARIABLES.items() for name in names}


def setting(path: str) -> Reader:
    """The value is that of our key."""

    def reader(_: str, value: Any) -> Iterator[Piece]:
        yield Setting(path=path, value=value)

    return reader


def words(path: str) -> Reader:
    """Text with commas is a list."""

    def reader(_: str, value: Any) -> Iterator[Piece]:
        listed = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
        yield Setting(path=path, value=listed)

    return reader


def off(path: str, value: object) -> Reader:
    """What is switched off is a ``value`` of our key; what is on needs none."""
    return _switched(False, path, value)


def on(path: str, value: object) -> Reader:
    """What is switched on is a ``value`` of our key; what is off needs none."""
    return _switched(True, path, value)


def _switched(to: bool, path: str, value: object) -> Reader:
    def reader(_: str, given: Any) -> Iterator[Piece]:
        if given is to:
            yield Setting(path=path, value=value)

    return reader


def pod(path: str) -> Reader:
    """The value is a part of the pod template."""

    def reader(_: str, value: Any) -> Iterator[Piece]:
        yield PodPart(path=path, value=value)

    return reader


def pod_variable(name: str) -> Reader:
    """The value is a variable of the agent's container."""

    def reader(_: str, value: Any) -> Iterator[Piece]:
        text = ",".join(value) if isinstance(value, list) else str(value)
        yield PodPart(path="spec.containers.agent.env", value=[{"name": name, "value": text}])

    return reader


def driver_root(_: str, value: Any) -> Iterator[Piece]:
    """The host's driver, which the DaemonSet mounts from there."""
    yield Setting(path="flags.nvidiaDriverRoot", value=value)
    if value != "/":
        yield PodPart(path="spec.volumes", value=[{"name": "driver-root", "hostPath": {"path": value}}])


def operator_driver(path: str, value: Any) -> Iterator[Piece]:
    """A driver in a container, which lies where the operator puts it, and is awaited."""
    if value is not True:
        return
    validations = "/run/nvidia/validations"
    yield Setting(path="agent.gpuOperator.waitFor", value=["driver"])
    yield from driver_root(path, OPERATOR_DRIVER)
    why = (
        f"compare NVIDIA_DEV_ROOT in {validations}/driver-ready: where it is set and not /, give it to the agent's pod"
    )
    yield Finding(path=path, fate="to decide", why=why)
    mount = {"name": "validations", "mountPath": validations, "readOnly": True}
    volume = {"name": "validations", "hostPath": {"path": validations, "type": "DirectoryOrCreate"}}
    yield PodPart(path="spec.containers.agent.volumeMounts", value=[mount])
    yield PodPart(path="spec.volumes", value=[volume])


def install_folder(path: str, value: Any) -> Iterator[Piece]:
    if value != OPERATOR_DRIVER:
        why = f"where driver.enabled is true: flags.nvidiaDriverRoot and the volume driver-root are {value}"
        yield Finding(path=path, fate="to decide", why=why)


def mps_root(path: str, value: Any) -> Iterator[Piece]:
    if value != USUAL_MPS_ROOT:
        why = (
            f"the component mps has {USUAL_MPS_ROOT} in a variable, a mount and a volume: change all three, or leave it"
        )
        yield Finding(path=path, fate="to decide", why=why)


def shares(path: str, value: Any) -> Iterator[Piece]:
    """How many claims may have a device at once: NVIDIA's driver counts memory or nothing, the agent memory."""
    if value in ("disabled", False):
        return
    yield Setting(path="agent.devices.shareable", value=["*"])
    if value != "memory":
        why = f"{value}: claims that share a GPU are bounded by the memory that they ask for, not by their number"
        yield Finding(path=path, fate="to decide", why=why)


def address(path: str, value: Any) -> Iterator[Piece]:
    if not str(value).endswith(":9400") and str(value) != "9400":
        why = "the DaemonSet serves :9400: change --http-address and the container's port"
        yield Finding(path=path, fate="to decide", why=why)


def monitoring(_: str, value: Any) -> Iterator[Piece]:
    if value is True:
        yield Monitoring()


def variables(path: str, value: Any) -> Iterator[Piece]:
    """A container's variables: those that are keys of the configuration become such."""
    for one in _items(path, value):
        name, here = str(one.get("name")), f"{path}[{one.get('name')}]"
        if "valueFrom" in one:
            yield Finding(path=here, fate="to decide", why="its value is in another object")
        elif name in _THEIR_VARIABLES:
            fate, why = _THEIR_VARIABLES[name]
            yield Finding(path=here, fate=fate, why=why)
        elif name in _BY_VARIABLE:
            key, as_value = _BY_VARIABLE[name]
            yield Setting(path=key, value=as_value(str(one.get("value", "")).strip()))
        elif name == "DCGM_EXPORTER_LISTEN":
            yield from address(here, one.get("value"))
        else:
            yield Finding(path=here, fate="no equal", why="the agent reads no such variable")


def _items(path: str, value: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ConfigError(f"{path}: expected a list of variables with name and value")
    yield from value


def config_map(path: str, value: Any) -> Iterator[Piece]:
    """The data of a ConfigMap: entries are told by what they hold. The whole may be text, as old charts have it."""
    data = parsed(path, value)
    if not isinstance(data, dict):
        yield Finding(path=path, fate="unknown", why="no text with keys and values")
        return
    if "mig-configs" in data and isinstance(value, str):
        yield Layouts(text=value)
        return
    for name, text in data.items():
        yield from entry(f"{path}.{name}", name, text)


def entry(path: str, name: str, text: Any) -> Iterator[Piece]:
    """One entry of a ConfigMap: a configuration, layouts, or a list of metrics."""
    if isinstance(text, str) and "DCGM_" in text:
        yield from metrics(path, text)
        return
    values = parsed(path, text)
    if not isinstance(text, str) or not isinstance(values, dict | None):
        yield Finding(path=path, fate="unknown", why="neither a configuration, nor MIG layouts, nor a list of metrics")
    elif values and "mig-configs" in values:
        yield Layouts(text=text)
    else:
        yield Named(name=name, text=text)


def parsed(path: str, value: Any) -> Any:
    """The values of text, or what is none. Raises ConfigError that names the path."""
    try:
        return read(value.encode()) if isinstance(value, str) else value
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def metrics(path: str, text: Any) -> Iterator[Piece]:
    """DCGM-exporter's list: those that the agent does not have are named, and the newer names switch to these."""
    from node_agent.reporting.metrics.dcgm import FIELDS, XID_FIELDS  # noqa: PLC0415 - only for lists of metrics

    served = {one.name: one.current or one.name for one in FIELDS}
    served |= {one.name: one.current for one in XID_FIELDS}
    listed = [line.split(",")[0].strip() for line in str(text).splitlines() if line.strip() and line.strip()[0] != "#"]
    newer = set(served.values()) - set(served)
    if any(name in newer for name in listed):
        yield Setting(path="agent.metrics.names", value="current")
    for name in dict.fromkeys(listed):
        if name not in served and name not in newer:
            yield Finding(path=f"{path}[{name}]", fate="no equal", why="the agent has no such metric")
    if listed:
        why = "the agent serves all of its metrics: leave some out by metric relabelings of the PodMonitor"
        yield Finding(path=path, fate="not needed", why=why)
