"""The generated page of all errors: what each means is in ``node_agent/errors.py``, what to do about it here."""

from collections.abc import Iterator, Mapping

from node_agent import errors
from node_agent.errors import NodeAgentError

HEAD = """# Errors

Generated from `node_agent/errors.py` and `tools/errors_page.py` by `python -m tools.documents --write`.
Every message says what is wrong, where, and what to do. A command prints it and exits with 1; the running agent logs it
and goes on with all that it does not concern. The names are the code's; one after └ is a case of one above it.

| error | means | met | to do |
| --- | --- | --- | --- |
"""
_KUBE = "log, `node-agent doctor`"
_POD = "Events of the pod"

WHAT_TO_DO: Mapping[str, tuple[str, str]] = {
    "NodeAgentError": ("nowhere by itself", "see those below"),
    "ConfigError": (
        "`config check`, the start, Event `GPUConfigurationRefused`",
        "correct the key that is named; until then the configuration before stays in force",
    ),
    "LayoutRefused": (
        "`mig plan`, Event `GPULayoutFailed`, the label `nvidia.com/mig.config.state`",
        "choose a layout that fits the model, see [mig.md](mig.md)",
    ),
    "HardwareError": ("log, cause `query-failed`", "`node-agent health`; the driver's log (`dmesg`) says more"),
    "DriverUnavailable": (
        "`/readyz`, condition `GPUHealthy`",
        "install or load the driver; the agent waits for it and goes on by itself",
    ),
    "LibraryUnusable": (
        "`/readyz`, `node-agent doctor`",
        "mount the driver's root, or reload the module after an upgrade",
    ),
    "NotSupported": ("nowhere: what the GPU does not have is left out", "nothing"),
    "DeviceLost": ("cause `gpu-lost`", "reset the GPU or reboot the node; it comes back by itself"),
    "InUse": (f"Event `GPULayoutWaits`, {_POD}", "wait for, or end, what the message names"),
    "CallTimedOut": ("cause `query-failed`, `/readyz`", "if it lasts, reset the GPU or reboot the node"),
    "SimulationError": ("`demo`, `simulate`, `--simulate`", "choose another profile or folder, as the message says"),
    "AllocationError": (_POD, "see those below"),
    "UnknownDevice": (_POD, "none: the list has changed meanwhile; the pod's controller makes another pod"),
    "PoolUnknown": (_POD, "none: the kubelet tries again once the GPUs were looked at"),
    "DeviceWithdrawn": (_POD, "see to the cause: `node-agent health`; the pod's controller makes another pod"),
    "DeviceHeld": (_POD, "wait for the holder that is named, or end it; a claim is tried again"),
    "ModesDisagree": (_POD, "let the claims that share the GPU ask for the same way of sharing"),
    "DomainNotReady": (
        _POD,
        "none at first; if it lasts, see the domain's daemon pods: [compute-domains.md](compute-domains.md)",
    ),
    "DomainRefused": (
        _POD,
        "make the claim from the template of a ComputeDomain of the pod's namespace; a daemon's is NVIDIA's to make",
    ),
    "Overtaken": ("log", "none: the claim was given up meanwhile"),
    "ClaimUnreadable": (
        _POD,
        "none where the claim is gone; else see that it is allocated, and of a version that is served",
    ),
    "ClaimConfigInvalid": (
        _POD,
        "correct the field of the opaque configuration that is named, in the claim or its class",
    ),
    "MpsError": (
        f"cause `mps-daemon-dead`, {_POD}",
        "none: it is started again; `node-agent status` says why it fails",
    ),
    "MpsImpossible": (f"{_POD}, `node-agent status`", "share by time-slicing, or remove what the message names"),
    "StateError": ("log, Events of the pod", "see that `agent.paths.stateDir` can be written and has room"),
    "CheckpointDamaged": (
        "log at the start",
        "none: it is kept beside its place, and holders are learned from the kubelet and the claims",
    ),
    "HoldersUnknown": (_POD, "none: it passes when the kubelet and the API server have answered"),
    "CdiError": ("`/readyz`, log", "see those below"),
    "DriverFilesMissing": (
        "`/readyz`, `node-agent doctor`",
        "see where the driver is: `flags.nvidiaDriverRoot`, `flags.plugin.containerDriverRoot`",
    ),
    "DriverFilesUnknown": (_POD, "none: it passes when the driver's files were looked at"),
    "PartitionGone": (_POD, "do not cut by hand what claims hold; the pod's controller makes another pod"),
    "InvalidSpec": ("log", "report it with the spec: the agent makes no such spec knowingly"),
    "KubeletError": (
        "`/readyz`",
        "see that the kubelet runs, and that its folder is mounted (`agent.paths.kubeletDir`)",
    ),
    "RegistrationRefused": (
        "`/readyz`, log",
        "do what the kubelet says; mostly its version or a name that it does not take",
    ),
    "LabelsNotWritten": (
        "`node-agent status`, log",
        "mount Node Feature Discovery's folder, or choose another `agent.labels.writer`",
    ),
    "KubeError": (_KUBE, "see those below"),
    "KubeAccessError": (_KUBE, "give the pod a service account, or `agent.kubeconfig`"),
    "KubeApiError": (_KUBE, "the message has the server's own words"),
    "NotFound": (_KUBE, "none where the object has just gone; else the server does not know the kind"),
    "Conflict": ("log at level debug", "none: it is read again and tried again"),
    "AlreadyExists": ("log at level debug", "none: the object that is there is looked at"),
    "Forbidden": (_KUBE, "apply the shipped roles, or the policy's reason: an agent may write for its own node alone"),
    "Invalid": ("log", "report it with the fields that are named"),
    "Expired": ("log at level debug", "none: all is listed anew"),
    "TooManyRequests": ("log", "none: it waits as long as the server says"),
    "Unavailable": (_KUBE, "none: it is tried again; pods with limits are served without the API server"),
}
"""Of each error: where people meet it, and what they are to do."""


def page() -> str:
    return HEAD + "".join(_row(kind, depth) for kind, depth in _tree(NodeAgentError, 0))


def _tree(kind: type[NodeAgentError], depth: int) -> Iterator[tuple[type[NodeAgentError], int]]:
    """An error and those below it, in the order of the module."""
    yield kind, depth
    below = [one for one in vars(errors).values() if isinstance(one, type) and kind in one.__bases__]
    for one in below:
        yield from _tree(one, depth + 1)


def _row(kind: type[NodeAgentError], depth: int) -> str:
    met, to_do = WHAT_TO_DO[kind.__name__]
    means = " ".join((kind.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
    return f"| {'└ ' * bool(depth)}`{kind.__name__}` | {means} | {met} | {to_do} |\n"
