"""Whose GPUs they are: the names by which Kubernetes and the container runtimes know them. Nothing else names a vendor.

The settings say which one the node has, and the inventory carries it to whoever needs a name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Vendor:
    """``domain`` is the vendor's in Kubernetes, from which all names follow as its own programs have them.

    ``cuda``: its GPUs have what comes with CUDA: MIG, MPS, set time slices, Xids, ComputeDomains. ``link`` is what
    joins its GPUs beside PCIe. ``gpu_type`` is the attribute ``type`` of a whole GPU; ``attributes`` are those
    attributes and capacities that it calls by other names than NVIDIA, without a name where it has none, and
    ``own_numa_node`` says that its driver has the NUMA node in its own domain as well.
    """

    name: str
    domain: str
    cuda: bool = False
    link: str = "NVLink"
    gpu_type: str = "gpu"
    own_numa_node: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def resource(self) -> str:
        """What whole GPUs are offered as by limits."""
        return f"{self.domain}/gpu"

    @property
    def driver(self) -> str:
        """The DRA driver's name, and the domain of the attributes and taint keys that are its own."""
        return f"gpu.{self.domain}"

    @property
    def own_domain(self) -> str:
        """For what the vendor has no name for: the agent's own labels, and the vendor of its CDI kinds.

        The vendor's CDI kind is its own toolkit's, and a name that two files of one folder define resolves to neither.
        """
        return f"node-agent.{self.driver}"

    @property
    def cdi_kind(self) -> str:
        return f"{self.own_domain}/gpu"

    @property
    def cdi_claim_kind(self) -> str:
        return f"{self.own_domain}/claim"

    def full(self, resource: str) -> str:
        """The full name of a resource: the vendor's domain is added where it is missing."""
        return resource if self.owns(resource) else f"{self.domain}/{resource}"

    def owns(self, resource: str) -> bool:
        """Whether a resource is one of the vendor's, by its name."""
        return resource.startswith(f"{self.domain}/")


NVIDIA = Vendor(name="NVIDIA", domain="nvidia.com", cuda=True)
AMD = Vendor(
    name="AMD",
    domain="amd.com",
    link="xGMI",
    gpu_type="amdgpu",
    own_numa_node=True,
    attributes={
        "migCapable": "",
        "multiprocessors": "computeUnits",
        "nvlinkDomain": "xgmiDomain",
        "nvlinkBandwidthMBps": "xgmiBandwidthMBps",
    },
)
VENDORS: Mapping[str, Vendor] = {vendor.name.lower(): vendor for vendor in (NVIDIA, AMD)}
"""By the words of the configuration."""
