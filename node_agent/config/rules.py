"""What no type of ``file`` can say: ranges of durations, names of resources, and keys that need or exclude others."""

import re
from collections.abc import Iterator

from node_agent.config.check import Problem, shown
from node_agent.config.durations import seconds
from node_agent.config.file import File, SharedResources

RESOURCE_PREFIX = "nvidia.com/"

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def resource_name(name: str) -> str:
    """The full name of a resource: NVIDIA's prefix is added where it is missing."""
    return name if name.startswith(RESOURCE_PREFIX) else f"{RESOURCE_PREFIX}{name}"


def broken_rules(file: File) -> Iterator[Problem]:
    """Every rule that a file breaks although its types are right."""
    yield from _durations(file)
    yield from _agent(file)
    yield from _sharing(file)
    for section, rules in (("gpus", file.resources.gpus), ("mig", file.resources.mig)):
        for number, rule in enumerate(rules):
            yield from _name(f"resources.{section}[{number}].name", rule.name)


def _durations(file: File) -> Iterator[Problem]:
    given = {
        "agent.rescanInterval": file.agent.rescan_interval,
        "agent.health.probeInterval": file.agent.health.probe_interval,
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


def _sharing(file: File) -> Iterator[Problem]:
    sharing = file.sharing
    if sharing.time_slicing and sharing.mps:
        yield Problem(path="sharing", message="timeSlicing and mps exclude each other: keep one of them")
    if sharing.mps and not file.flags.mps_root:
        yield Problem(
            path="flags.mpsRoot", message="is missing, and so is MPS_ROOT; sharing.mps needs a folder for its daemons"
        )
    if sharing.mps and file.flags.mig_strategy == "mixed":
        yield Problem(path="flags.migStrategy", message="mixed and sharing.mps exclude each other: use none or single")
    yield from _shared("sharing.timeSlicing", sharing.time_slicing)
    yield from _shared("sharing.mps", sharing.mps)


def _shared(path: str, shared: SharedResources | None) -> Iterator[Problem]:
    for number, resource in enumerate(shared.resources if shared else ()):
        yield from _name(f"{path}.resources[{number}].name", resource.name)
        if resource.rename:
            yield from _name(f"{path}.resources[{number}].rename", resource.rename)


def _name(path: str, name: str) -> Iterator[Problem]:
    full = resource_name(name)
    if len(full) > 63 or not _SUBDOMAIN.fullmatch(full.removeprefix(RESOURCE_PREFIX)):
        expected = "expected a resource such as nvidia.com/gpu: lower-case letters, digits, '-' and '.', 63 in all"
        yield Problem(path=path, message=f"{expected}; got {shown(name)}")
