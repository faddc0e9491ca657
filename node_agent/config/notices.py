"""What the operator should know of a sound configuration: what is not served yet, and what has a price.

A key that means nothing yet is valid, since NVIDIA's file is read as it is, and is never ignored in silence. Whoever
serves a key takes its row out of ``UNSERVED``.
"""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from node_agent.config.file import File

# The key, or the section whose keys, do nothing so far; and what stands in their place.
UNSERVED: Mapping[str, str] = {
    "flags.failOnInitError": "the agent never ends because of the driver: it waits for it, and its status says so",
    "flags.gdrcopyEnabled": "GDRCopy devices are not offered yet",
    "flags.gdsEnabled": "GPUDirect Storage devices are not offered yet",
    "flags.mofedEnabled": "InfiniBand devices are not offered yet",
    "flags.deviceDiscoveryStrategy": "GPUs are found through NVML",
    "flags.plugin.passDeviceSpecs": "device nodes reach a container through CDI",
    "flags.gfd.oneshot": "labels are kept as long as the agent runs; `node-agent labels` prints them once",
    "flags.gfd.sleepInterval": "labels are written when something changes",
}
# Values of these keys that mean what the agent does anyway.
_SERVED_VALUES = {"flags.deviceDiscoveryStrategy": ("auto", "nvml")}

UNSERVED_VARIABLES: Mapping[str, str] = {
    "KUBELET_SOCKET": "the kubelet's folder is agent.paths.kubeletDir",
    "CDI_FEATURE_FLAGS": "the agent makes CDI specs of its own",
    "CDI_DISABLE_HOOKS": "the agent uses the hooks that the host's program has",
}


def notices(file: File, environment: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each thing to know, beginning with the key or variable that it is about."""
    given, default = flat(file), flat(File())
    for key, instead in UNSERVED.items():
        changed = [path for path in given if within(path, key) and given[path] != default.get(path)]
        if changed and given.get(key) not in _SERVED_VALUES.get(key, ()):
            yield f"{key}: valid, and not served by this version: {instead}"
    for name, instead in UNSERVED_VARIABLES.items():
        if environment.get(name):
            yield f"environment variable {name}: not served by this version: {instead}"
    for applies, sentence in _PRICES:
        if applies(file):
            yield sentence


def flat(file: File) -> dict[str, object]:
    """Every value of a file by the dotted path of its key; a list is one value."""
    return dict(_flat(msgspec.to_builtins(file), ""))


def _flat(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def within(path: str, key: str) -> bool:
    """Whether a path is that of a key, or of one below it."""
    return f"{path}.".startswith(f"{key}.")


def _strategies(file: File) -> tuple[str, ...]:
    given = file.flags.plugin.device_list_strategy
    return (given,) if isinstance(given, str) else given


def _shares(file: File) -> bool:
    return bool(file.agent.sharing.rules or file.sharing.time_slicing or file.sharing.mps)


_PRICES: tuple[tuple[Callable[[File], bool], str], ...] = (
    (
        lambda file: "envvar" in _strategies(file),
        "flags.plugin.deviceListStrategy: with envvar a pod that asked for nothing can set NVIDIA_VISIBLE_DEVICES "
        "itself and use every GPU; with cdi-cri it cannot",
    ),
    (
        lambda file: {"cdi-cri", "cdi-annotations"} <= set(_strategies(file)),
        "flags.plugin.deviceListStrategy: cdi-annotations is left out beside cdi-cri, since the runtime would inject "
        "each device twice",
    ),
    (
        lambda file: file.flags.plugin.device_id_strategy == "index",
        "flags.plugin.deviceIDStrategy: an index moves to another GPU when one drops out; a UUID never does",
    ),
    (
        lambda file: file.agent.health.ignored_xids == "all",
        "agent.health.ignoredXids: no Xid withdraws a GPU; one that is lost or does not answer is still withdrawn",
    ),
    (
        lambda file: _shares(file) and not file.agent.front_doors.device_plugin,
        "agent.frontDoors.devicePlugin: shares are for pods with limits, and none are served: claims get GPUs unshared",
    ),
)
