"""The scheduler is kept from GPUs that somebody holds where what is published does not say so."""

import asyncio
from collections.abc import Mapping

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.dra.slices import Pool
from node_agent.dra.withheld import Withholder, unseen
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import DeviceName
from node_agent.model.partition import DeviceUuid, Place
from tests.fakes.builders import cut, gpu, h200_node, partition, uuid


def pool(**devices: tuple[int, ...]) -> Pool:
    return Pool(
        devices={
            DeviceName(name.replace("_", "-")): PublishedDevice(
                name=DeviceName(name.replace("_", "-")), kind=DeviceKind.GPU, gpus=tuple(uuid(gpu) for gpu in gpus)
            )
            for name, gpus in devices.items()
        }
    )


def grants(door: Door, device: str, *gpus: int, admin: bool = False) -> Mapping[str, Grant]:
    hold = Hold(device=device, gpus=tuple(uuid(gpu) for gpu in gpus), admin=admin)
    return {"one": Grant(holder=Holder(door=door, id="one", name="default/one"), holds=(hold,))}


def places(*gpus: int) -> frozenset[Place]:
    return frozenset(Place(gpu=uuid(gpu)) for gpu in gpus)


SINGLE = pool(gpu_0=(0,), gpu_1=(1,))
GROUPED = pool(gpu_0=(0,), gpu_1=(1,), group_0_1=(0, 1))


def test_what_a_pod_got_by_its_limits_is_withheld() -> None:
    assert unseen(grants(Door.LIMIT, "gpu-0", 0), SINGLE) == places(0)
    assert unseen(grants(Door.LIMIT, "gpu-0", 0), None) == places(0)


def test_what_is_being_cut_anew_is_withheld_whatever_it_is_called() -> None:
    assert unseen(grants(Door.LAYOUT, "gpu-0", 0), SINGLE) == places(0)


def test_the_scheduler_sees_what_a_claim_holds_of_the_pool() -> None:
    assert unseen(grants(Door.CLAIM, "gpu-0", 0), SINGLE) == set()
    assert unseen(grants(Door.CLAIM, "group-0-1", 0, 1), GROUPED) == set()


def test_the_gpus_of_a_group_that_fell_apart_are_withheld() -> None:
    assert unseen(grants(Door.CLAIM, "group-0-1", 0, 1), SINGLE) == places(0, 1)


def test_a_device_that_stands_for_other_gpus_now_does_not_count_for_what_is_held() -> None:
    assert unseen(grants(Door.CLAIM, "gpu-0", 7), SINGLE) == places(7)


def test_a_claim_is_not_withheld_before_it_is_known_what_is_published() -> None:
    assert unseen(grants(Door.CLAIM, "group-0-1", 0, 1), None) == set()


def test_who_has_admin_access_takes_nothing_from_anybody() -> None:
    assert unseen(grants(Door.CLAIM, "gpu-9", 9, admin=True), SINGLE) == set()


PART = partition(gpu(0), "1g.18gb")
CUT = cut(h200_node(), {0: [PART]})


async def test_grants_pool_and_mps_daemons_are_followed() -> None:
    held: Latest[Mapping[str, Grant]] = Latest({})
    served: Latest[Mapping[DeviceUuid, str | None]] = Latest({})
    strays: Latest[frozenset[Place]] = Latest(frozenset())
    published: Latest[Pool | None] = Latest(GROUPED)
    withholder = Withholder(held, served, strays, Latest(CUT))

    async def until(expected: frozenset[Place]) -> None:
        async with asyncio.timeout(30):
            async for found in withholder.places.watch():
                if found == expected:
                    return

    async with running(withholder.run(published)):
        held.set(grants(Door.CLAIM, "group-0-1", 0, 1))
        published.set(SINGLE)
        await until(places(0, 1))
        held.set({})
        await until(frozenset())
        served.set({uuid(1): "its MPS daemon is ending"})
        await until(places(1))
        served.set({PART.uuid: None})
        await until(frozenset({PART.place}))
        served.set({})
        await until(frozenset())
