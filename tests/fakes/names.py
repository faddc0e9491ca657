"""The names that the tests of NVIDIA's nodes expect."""

from node_agent.model.vendor import NVIDIA

GPU_RESOURCE = NVIDIA.resource
DRIVER = NVIDIA.driver
KIND = NVIDIA.cdi_kind
OWN_PREFIX = f"{NVIDIA.own_domain}/"
CLAIM_KIND = NVIDIA.cdi_claim_kind
