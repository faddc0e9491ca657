"""What a claim has been allocated on this node, as a grant that is yet to be prepared. Pure."""

from collections.abc import Mapping

from msgspec.structs import replace

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.errors import AllocationError, UnknownDevice
from node_agent.model.claim import AllocatedDevice, Claim
from node_agent.model.device import PublishedDevice

Devices = Mapping[str, PublishedDevice]
"""What is published from this node, by name."""


def grant_for(claim: Claim, driver: str, devices: Devices) -> Grant:
    """The grant that a claim's allocation calls for.

    Raises:
        AllocationError: nothing of this driver is allocated to the claim.
        UnknownDevice: a device was allocated that this node does not publish.
    """
    allocated = claim.of_driver(driver)
    if not allocated:
        raise AllocationError(
            f"claim {claim.full_name} has no device of {driver} allocated: there is nothing to prepare"
        )
    holder = Holder(door=Door.CLAIM, id=claim.uid, name=claim.full_name)
    return Grant(holder=holder, holds=tuple(_hold(claim, each, devices) for each in allocated))


def check_still_the_same(known: Grant, wanted: Grant) -> None:
    """Raise UnknownDevice where a device that the claim has had stands for other hardware by now.

    A claim names its device and nothing else; whoever took another GPU of that name would take somebody else's.
    """
    had = {hold.device: hold.places for hold in known.holds}
    for hold in wanted.holds:
        if hold.places != had.get(hold.device, hold.places):
            was, now = (", ".join(map(str, places)) for places in (had[hold.device], hold.places))
            raise UnknownDevice(
                f"{wanted.holder} has {hold.device}, which was {was} when it was prepared "
                f"and is {now} now: delete the pod and its claim, so that it is scheduled anew"
            )


def in_modes_of(known: Grant, wanted: Grant) -> Grant:
    """What is wanted, in the modes in which the claim has its devices: they stay set so while something may run."""
    had = {(hold.request, hold.device, hold.share_id): hold.mode for hold in known.holds}
    holds = (replace(one, mode=had.get((one.request, one.device, one.share_id), one.mode)) for one in wanted.holds)
    return replace(wanted, holds=tuple(holds))


def _hold(claim: Claim, allocated: AllocatedDevice, devices: Devices) -> Hold:
    device = devices.get(allocated.device)
    if device is None:
        raise UnknownDevice(
            f"claim {claim.full_name} has {allocated.device} of pool {allocated.pool} allocated, which is not there; "
            f"this node has {', '.join(sorted(devices)) or 'no device'}"
        )
    return Hold(
        device=device.name,
        gpus=device.gpus,
        part=device.part,
        request=allocated.request,
        pool=allocated.pool,
        share_id=allocated.share_id,
        admin=allocated.admin,
        mode=allocated.mode,
    )
