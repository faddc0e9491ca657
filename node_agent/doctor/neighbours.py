"""Other systems of the cluster that give out this node's GPUs, or count them: what the API server tells of them.

``owners`` has what is seen on the node itself. docs/user/neighbours.md says of each system what it reads of a node.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from node_agent.agent.live import selection_of
from node_agent.config.settings import Settings
from node_agent.doctor.finding import Finding, failed, ok, or_ok, skipped, warning
from node_agent.doctor.place import Place
from node_agent.kube.resources import Object
from node_agent.model.gpu import Gpu

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_REGISTERED: Mapping[str, str] = {
    "hami.io/node-nvidia-register": "HAMi",
    "volcano.sh/node-vgpu-register": "Volcano's vGPU",
}
"""The annotations of a Node in which a device plugin of its own writes what it gives out, as JSON or as text."""

_COUNT_BOTH: Mapping[str, str] = {
    "API group scheduling.run.ai": "KAI Scheduler",
    "API group autoscaling.x-k8s.io": "cluster-autoscaler",
    "label karpenter.sh/nodepool": "Karpenter",
}
"""By what it is seen, a system that adds up what both front doors offer, or knows one of them alone."""


def offers_plain_gpus(place: Place) -> bool:
    """Whether the agent serves ``nvidia.com/gpu`` here, or would once the driver answers."""
    vendor = place.settings.vendor
    if not (place.settings.device_plugin and vendor.cuda):
        return False
    forms = selection_of(place.settings).forms(place.inventory).values()
    return not place.inventory.gpus or any(form.resource == vendor.resource for form in forms)


def registered(node: Object, place: Place) -> Iterator[Finding]:
    """GPUs that another system's device plugin gives out beside the agent."""
    annotations, offered = node["metadata"].get("annotations") or {}, _offered(place)
    found = [
        failed("owners.gpus", f"{system}'s device plugin gives out {names} too", f"annotation {key}", fix=_LEAVE)
        for key, system in _REGISTERED.items()
        if (names := _names(offered, annotations.get(key, "")))
    ]
    yield from or_ok(found, "owners.gpus", "no other device plugin has registered a GPU that is offered here")


_LEAVE = "name them in agent.devices.exclude, or in filterdevices of that plugin's configuration"


def _offered(place: Place) -> tuple[Gpu, ...]:
    if not (place.settings.device_plugin or place.settings.dra is not False):
        return ()
    return selection_of(place.settings).kept(place.inventory)


def _names(offered: Collection[Gpu], annotation: str) -> str:
    theirs = set(_UUID.findall(annotation))
    return ", ".join(gpu.name for gpu in offered if gpu.uuid in theirs)


def counting(node: Object, groups: Collection[str], settings: Settings) -> Iterator[Finding]:
    """Systems that count a GPU twice where it is offered by limits and by claims."""
    if not settings.device_plugin or settings.dra is False:
        yield skipped("neighbours.counting", "GPUs are offered by one front door at most")
        return
    labels = node["metadata"].get("labels") or {}
    signs = {*(f"API group {group}" for group in groups), *(f"label {key}" for key in labels)}
    found = [
        warning("neighbours.counting", f"{system} {_COUNTS}", sign, fix=_ONE)
        for sign, system in _COUNT_BOTH.items()
        if sign in signs
    ]
    yield from found or (ok("neighbours.counting", "nobody is known here who counts GPUs of limits and claims twice"),)


_COUNTS = "does not see that limits and claims are for the same GPUs"
_ONE = "serve one of them on such nodes, agent.frontDoors.dra: false or devicePlugin: false: docs/user/neighbours.md"
