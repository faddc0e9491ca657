"""What no type of ``file`` can say: ranges of durations, names of resources, and keys that need or exclude others."""

import re
from collections.abc import Iterator

from msgspec import to_builtins

from node_agent.config.check import Problem, shown
from node_agent.config.durations import seconds
from node_agent.config.file import File, SharedResource, SharedResources, SharingRule
from node_agent.config.notices import flat, within
from node_agent.config.quantities import MIB, amount
from node_agent.model.vendor import NVIDIA, Vendor

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")


# What only GPUs with CUDA have. Another vendor's would never do what these keys say.
_CUDA = (
    "flags.migStrategy",
    "resources.mig",
    "sharing.mps",
    "imex",
    "agent.mig.onDemand",
    "agent.mig.config",
    "agent.mig.configFile",
    "agent.mig.keepRoomFor",
    "agent.frontDoors.computeDomains",
    "agent.gpuOperator.waitFor",
)
# Ways to give devices to a container that every runtime knows, whoever made the device.
_PLAIN_STRATEGIES = {"cdi-cri", "cdi-annotations"}


def shared_name(resource: SharedResource, section: SharedResources, vendor: Vendor) -> str:
    """What the shares of NVIDIA's section are offered as: the name of the whole devices, unless they are renamed."""
    if resource.rename:
        return vendor.full(resource.rename)
    return f"{vendor.full(resource.name)}{'.shared' if section.rename_by_default else ''}"


def broken_rules(file: File, vendor: Vendor = NVIDIA) -> Iterator[Problem]:
    """Every rule that a file breaks although its types are right, on a node with this vendor's GPUs."""
    yield from _durations(file)
    yield from _agent(file)
    yield from _health(file)
    yield from _sharing(file, vendor)
    for number, rule in enumerate(file.agent.sharing.rules):
        yield from _own_sharing(f"agent.sharing.rules[{number}]", rule, vendor)
    for section, named in (("gpus", file.resources.gpus), ("mig", file.resources.mig)):
        for number, one in enumerate(named):
            yield from _name(f"resources.{section}[{number}].name", one.name, vendor)
    if not vendor.cuda:
        yield from _without_cuda(file, vendor)


def _without_cuda(file: File, vendor: Vendor) -> Iterator[Problem]:
    """What is asked of GPUs that have no CUDA and cannot do it."""
    given, default = flat(file), flat(File())
    changed = [path for path in given if given[path] != default.get(path)]
    asked = [key for key in _CUDA if any(within(path, key) for path in changed)]
    strategies = file.flags.plugin.device_list_strategy
    if not {strategies, *([] if isinstance(strategies, str) else strategies)} <= _PLAIN_STRATEGIES:
        asked.append("flags.plugin.deviceListStrategy")
    for number, rule in enumerate(file.agent.sharing.rules):
        asked += [f"agent.sharing.rules[{number}].strategy"] * (rule.strategy == "mps")
        asked += [f"agent.sharing.rules[{number}].timeSlice"] * (rule.time_slice != "Default")
    for path in asked:
        yield Problem(path=path, message=f"{vendor.name}'s GPUs cannot do that: leave the key out, or see agent.vendor")


def _durations(file: File) -> Iterator[Problem]:
    given = {
        "agent.rescanInterval": file.agent.rescan_interval,
        "agent.health.probeInterval": file.agent.health.probe_interval,
        **{f"agent.health.rules[{number}].within": rule.within for number, rule in enumerate(file.agent.health.rules)},
    }
    for path, value in given.items():
        if not 1 <= seconds(value) <= 3600:
            yield Problem(path=path, message=f"expected a duration from 1s to 1h; got {shown(value)}")


def _agent(file: File) -> Iterator[Problem]:
    node, address = file.agent.node_name, file.agent.http.address
    if node and not (len(node) <= 253 and _SUBDOMAIN.fullmatch(node)):
        yield Problem(path="agent.nodeName", message=f"expected the name of a Kubernetes node; got {shown(node)}")
    if address and int(address.rpartition(":")[2]) > 65535:
        yield Problem(path="agent.http.address", message=f"expected a port up to 65535; got {shown(address)}")


def _health(file: File) -> Iterator[Problem]:
    for number, rule in enumerate(file.agent.health.rules):
        path = f"agent.health.rules[{number}]"
        if not rule.xids and not rule.causes:
            yield Problem(path=path, message="is about nothing: give it xids or causes")
        if rule.action is None and rule.cleared_by is None:
            yield Problem(path=path, message="says nothing: give it an action or clearedBy")
        if rule.action is None and rule.after > 1:
            yield Problem(path=f"{path}.after", message="needs an action, which is what comes after so many")


def _sharing(file: File, vendor: Vendor) -> Iterator[Problem]:
    sharing = file.sharing
    if sharing.time_slicing and sharing.mps:
        yield Problem(path="sharing", message="timeSlicing and mps exclude each other: keep one of them")
    yield from _shared("sharing.timeSlicing", sharing.time_slicing, vendor)
    yield from _shared("sharing.mps", sharing.mps, vendor)


def _shared(path: str, shared: SharedResources | None, vendor: Vendor) -> Iterator[Problem]:
    for number, resource in enumerate(shared.resources if shared else ()):
        here = f"{path}.resources[{number}]"
        yield from _name(f"{here}.name", resource.name, vendor)
        if resource.rename:
            yield from _name(f"{here}.rename", resource.rename, vendor)
        elif shared and shared.rename_by_default and _is_name(resource.name, vendor):
            yield from _name(f"{here}.name", shared_name(resource, shared, vendor), vendor)


# What a rule of ours may say with one strategy only, by the path below the rule.
_FOREIGN = {
    "time-slicing": ("memoryPerShare", "threadPercentagePerShare", "overcommit", "multiUser"),
    "mps": ("timeSlice",),
}


def _own_sharing(path: str, rule: SharingRule, vendor: Vendor) -> Iterator[Problem]:
    given, default = (to_builtins(one) for one in (rule, SharingRule(replicas=1)))
    for key in _FOREIGN[rule.strategy]:
        if given[key] != default[key]:
            yield Problem(path=f"{path}.{key}", message=f"does not go with the strategy {rule.strategy}")
    if rule.strategy == "time-slicing" and rule.replicas < 2:
        message = "expected a whole number of at least 2 with time-slicing, and 1 with mps; got 1"
        yield Problem(path=f"{path}.replicas", message=message)
    if rule.resource:
        yield from _name(f"{path}.resource", rule.resource, vendor)
    if rule.memory_per_share is not None and amount(rule.memory_per_share) < MIB:
        message = f"expected at least 1Mi; got {shown(rule.memory_per_share)}"
        yield Problem(path=f"{path}.memoryPerShare", message=message)
    percent = rule.thread_percentage_per_share or 0
    if rule.replicas * percent > 100 and not rule.overcommit:
        message = f"{rule.replicas} shares of {percent} % are more than the GPU: give less, or set overcommit"
        yield Problem(path=f"{path}.threadPercentagePerShare", message=message)


def _name(path: str, name: str, vendor: Vendor) -> Iterator[Problem]:
    if not _is_name(name, vendor):
        form = f"in the domain {vendor.domain}, of lower-case letters, digits, '-' and '.', 63 in all"
        message = f"expected a resource such as {vendor.resource}: {form}; got {shown(name)}"
        yield Problem(path=path, message=message)


def _is_name(name: str, vendor: Vendor) -> bool:
    full = vendor.full(name)
    return len(full) <= 63 and _SUBDOMAIN.fullmatch(full.removeprefix(f"{vendor.domain}/")) is not None
