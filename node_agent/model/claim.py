"""A ResourceClaim as far as a node has to do with it: what was allocated here, and with which configuration."""

from collections.abc import Mapping
from typing import NewType

from msgspec import Struct, field

ClaimUid = NewType("ClaimUid", str)
"""The identity of a claim; another claim may come under the same name."""


class AllocatedDevice(Struct, frozen=True, kw_only=True):
    """One result of an allocation.

    ``request`` is the request's name, with ``/subrequest`` where it chose among several. ``share_id`` tells the shares
    of one device apart; ``consumed`` is what this share takes of the device's capacities, as Kubernetes quantities.
    ``mode`` says how the GPUs have to be set for it, once its configuration was read; empty where that is all the same.
    """

    request: str
    driver: str
    pool: str
    device: str
    share_id: str | None = None
    admin: bool = False
    consumed: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""

    @property
    def base_request(self) -> str:
        """The request's name without the subrequest: what the kubelet knows it by."""
        return self.request.partition("/")[0]


class OpaqueConfig(Struct, frozen=True, kw_only=True):
    """Configuration for a driver, for the named requests or, where there are none, for all."""

    driver: str
    parameters: Mapping[str, object]
    requests: tuple[str, ...] = ()
    from_class: bool = False


class Claim(Struct, frozen=True, kw_only=True):
    """A claim; ``results`` is None while nothing is allocated. ``configs`` are in the order of their precedence."""

    uid: ClaimUid
    namespace: str
    name: str
    results: tuple[AllocatedDevice, ...] | None = None
    configs: tuple[OpaqueConfig, ...] = ()
    generation: int = 0
    pod_claim_name: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def of_driver(self, driver: str) -> tuple[AllocatedDevice, ...]:
        """The allocated devices that are this driver's."""
        return tuple(result for result in self.results or () if result.driver == driver)
