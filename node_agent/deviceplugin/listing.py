"""Which devices a resource lists: each whole GPU or partition, or its shares. Pure.

A GPU, and a partition likewise, may be offered in another form than before while pods hold devices of the former one.
Those stay in the list as long as they are held, fit to be used, and each takes the place of one of the new devices. So
no pod loses anything, what the scheduler counts as free is free, and the GPU never has more users than it is offered
for, unless it had more before. A GPU as a whole, or under an MPS daemon, cannot be had beside others: it waits until
all of them are gone. And while an MPS daemon is left that serves them, nobody but its clients can open the GPU: nothing
else of it is fit.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct

from node_agent.allocation.grants import Door, Grant
from node_agent.deviceplugin.offer import OfferedDevice
from node_agent.deviceplugin.selection import Form, Forms
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.shares import Strategy, parts_of


class Held(Struct, frozen=True, kw_only=True, order=True):
    """A device that a pod has by its limits: its resource and its id."""

    resource: str
    device: str

    @property
    def is_share(self) -> bool:
        return parts_of(self.device)[1] is not None

    def is_of(self, form: Form) -> bool:
        """Whether it is one of the devices that its GPU is offered as."""
        return self.resource == form.resource and self.device in form.names

    def __str__(self) -> str:
        return f"{self.resource}/{self.device}"


Former = Mapping[DeviceUuid, Collection[Held]]
"""For each GPU of which pods hold devices of another form than it is offered in: all that they hold of it."""


def listing(
    resource: str,
    forms: Forms,
    *,
    former: Former,
    trouble: Callable[[DeviceUuid], str | None],
    served: Collection[DeviceUuid] = (),
) -> tuple[OfferedDevice, ...]:
    """What a resource lists; ``trouble`` says why nothing of a GPU must be given out.

    ``served`` are those that an MPS daemon still serves although they are not shared by MPS any more.
    """
    return tuple(
        device
        for uuid, form in forms.items()
        if form.resource == resource
        for device in _of_form(form, former.get(uuid, ()), trouble(uuid), served=uuid in served)
    )


def _of_form(form: Form, held: Collection[Held], trouble: str | None, *, served: bool) -> list[OfferedDevice]:
    kept = {one.device for one in held if one.is_of(form)}
    others = sorted(one for one in held if not one.is_of(form))
    fresh = [name for name in form.names if name not in kept]
    places = 0 if served else _places(form, others)
    fit = kept.union(fresh[: max(places - len(kept), 0)])
    users = sorted(held) if served else others
    waits = f"waits until pods have given back {', '.join(map(str, users))}" if users else "its MPS daemon is ending"
    devices = [_device(form, name, trouble or (None if name in fit else waits)) for name in form.names]
    stay = [one.device for one in others if one.resource == form.resource]
    return devices + [_device(form, name, trouble, gone=True) for name in stay]


def _places(form: Form, others: Collection[Held]) -> int:
    """How many devices of a form a GPU has place for, while pods hold others of it."""
    if others and (form.shared is None or not _goes_beside(form.shared.strategy, others)):
        return 0
    return len(form.names) - len(others)


def _goes_beside(strategy: Strategy, others: Collection[Held]) -> bool:
    """Who takes turns can do so with everybody; no process that has the GPU without MPS lets an MPS daemon in."""
    return strategy is Strategy.TIME_SLICING or all(one.is_share for one in others)


def _device(form: Form, name: str, trouble: str | None, *, gone: bool = False) -> OfferedDevice:
    return OfferedDevice(
        id=name,
        gpu=form.unit.gpu.uuid,
        part=form.place.part,
        index=form.unit.index,
        numa_node=form.unit.gpu.numa_node,
        shared=form.shared if parts_of(name)[1] is not None else None,
        trouble=trouble,
        gone=gone,
    )


def former_devices(grants: Iterable[Grant], forms: Forms, served: Collection[DeviceUuid] = ()) -> Former:
    """What pods hold of those GPUs that are offered in another form than what some of them hold, or are ``served``."""
    held: dict[DeviceUuid, set[Held]] = {}
    for grant in grants:
        for hold in grant.holds if grant.holder.door is Door.LIMIT else ():
            one = Held(resource=grant.holder.name, device=hold.device)
            held.setdefault(parts_of(one.device)[0], set()).add(one)
    return {
        uuid: frozenset(devices)
        for uuid, devices in held.items()
        if uuid in forms and (uuid in served or not all(one.is_of(forms[uuid]) for one in devices))
    }
