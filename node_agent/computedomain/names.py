"""What the driver, its devices and its objects are called: NVIDIA's names."""

from enum import StrEnum

from node_agent.kube.resources import Resource

DRIVER = "compute-domain.nvidia.com"

LABEL = "resource.nvidia.com/computeDomain"
"""The label of a node that serves a domain: its value is the domain's UID, and the domain's daemon goes where it is."""

DOMAINS = Resource(plural="computedomains", kind="ComputeDomain", group="resource.nvidia.com", version="v1beta1")
CLIQUES = Resource(
    plural="computedomaincliques", kind="ComputeDomainClique", group="resource.nvidia.com", version="v1beta1"
)


class Kind(StrEnum):
    """The values of the attribute ``type``; a node has one device of each."""

    CHANNEL = "channel"
    DAEMON = "daemon"

    @property
    def device(self) -> str:
        return f"{self}-0"


DEVICES = {kind.device: kind for kind in Kind}
