"""The pool follows inventory, health and who else holds GPUs; it is not there before it can be true."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.dra.pool import PoolKeeper
from node_agent.dra.slices import Pool, PoolSettings
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.model.partition import Place
from tests.fakes.builders import h200_node, uuid, without

UNPROBED = DeviceHealth(
    causes=(Cause(reason=Reason.NOT_PROBED, severity=Severity.WITHDRAWN, since=0.0, message="not looked at yet"),)
)
SICK = DeviceHealth(
    causes=(Cause(reason=Reason.XID, severity=Severity.WITHDRAWN, since=0.0, message="Xid 79", code=79),)
)


class World:
    """What the keeper follows, and the keeper."""

    def __init__(self, *, patience: float = 5.0, groups: bool = False) -> None:
        self.inventory = Latest(Inventory())
        self.health = Latest(HealthReport())
        self.withheld: Latest[frozenset[Place]] = Latest(frozenset())
        self.settings = Latest(PoolSettings(groups=groups))
        self.keeper = PoolKeeper(
            inventory=self.inventory,
            health=self.health,
            withheld=self.withheld,
            settings=self.settings,
            patience=patience,
        )

    async def until(self, condition: Callable[[Pool], bool]) -> Pool:
        async with asyncio.timeout(30):
            async for pool in self.keeper.pool.watch():
                if pool is not None and condition(pool):
                    return pool
        raise AssertionError("a watch does not end by itself")


@asynccontextmanager
async def kept(**options: Any) -> AsyncIterator[World]:
    world = World(**options)
    async with running(world.keeper.run()):
        yield world


def tainted(pool: Pool) -> dict[str, list[str]]:
    """The keys of each tainted device's taints."""
    devices = [device for one in pool.slices for device in one.content.get("devices", ())]
    return {device["name"]: [taint["key"] for taint in device["taints"]] for device in devices if "taints" in device}


async def test_there_is_no_pool_before_the_first_look_at_the_gpus() -> None:
    async with kept() as world:
        world.health.set(HealthReport(others=SICK))
        await asyncio.sleep(0.05)
        assert world.keeper.pool.value is None


async def test_the_pool_has_the_gpus_of_the_inventory() -> None:
    async with kept() as world:
        world.inventory.set(h200_node())
        pool = await world.until(lambda pool: True)
        assert set(pool.devices) == {f"gpu-{i}" for i in range(8)}


async def test_a_node_that_turns_out_to_have_no_gpu_has_an_empty_pool() -> None:
    async with kept() as world:
        world.inventory.set(Inventory(generation=1))
        pool = await world.until(lambda pool: True)
        assert (len(pool.slices), len(pool.devices)) == (1, 0)


async def test_settings_that_change_are_followed() -> None:
    async with kept() as world:
        world.inventory.set(h200_node())
        assert len((await world.until(lambda pool: True)).devices) == 8
        world.settings.set(PoolSettings(groups=True))
        await world.until(lambda pool: len(pool.devices) == 15)
        world.settings.set(PoolSettings(offered=lambda node: {gpu.uuid for gpu in node.gpus if gpu.index != 2}))
        pool = await world.until(lambda pool: len(pool.devices) == 7)
        assert "gpu-2" not in pool.devices


async def test_settings_are_followed() -> None:
    async with kept(groups=True) as world:
        world.inventory.set(h200_node())
        assert len((await world.until(lambda pool: True)).devices) == 15


async def test_the_first_probe_of_all_gpus_is_awaited() -> None:
    """Else an agent that is started again would taint all GPUs and clear them a moment later."""
    async with kept() as world:
        world.health.set(HealthReport(others=UNPROBED))
        world.inventory.set(h200_node())
        await asyncio.sleep(0.05)
        probed = {each.uuid: DeviceHealth() for each in h200_node().gpus[:7]}
        world.health.set(HealthReport(devices=probed, others=UNPROBED))
        await asyncio.sleep(0.05)
        assert world.keeper.pool.value is None
        world.health.set(HealthReport(devices={**probed, uuid(7): SICK}, others=UNPROBED))
        assert tainted(await world.until(lambda pool: True)) == {"gpu-7": ["gpu.nvidia.com/xid"]}


async def test_but_not_for_ever_since_one_gpu_that_hangs_must_not_take_away_the_others() -> None:
    async with kept(patience=0.1) as world:
        probed = {each.uuid: DeviceHealth() for each in h200_node().gpus[1:]}
        world.health.set(HealthReport(devices=probed, others=UNPROBED))
        await asyncio.sleep(0.2)  # patience begins with the first look at the GPUs
        world.inventory.set(h200_node())
        await asyncio.sleep(0.02)
        assert world.keeper.pool.value is None
        assert tainted(await world.until(lambda pool: True)) == {"gpu-0": ["gpu.nvidia.com/not-probed"]}


async def test_a_gpu_that_comes_later_is_not_awaited() -> None:
    async with kept() as world:
        world.inventory.set(without(h200_node(), 0))
        await world.until(lambda pool: True)
        world.health.set(HealthReport(devices={uuid(0): UNPROBED}))
        world.inventory.set(replace(h200_node(), generation=3))
        pool = await world.until(lambda pool: "gpu-0" in pool.devices)
        assert tainted(pool) == {"gpu-0": ["gpu.nvidia.com/not-probed"]}


async def test_a_gpu_falls_sick_and_gets_well() -> None:
    async with kept() as world:
        world.inventory.set(h200_node())
        healthy = await world.until(lambda pool: True)
        world.health.set(HealthReport(devices={uuid(2): SICK}))
        assert tainted(await world.until(lambda pool: bool(tainted(pool)))) == {"gpu-2": ["gpu.nvidia.com/xid"]}
        world.health.set(HealthReport())
        assert await world.until(lambda pool: not tainted(pool)) == healthy


async def test_a_gpu_that_another_front_door_gives_out_is_held_until_it_is_free() -> None:
    async with kept(groups=True) as world:
        world.inventory.set(h200_node())
        free = await world.until(lambda pool: True)
        world.withheld.set(frozenset({Place(gpu=uuid(0))}))
        found = tainted(await world.until(lambda pool: bool(tainted(pool))))
        assert found == {
            name: ["gpu.nvidia.com/held"] for name, device in free.devices.items() if uuid(0) in device.gpus
        }
        world.withheld.set(frozenset())
        assert await world.until(lambda pool: not tainted(pool)) == free


async def test_a_gpu_that_drops_out_stays_as_lost_and_comes_back() -> None:
    async with kept(groups=True) as world:
        world.inventory.set(h200_node())
        whole = await world.until(lambda pool: True)
        missing = (MissingGpu(index=1, uuid=uuid(1), reason="gone"),)
        world.inventory.set(replace(without(h200_node(), 1), missing=missing))
        pool = await world.until(lambda pool: bool(tainted(pool)))
        assert pool.devices == whole.devices
        assert tainted(pool)["gpu-1"] == ["gpu.nvidia.com/gpu-lost"]
        world.inventory.set(replace(h200_node(), generation=3))
        assert await world.until(lambda pool: not tainted(pool)) == whole


async def test_a_driver_that_goes_away_takes_no_device_out_of_the_pool() -> None:
    async with kept() as world:
        world.inventory.set(h200_node())
        whole = await world.until(lambda pool: True)
        missing = tuple(MissingGpu(index=i, uuid=uuid(i), reason="away") for i in range(8))
        world.inventory.set(Inventory(generation=2, problem="reloaded", missing=missing))
        pool = await world.until(lambda pool: len(tainted(pool)) == 8)
        assert pool.devices == whole.devices


async def test_nothing_is_worked_out_anew_where_only_health_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layout takes some milliseconds on a large node, and pods come and go."""
    async with kept(groups=True) as world:
        world.inventory.set(h200_node())
        await world.until(lambda pool: True)
        monkeypatch.setattr("node_agent.dra.pool.laid_out", None)
        world.withheld.set(frozenset({Place(gpu=uuid(0))}))
        await world.until(lambda pool: bool(tainted(pool)))
