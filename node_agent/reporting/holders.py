"""Who holds what: the ledger's grants, and of each device the containers that have it, as the kubelet tells."""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.kit.latest import Latest
from node_agent.kubelet.podresources import PodDevice


class Holding(Struct, frozen=True, kw_only=True):
    """A device that ``holder`` has; ``pods`` are the containers that have it, none before the kubelet tells of them.

    A claim may be shared by several pods.
    """

    holder: Holder
    hold: Hold
    pods: tuple[PodDevice, ...] = ()


class Holders:
    """Who holds what at this moment; ``driver`` is the agent's name in claims."""

    def __init__(self, driver: str, grants: Latest[Mapping[str, Grant]], pods: Latest[tuple[PodDevice, ...]]) -> None:
        self._driver = driver
        self._grants = grants
        self._pods = pods

    @property
    def value(self) -> tuple[Holding, ...]:
        return holdings(self._driver, self._grants.value.values(), self._pods.value)


def holdings(driver: str, grants: Iterable[Grant], pods: Iterable[PodDevice]) -> tuple[Holding, ...]:
    """Every device of every grant, in the order of the grants. What pods have of others than the agent is left out."""
    containers: dict[PodDevice, list[PodDevice]] = {}
    for pod in pods:
        containers.setdefault(replace(pod, namespace="", pod="", container=""), []).append(pod)
    return tuple(
        Holding(holder=grant.holder, hold=hold, pods=tuple(containers.get(_told(driver, grant.holder, hold), ())))
        for grant in grants
        for hold in grant.holds
    )


def _told(driver: str, holder: Holder, hold: Hold) -> PodDevice:
    """What the kubelet tells of a hold, but for who has it."""
    if holder.door is Door.LIMIT:
        return PodDevice(of=holder.name, device=hold.device)
    return PodDevice(of=driver, device=hold.device, claim=holder.name, pool=hold.pool, share_id=hold.share_id)
