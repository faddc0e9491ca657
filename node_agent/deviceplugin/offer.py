"""What a resource offers: its devices, and which of them may be given out. Pure."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from node_agent.allocation.grants import Door, Grant, Holder
from node_agent.deviceplugin.selection import Forms
from node_agent.errors import AllocationError
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid, Part, Place
from node_agent.model.unit import Unit
from node_agent.model.vendor import Vendor
from node_agent.sharing.shares import Shared, Strategy, parts_of
from node_agent.topology.preferred import DeviceId, Policy, Pool
from node_agent.topology.score import scores


class OfferedDevice(Struct, frozen=True, kw_only=True):
    """One entry of the list, on or of a GPU, or the ``part`` of it; ``index`` is the driver's present number for that.

    ``shared`` is how the GPU is shared of which it is a share. ``trouble`` says why the device must not be given out;
    None where it may. A ``gone`` one is in the list only since a pod may still hold it.
    """

    id: str
    gpu: GpuUuid
    index: str
    part: Part | None = None
    numa_node: int | None = None
    shared: Shared | None = None
    trouble: str | None = None
    gone: bool = False

    @property
    def uuid(self) -> DeviceUuid:
        """The GPU or partition that it is, or is a share of."""
        return parts_of(self.id)[0]

    @property
    def healthy(self) -> bool:
        return self.trouble is None


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The whole list of one resource. ``pool`` is what choosing among its devices needs, worked out beforehand."""

    resource: str
    devices: tuple[OfferedDevice, ...] = ()
    pool: Pool = field(compare=False, repr=False)

    @cached_property
    def by_id(self) -> Mapping[str, OfferedDevice]:
        return {device.id: device for device in self.devices}

    @property
    def healthy(self) -> frozenset[str]:
        """The ids of what can be given out."""
        return frozenset(device.id for device in self.devices if device.healthy)


def is_ours(resource: str, device: str, vendor: Vendor) -> bool:
    """Whether a device that a pod holds is the agent's, by the form of its id.

    The pod holds it whether or not the driver lists it, and whatever the configuration calls it by now.
    """
    return vendor.owns(resource) and device.startswith(("GPU-", "MIG-"))


def place_of(device: str, inventory: Inventory) -> Place | None:
    """What a device takes of the hardware; None for a partition that is not there (any more)."""
    return inventory.place_of(parts_of(device)[0])


def pool_of(inventory: Inventory, devices: Iterable[OfferedDevice], policy: Policy = Policy.SPREAD) -> Pool:
    """What choosing among these devices needs; takes some milliseconds on a large node."""
    return Pool(scores=scores(inventory), parents=_parents(devices), policy=policy)


def with_absent(
    devices: Iterable[OfferedDevice], before: Iterable[OfferedDevice], inventory: Inventory
) -> tuple[OfferedDevice, ...]:
    """The devices, and unhealthy those of the list ``before`` that are not among them.

    The kubelet may crash on a device that vanishes from the list while a pod holds it. One that should be there stays
    for good; one that is ``gone`` as this kind of device, since its GPU is in MIG mode by now or it is a partition that
    was removed, is left to ``forget``.
    """
    present = tuple(devices)
    known = {device.id for device in present}
    missing = {gpu.uuid: gpu.reason for gpu in inventory.missing}
    absent = [
        (device, missing.get(device.gpu) or (device.part and inventory.unlisted.get(device.gpu)))
        for device in before
        if device.id not in known
    ]
    return (
        *present,
        *(replace(one, trouble=unread, gone=False) for one, unread in absent if unread),
        *(replace(one, trouble=_why_gone(one, inventory), gone=True) for one, unread in absent if not unread),
    )


def forget(offer: Offer, held: Collection[str]) -> Offer:
    """The offer without the gone devices that no pod holds any more."""
    kept = tuple(device for device in offer.devices if not device.gone or device.id in held)
    pool = dataclasses.replace(offer.pool, parents=_parents(kept))
    return dataclasses.replace(offer, devices=kept, pool=pool)


def _parents(devices: Iterable[OfferedDevice]) -> Mapping[DeviceId, GpuUuid]:
    return {DeviceId(device.id): device.gpu for device in devices}


def check_request(resource: str, devices: Sequence[OfferedDevice], policy: Policy) -> None:
    """Refuse what must not be given to one container together.

    Raises:
        AllocationError: several shares where one is the most, or where each has to be of another GPU.
    """
    if len(devices) == 1:
        return
    for device in devices:
        if device.shared is not None and device.shared.at_most_one:
            raise AllocationError(
                f"{resource}: {len(devices)} were asked for and at most 1 can be had: {_WHY[device.shared.strategy]}"
            )
    if policy is Policy.DISTINCT and len({device.gpu for device in devices}) < len(devices):
        raise AllocationError(
            f"{resource}: {len(devices)} were asked for, each on another GPU, and too few GPUs have one left: "
            "ask for fewer, or set agent.sharing.placement to spread"
        )


_WHY = {
    Strategy.TIME_SLICING: "it is shared by time-slicing, where two shares of a GPU are no more of it than one; "
    "ask for 1, or set failRequestsGreaterThanOne to false",
    Strategy.MPS: "it is shared by MPS, and a container can be the client of one MPS daemon only, "
    "with the limits of one share; ask for 1, and for larger shares in the configuration",
}


def trouble_of(
    unit: Unit, health: HealthReport, taken: Mapping[DeviceUuid, str], reachable: Collection[DeviceUuid] | None
) -> str | None:
    """Why nothing of a GPU or partition must be given out; None where it may.

    ``taken`` are those of which somebody has something that they cannot be had beside, with who that is. ``reachable``
    are those that a container can be given (those of the CDI spec), or None where that needs no preparation.
    """
    found = health.of(unit.gpu.uuid) if unit.instance is None else health.of_instance(unit.gpu.uuid, unit.instance)
    if found.withdrawn:
        return "; ".join(cause.text for cause in found.causes)
    if unit.uuid in taken:
        return taken[unit.uuid]
    if unit.partition is None and unit.gpu.partitioned:
        return "it is in MIG mode, for claims that want a part of it"
    return "no CDI spec names it yet" if reachable is not None and unit.uuid not in reachable else None


def taken(forms: Forms, grants: Iterable[Grant]) -> dict[DeviceUuid, str]:
    """Of what is offered all that cannot be had beside what somebody has, with who that is.

    What pods have of the very same by their limits is not in the way: that is for ``listing``.
    """
    held: dict[GpuUuid, list[tuple[Place, Holder]]] = {}
    for grant in grants:
        for place in (place for hold in grant.holds if not hold.admin for place in hold.places):
            held.setdefault(place.gpu, []).append((place, grant.holder))
    return {
        uuid: f"held by {holder}"
        for uuid, form in forms.items()
        for place, holder in held.get(form.unit.gpu.uuid, ())
        if form.place.overlaps(place) and not (holder.door is Door.LIMIT and place == form.place)
    }


def _why_gone(device: OfferedDevice, inventory: Inventory) -> str:
    gpu = inventory.by_uuid.get(device.gpu)
    if gpu is None:
        return "the driver no longer lists it"
    if device.part is not None:
        return "it is not offered any more" if device.uuid in inventory.partitions else "the MIG device was removed"
    return "in MIG mode it can only be used by its MIG devices" if gpu.partitioned else "it is not offered any more"
