"""Every Event and condition that the agent writes, and what it means. The page of what is written is made from it."""

from collections.abc import Mapping

EVENTS: Mapping[str, tuple[str, str]] = {
    "GPUDegraded": ("Warning", "a cause has opened that leaves the GPU in service"),
    "GPUWithdrawn": (
        "Warning",
        "a cause has opened that takes the GPU out of service, or the driver does not list it any more",
    ),
    "GPUEvicted": ("Warning", "a cause has opened that also ends the pods which hold the GPU by claims"),
    "GPURestored": ("Normal", "the GPU is healthy, or in service, again"),
    "GPUsUnknown": ("Warning", "the driver does not answer, so nothing is known of any GPU"),
    "GPUsKnown": ("Normal", "the driver answers again"),
    "GPUAgentNotReady": ("Warning", "a part keeps the agent from its work; the note says which"),
    "GPUAgentReady": ("Normal", "the agent does its work again"),
    "GPUConfigurationRefused": ("Warning", "a changed configuration cannot be used; the one before stays in force"),
    "GPUConfigurationInForce": ("Normal", "the configuration that was refused is mended, and in force"),
    "GPULayoutFailed": ("Warning", "a MIG layout could not be made, and what was done of it is undone"),
    "GPULayoutWaits": ("Warning", "a MIG layout waits for GPUs that are in use; the note names who has them"),
    "GPULayoutInForce": ("Normal", "a MIG layout has been made"),
}
"""Of the Node: the reason, its type, and when it is written."""

CONDITIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Node: GPUHealthy": {
        "AllGPUsHealthy": ("True", "all GPUs are in service and well"),
        "GPUsDegraded": ("True", "all GPUs are in service, and some are degraded"),
        "GPUsOutOfService": ("False", "a GPU is out of service, or cannot be read"),
        "GPUsNotProbed": ("Unknown", "a GPU is out of service only since nobody has looked at it yet"),
        "GPUsUnknown": ("Unknown", "the driver does not answer"),
    },
    "Node: GPUAgentReady": {
        "AgentReady": ("True", "the agent does its work"),
        "AgentStarting": ("Unknown", "the agent is starting"),
        "ServicesRestarting": ("False", "a service of the agent fails and is started again"),
        "NotLookedYet": ("False", "the GPUs have not been looked at yet"),
        "LibraryUnusable": ("False", "the driver's library is not there, or is of another version"),
        "DriverUnavailable": ("False", "the driver does not answer"),
        "DriverHangs": ("False", "a call of the driver does not come back"),
        "NotWatched": ("False", "nobody would hear of a fault: the events of all GPUs fail"),
        "Unknown": ("False", "which GPUs there are is not known"),
        "SpecNotWritten": ("False", "the CDI spec cannot be made or written"),
        "NotRegistered": ("False", "the kubelet has not taken a resource or the driver of claims yet"),
        "Refused": ("False", "the kubelet has refused a resource, or its list cannot be sent"),
        "NotPublished": ("False", "slices cannot be published, and claims are required"),
    },
    "ResourceClaim, for each device: Ready": {
        "Prepared": ("True", "the device is ready on the node"),
        "Degraded": ("True", "it is ready, and something is wrong with it that costs no work"),
        "Unhealthy": ("False", "it is out of service"),
    },
    "ResourceClaim, for each part of a GPU: LimitsEnforced": {
        "ByMps": ("True", "MPS holds each process of the claim to its part"),
        "NotEnforced": ("False", "the scheduler counts the part, and nothing on the node holds the claim to it"),
    },
}
"""By object and type: the reason, its status, and what it means."""
