"""How a container gets the devices that it was given: the answer to Allocate. Pure.

By default CDI names alone, which a pod cannot forge. The other strategies are those of NVIDIA's device plugin, for
nodes whose container runtime expects them.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.deviceplugin.offer import OfferedDevice

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
# The container toolkit takes mounts of /dev/null below this folder as the names of the wanted devices.
VOLUME_MOUNTS_FOLDER = "/var/run/nvidia-container-devices"
# By the same two ways the toolkit is told of IMEX channels; by CDI they come with every GPU.
IMEX_CHANNELS, IMEX_FOLDER = "NVIDIA_IMEX_CHANNELS", f"{VOLUME_MOUNTS_FOLDER}/imex"


class Mount(Struct, frozen=True, kw_only=True):
    host_path: str
    container_path: str
    read_only: bool = False


class Answer(Struct, frozen=True, kw_only=True):
    """What the kubelet is to add to the container."""

    cdi_names: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)


class Naming(Struct, frozen=True, kw_only=True):
    """How devices are called: ``qualified`` makes a CDI name of a device's, which is its UUID, or ``by_index``.

    ``annotation`` is the key under which CDI names are annotated; another one for each resource, since the kubelet
    keeps only one value of a key. ``channels`` tells the IMEX channels that go with every device.
    """

    qualified: Callable[[str], str]
    by_index: bool = False
    annotation: str = "cdi.k8s.io/node-agent_gpu"
    channels: Callable[[], Sequence[int]] = tuple

    def of(self, device: OfferedDevice) -> str:
        return device.index if self.by_index else device.uuid


def answer(devices: Sequence[OfferedDevice], strategies: Sequence[str], naming: Naming) -> Answer:
    """The answer for these devices: each GPU or partition once, however many shares, in the order given."""
    names = list(dict.fromkeys(naming.of(device) for device in devices))
    parts = [_STRATEGIES[strategy](names, naming) for strategy in strategies]
    return Answer(
        cdi_names=tuple(name for part in parts for name in part.cdi_names),
        environment={key: value for part in parts for key, value in part.environment.items()},
        mounts=tuple(mount for part in parts for mount in part.mounts),
        annotations={key: value for part in parts for key, value in part.annotations.items()},
    )


def as_client(answer: Answer, environment: Mapping[str, str], folders: Mapping[str, str]) -> Answer:
    """The answer for a client of an MPS daemon: with these variables, and folders of the host by where they go."""
    mounts = tuple(Mount(host_path=host, container_path=place) for host, place in folders.items())
    return replace(answer, environment={**answer.environment, **environment}, mounts=(*answer.mounts, *mounts))


def _cdi_cri(names: Sequence[str], naming: Naming) -> Answer:
    return Answer(cdi_names=tuple(naming.qualified(name) for name in names))


def _cdi_annotations(names: Sequence[str], naming: Naming) -> Answer:
    return Answer(annotations={naming.annotation: ",".join(naming.qualified(name) for name in names)})


def _envvar(names: Sequence[str], naming: Naming) -> Answer:
    channels = ",".join(map(str, naming.channels()))
    return Answer(environment={VISIBLE_DEVICES: ",".join(names), **({IMEX_CHANNELS: channels} if channels else {})})


def _volume_mounts(names: Sequence[str], naming: Naming) -> Answer:
    places = [f"{VOLUME_MOUNTS_FOLDER}/{name}" for name in names]
    places += [f"{IMEX_FOLDER}/{channel}" for channel in naming.channels()]
    mounts = tuple(Mount(host_path="/dev/null", container_path=place) for place in places)
    return Answer(environment={VISIBLE_DEVICES: VOLUME_MOUNTS_FOLDER}, mounts=mounts)


_STRATEGIES: dict[str, Callable[[Sequence[str], Naming], Answer]] = {
    "cdi-cri": _cdi_cri,
    "cdi-annotations": _cdi_annotations,
    "envvar": _envvar,
    "volume-mounts": _volume_mounts,
}
STRATEGIES = tuple(_STRATEGIES)
