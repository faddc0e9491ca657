"""Other programs that do on this node what the agent does: two owners of one thing break a node."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from node_agent.computedomain.names import DRIVER as DOMAINS
from node_agent.doctor import neighbours
from node_agent.doctor.finding import Finding, failed, ok, or_ok, warning
from node_agent.doctor.place import Place, answers
from node_agent.kube.resources import Object
from node_agent.model.vendor import AMD, NVIDIA, Vendor

FEATURES = Path("etc/kubernetes/node-feature-discovery/features.d/gfd")
# Each vendor's device plugin: its sockets, of whole GPUs and of partitions, and how to have none.
_DEVICE_PLUGINS: Mapping[Vendor, tuple[re.Pattern[str], str]] = {
    NVIDIA: (
        re.compile(r"nvidia-(gpu|mig-.*)\.sock"),
        "remove nvidia-device-plugin from this node (GPU Operator: devicePlugin.enabled=false), or this agent",
    ),
    AMD: (
        re.compile(r"amd\.com_.+"),
        "remove AMD's device plugin (amdgpu-device-plugin-daemonset) from this node, or this agent",
    ),
}
_OURS = re.compile(r".*-[0-9a-f]{8}-reg\.sock")
MANAGER = "gpu-node-agent"


def device_plugin(place: Place) -> Iterator[Finding]:
    """The vendor's device plugin: of two for one resource the kubelet takes whoever registered last."""
    folder, vendor = place.kubelet / "device-plugins", place.settings.vendor
    socket, fix = _DEVICE_PLUGINS[vendor]
    live = [
        failed("owners.device-plugin", f"{vendor.name}'s device plugin serves here too", path, fix=fix)
        for path in _entries(folder)
        if socket.fullmatch(path.name) and answers(path)
    ]
    yield from or_ok(live, "owners.device-plugin", f"no other device plugin for {vendor.name}'s GPUs", folder)


def dra_driver(place: Place) -> Iterator[Finding]:
    """Another DRA driver of a name that the agent has: each would undo the other's slices."""
    folder = place.kubelet / "plugins_registry"
    vendor = place.settings.vendor
    drivers = {
        vendor.driver: _stop_driver(vendor),
        **({DOMAINS: _STOP_DOMAINS} if place.settings.compute_domains else {}),
    }
    live = [
        failed("owners.dra-driver", f"another driver announces itself as {driver}", path, fix=fix)
        for driver, fix in drivers.items()
        for path in _entries(folder)
        if path.match(f"{driver}-*reg.sock") and not _OURS.fullmatch(path.name) and answers(path)
    ]
    yield from or_ok(live, "owners.dra-driver", f"no other DRA driver {' or '.join(drivers)}", folder)


_STOP_DOMAINS = "keep NVIDIA's compute-domain plugin off this node, or set agent.frontDoors.computeDomains to false"


def _stop_driver(vendor: Vendor) -> str:
    return f"remove {vendor.name}'s DRA driver from this node, or set agent.frontDoors.dra to false"


def _entries(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(folder.iterdir())


def feature_discovery(place: Place) -> Iterator[Finding]:
    """GPU Feature Discovery, whose labels have the agent's names; other vendors' programs leave no file."""
    if not place.settings.vendor.cuda:
        return
    path = place.host / FEATURES
    if path.exists():
        fix = "remove gpu-feature-discovery from this node where the agent is to write the labels"
        yield warning("owners.labels", "GPU Feature Discovery has written its labels here", path, fix=fix)
    else:
        yield ok("owners.labels", "no labels of GPU Feature Discovery in a file", path)


def slices(found: list[Object], vendor: Vendor) -> Iterator[Finding]:
    """Slices of the vendor's driver for this node that somebody else has written."""
    others = sorted(
        {
            f"{item['metadata']['name']} by {entry.get('manager')}"
            for item in found
            for entry in item["metadata"].get("managedFields") or ()
            if entry.get("manager") != MANAGER
        }
    )
    driver, fix = vendor.driver, _stop_driver(vendor)
    lines = [failed("owners.slices", f"somebody else writes slices of {driver}: {one}", fix=fix) for one in others]
    yield from or_ok(lines, "owners.slices", f"{len(found)} slices of {driver} for this node, all of them the agent's")


def node_labels(node: Object, place: Place) -> Iterator[Finding]:
    """What the Node's labels say of others that were told to work here."""
    labels = node["metadata"].get("labels") or {}
    found = [
        warning("owners.operator", f"the GPU Operator is told to run {what} on this node", f"label {key}=true", fix=fix)
        for key, (what, fix) in _DEPLOYED.items()
        if labels.get(key) == "true"
    ]
    if labels.get("gpu") == "on" and neighbours.offers_plain_gpus(place):
        fix = "give one of them another resource name, as docs/user/hami.md says, or take gpu=on from the node"
        what = "HAMi's device plugin is told to serve here, and its chart's resourceName is nvidia.com/gpu by default"
        found.append(warning("owners.operator", what, "label gpu=on", fix=fix))
    yield from or_ok(found, "owners.operator", "nobody else is told by labels to serve the GPUs of this node")


_DEPLOYED = {
    "nvidia.com/gpu.deploy.device-plugin": (
        "NVIDIA's device plugin",
        "set devicePlugin.enabled=false there",
    ),
    "nvidia.com/gpu.deploy.gpu-feature-discovery": ("GPU Feature Discovery", "set gfd.enabled=false there"),
    "nvidia.com/gpu.deploy.dcgm-exporter": ("DCGM exporter", "set dcgmExporter.enabled=false there"),
    "nvidia.com/gpu.deploy.mig-manager": (
        "MIG manager",
        "set migManager.enabled=false there, where the agent cuts GPUs",
    ),
    "nvidia.com/gpu.deploy.dra-driver": (
        "NVIDIA's DRA driver",
        "switch draDriver off there, or set agent.frontDoors.dra to false",
    ),
}
