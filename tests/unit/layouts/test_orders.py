"""What layout is wanted: the label's, or else the configuration's, with the layouts of the file as it is now."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.layouts import orders as orders_module
from node_agent.layouts.orders import LABEL, Order, Orders

ONE = "version: v1\nmig-configs:\n  one:\n    - {devices: all, mig-enabled: false}\n"
TWO = ONE.replace("one:", "two:")

Labels = Latest[Mapping[str, str] | None]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_module, "LOOK_SECONDS", 0.02)


def settings(**flags: object) -> Settings:
    return resolve(None, {}, {f"agent.mig.{key}": value for key, value in flags.items()}).settings


@asynccontextmanager
async def orders(
    given: Settings, labels: Labels | None = None, *, expected: bool = False
) -> AsyncIterator[tuple[Orders, Latest[Settings]]]:
    live = Latest(given)
    found = Orders(live, labels or Latest(None))
    async with running(found.run(expects_labels=expected)):
        yield found, live


async def until(found: Orders, name: str | None) -> Order | None:
    async with asyncio.timeout(30):
        async for order in found.order.watch():
            if (order.name if order else None) == name:
                return order
    raise AssertionError("a watch does not end by itself")


async def test_the_label_goes_before_the_configuration() -> None:
    labels: Labels = Latest({LABEL: "all-disabled"})
    async with orders(settings(config="all-balanced"), labels) as (found, _):
        order = await until(found, "all-disabled")
        assert order == Order(name="all-disabled", source="label nvidia.com/mig.config")
        labels.set({})
        order = await until(found, "all-balanced")
        assert order is not None
        assert order.source == "agent.mig.config"


async def test_without_label_and_configuration_nothing_is_wanted() -> None:
    labels: Labels = Latest({LABEL: ""})
    async with orders(settings(), labels) as (found, _):
        await asyncio.sleep(0.05)
        assert found.order.value is None


async def test_the_configuration_does_not_act_before_a_label_that_is_still_to_be_told() -> None:
    labels: Labels = Latest(None)
    async with orders(settings(config="all-balanced"), labels, expected=True) as (found, _):
        await asyncio.sleep(0.05)
        assert found.order.value is None
        labels.set({LABEL: "all-disabled"})
        await until(found, "all-disabled")


async def test_labels_that_nobody_tells_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_module, "PATIENCE_SECONDS", 0.05)
    async with orders(settings(config="all-balanced"), expected=True) as (found, _):
        await until(found, "all-balanced")


async def test_the_terms_are_those_of_the_configuration_in_force() -> None:
    given = replace(settings(config="x", whenInUse="refuse", layouts="always", onDemand=["gpu-3"]), exclude=("gpu-7",))
    async with orders(given) as (found, live):
        assert await until(found, "x") == Order(
            name="x", source="agent.mig.config", refuse=True, yields=False, leaves=("gpu-3", "gpu-7")
        )
        live.set(replace(given, mig_layouts="never"))
        await until(found, None)


async def test_a_file_that_changes_is_read_again_and_one_that_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mig.yaml"
    async with orders(settings(config="one", configFile=str(file))) as (found, _):
        order = await until(found, "one")
        assert order is not None
        assert order.trouble == f"agent.mig.configFile: {file}: cannot be read: No such file or directory"
        for content, layouts, trouble in (
            (ONE, ["one"], ""),
            (TWO, ["two"], ""),
            (ONE.replace("all,", "some,"), [], "mig-configs.one[0].devices"),
        ):
            file.write_text(content)
            async with asyncio.timeout(30):
                async for order in found.order.watch():
                    if order and list(order.layouts or ()) == layouts and trouble in order.trouble:
                        break
