"""A configuration that changes while the agent runs: what comes into force, what is refused, and what has to wait."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields, replace

from node_agent.agent.agent import Agent
from node_agent.agent.build import built
from node_agent.agent.reload import AFTER_RESTART, KEPT, first_configuration, in_force
from node_agent.config import watch
from node_agent.config.check import known_paths
from node_agent.config.resolve import Sources
from node_agent.config.settings import Health, Log, Rename, Settings
from node_agent.errors import ConfigError
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.model.vendor import AMD, NVIDIA
from node_agent.reporting.status import ConfigStatus
from tests.fakes.config_map import MountedConfigMap
from tests.unit.agent.conftest import Place

RESOURCE = "nvidia.com/gpu"
WITHOUT_TWO = "agent: {devices: {exclude: [0, 1]}}"


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watch, "STAND_SECONDS", 0.02)


@pytest.fixture
def mounted(place: Place) -> MountedConfigMap:
    return MountedConfigMap(place.folder / "configs", {"config.yaml": "version: v1", "less": WITHOUT_TWO})


def sources(place: Place, file: Path) -> Sources:
    """The sources of an agent in this place."""
    paths = {"kubeletDir": "kubelet", "cdiDir": "cdi", "stateDir": "state", "runDir": "run"}
    own = {f"agent.paths.{key}": str(place.folder / name) for key, name in paths.items()}
    return Sources(file=file, flags={**place.simulated.flags, **own, "agent.nodeName": "node-a"})


@asynccontextmanager
async def following(place: Place, file: Path) -> AsyncIterator[Agent]:
    """An agent that has the configuration of this file in force, beside a kubelet."""
    configuration = first_configuration(sources(place, file), Latest(None))
    async with (
        place.kubelet.running(),
        built(configuration.first.settings, place.simulated.stat, configuration) as agent,
        running(agent.run()),
    ):
        yield agent


async def config_when(agent: Agent, wanted: Callable[[ConfigStatus], object]) -> ConfigStatus:
    async with asyncio.timeout(30):
        while not (found := agent.status().config) or not wanted(found):
            await asyncio.sleep(0.01)
    return found


# What comes into force


async def test_a_changed_file_comes_into_force_over_the_same_socket(place: Place, mounted: MountedConfigMap) -> None:
    async with following(place, mounted / "config.yaml") as agent:
        before = await place.kubelet.until(RESOURCE, allocatable=8)
        mounted.write({"config.yaml": WITHOUT_TWO})
        after = await place.kubelet.until(RESOURCE, allocatable=6)
        found = await config_when(agent, lambda config: config.generation == 2)
        assert (after.endpoint, after.registrations) == (before.endpoint, 1)
        assert (found.source, found.trouble, found.refused) == (str(mounted / "config.yaml"), None, 0)
        assert agent.status().ready
        mounted.write({"config.yaml": "version: v1"})
        await place.kubelet.until(RESOURCE, allocatable=8)


async def test_a_change_that_changes_nothing_is_none(place: Place, mounted: MountedConfigMap) -> None:
    async with following(place, mounted / "config.yaml") as agent:
        messages = (await place.kubelet.until(RESOURCE, allocatable=8)).messages
        mounted.write({"config.yaml": "version: v1 # with a comment"})
        await asyncio.sleep(0.3)
        assert place.kubelet.view(RESOURCE).messages == messages
        assert (await config_when(agent, lambda config: True)).generation == 1


async def test_what_a_pod_holds_is_waited_for_and_named(place: Place, mounted: MountedConfigMap) -> None:
    async with following(place, mounted / "config.yaml") as agent:
        await place.kubelet.until(RESOURCE, allocatable=8)
        await agent.limits.synced.wait()
        (held,), _ = await place.kubelet.admit("pod", RESOURCE, 1)
        mounted.write({"config.yaml": f"agent: {{devices: {{exclude: [{held}]}}}}"})
        await place.kubelet.until(RESOURCE, allocatable=7)
        found = await config_when(agent, lambda config: config.waits)
        assert found.waits == (f"{RESOURCE}: {held}",)
        assert agent.status().ready
        await agent.ledger.release(f"{RESOURCE}/{held}")
        place.kubelet.release("pod")
        await config_when(agent, lambda config: not config.waits)


async def test_an_open_cause_is_judged_by_the_rules_that_come_into_force(
    place: Place, mounted: MountedConfigMap
) -> None:
    async with following(place, mounted / "config.yaml"):
        await place.kubelet.until(RESOURCE, allocatable=8)
        place.simulated.node.faults.xid("gpu-3", 79)
        await place.kubelet.until(RESOURCE, allocatable=7)
        mounted.write({"config.yaml": "agent: {health: {ignoredXids: [79]}}"})
        await place.kubelet.until(RESOURCE, allocatable=8)
        place.simulated.node.faults.xid("gpu-4", 79)
        mounted.write({"config.yaml": "agent: {health: {rules: [{xids: [94], action: withdraw}]}}"})
        await asyncio.sleep(0.3)
        assert place.kubelet.view(RESOURCE).allocatable == 8


async def test_what_needs_a_new_start_is_said_and_left_as_it_is(place: Place, mounted: MountedConfigMap) -> None:
    changed = "flags: {plugin: {deviceListStrategy: envvar}}\nagent: {devices: {exclude: [0]}}"
    async with following(place, mounted / "config.yaml") as agent:
        await place.kubelet.until(RESOURCE, allocatable=8)
        mounted.write({"config.yaml": changed})
        found = await config_when(agent, lambda config: config.after_restart)
        assert found.after_restart == ("flags.plugin.deviceListStrategy",)
        assert agent.live.settings.value.device_list_strategies == ("cdi-cri",)
        await place.kubelet.until(RESOURCE, allocatable=7)


# What is refused


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("flags: {renameByDefault: true}", "flags.renameByDefault: unknown key; did you mean sharing.timeSlicing."),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 0}]}}", "replicas: expected a whole number of at"),
        ("sharing: [", "no valid YAML"),
        ("version: v2", 'version: expected v1; got "v2"'),
    ],
)
async def test_a_bad_configuration_changes_nothing_and_is_told(
    place: Place, mounted: MountedConfigMap, text: str, complaint: str
) -> None:
    async with following(place, mounted / "less") as agent:
        before = await place.kubelet.until(RESOURCE, allocatable=6)
        mounted.write({"less": text})
        found = await config_when(agent, lambda config: config.trouble)
        assert complaint in str(found.trouble)
        assert (found.generation, found.refused) == (1, 1)
        assert agent.status().ready
        assert place.kubelet.view(RESOURCE).messages == before.messages
        mounted.write({"less": "version: v1"})
        await place.kubelet.until(RESOURCE, allocatable=8)
        found = await config_when(agent, lambda config: config.trouble is None)
        assert (found.generation, found.refused) == (2, 1)


async def test_a_configuration_that_vanishes_stays_in_force(place: Place, mounted: MountedConfigMap) -> None:
    async with following(place, mounted / "less") as agent:
        await place.kubelet.until(RESOURCE, allocatable=6)
        mounted.write({"other": "version: v1"})
        found = await config_when(agent, lambda config: config.trouble)
        assert "less: cannot be read: No such file or directory" in str(found.trouble)
        assert place.kubelet.view(RESOURCE).allocatable == 6


# Over a restart


async def test_an_agent_that_starts_beside_a_bad_configuration_has_the_last_good_one_in_force(
    place: Place, mounted: MountedConfigMap
) -> None:
    async with following(place, mounted / "less"):
        await place.kubelet.until(RESOURCE, allocatable=6)
        kept = place.folder / "state" / KEPT
        async with asyncio.timeout(30):
            while not kept.exists():
                await asyncio.sleep(0.01)
    mounted.write({"less": "agent: {devices: {exclde: []}}"})
    async with following(place, mounted / "less") as agent:
        await place.kubelet.until(RESOURCE, allocatable=6)
        found = await config_when(agent, lambda config: True)
        assert "agent.devices.exclde: unknown key" in str(found.trouble)
        assert found.source == str(kept)
        mounted.write({"less": "version: v1"})
        await place.kubelet.until(RESOURCE, allocatable=8)


def test_an_agent_that_never_had_a_good_one_does_not_start(place: Place, mounted: MountedConfigMap) -> None:
    mounted.write({"less": "agent: {devices: {exclde: []}}"})
    with pytest.raises(ConfigError, match=r"agent\.devices\.exclde: unknown key; did you mean agent\.devices\.exclude"):
        first_configuration(sources(place, mounted / "less"), Latest(None))


async def test_where_what_was_kept_is_of_no_use_either_both_are_named(place: Place, mounted: MountedConfigMap) -> None:
    kept = place.folder / "state" / KEPT
    kept.parent.mkdir()
    kept.write_text('{"of": "another version"}')
    mounted.write({"less": "version: v2"})
    with pytest.raises(ConfigError, match=r"version: expected v1(.|\n)*and what was last in force is of no use: of: "):
        first_configuration(sources(place, mounted / "less"), Latest(None))


async def test_what_is_kept_is_what_the_documents_say_and_not_the_environment(
    place: Place, mounted: MountedConfigMap
) -> None:
    async with following(place, mounted / "less") as agent:
        await place.kubelet.until(RESOURCE, allocatable=6)
        kept = place.folder / "state" / KEPT
        await config_when(agent, lambda _: kept.exists())
    assert json.loads(kept.read_text()) == {"agent": {"devices": {"exclude": [0, 1]}}}


# What can change while the agent runs, and what cannot

CHANGED: dict[str, Any] = {
    "exclude": ("0",),
    "shareable": ("*",),
    "resources": (Rename(pattern="*", resource="nvidia.com/h200"),),
    "dra_groups": True,
    "health": Health(probe_interval=9.0),
    "dra_enforce_limits": "always",
    "mig_strategy": "mixed",
    "mig_resources": (Rename(pattern="*", resource="nvidia.com/part"),),
    "mig_on_demand": ("*",),
    "mig_sweep": False,
    "metrics_names": "current",
    "metrics_per_share": True,
    "mig_config": "all-balanced",
    "mig_config_file": Path("/etc/mig.yaml"),
    "mig_when_in_use": "refuse",
    "mig_defragment": "off",
    "mig_keep_room_for": ("3g.71gb",),
    "log": Log(level="debug"),
}


def test_every_setting_either_follows_a_change_or_is_known_not_to() -> None:
    names = {field.name for field in fields(Settings)}
    assert set(AFTER_RESTART) <= names
    assert names - set(AFTER_RESTART) == {*CHANGED, "sharing"}


def test_every_setting_that_waits_is_named_by_its_key() -> None:
    assert set(AFTER_RESTART.values()) <= set(known_paths())


@pytest.mark.parametrize("name", CHANGED)
def test_a_setting_that_follows_comes_into_force_at_once(name: str) -> None:
    settings, waiting = in_force(Settings(), replace(Settings(), **{name: CHANGED[name]}))
    assert (getattr(settings, name), waiting) == (CHANGED[name], ())


def test_a_setting_that_waits_is_left_and_its_key_is_told() -> None:
    wanted = replace(Settings(), node_name="other", kubeconfig=Path("/other"), dra_groups=True)
    settings, waiting = in_force(Settings(), wanted)
    assert settings == replace(Settings(), dra_groups=True)
    assert waiting == ("agent.nodeName", "agent.kubeconfig")


def test_nothing_of_a_configuration_for_another_vendor_comes_into_force_before_a_new_start() -> None:
    running = Settings(resources=(Rename(pattern="*", resource="nvidia.com/large"),))
    wanted = replace(running, vendor=AMD, resources=(Rename(pattern="*", resource="amd.com/large"),))
    assert in_force(running, wanted) == (running, ("agent.vendor",))


def test_whose_gpus_the_node_has_is_asked_once_in_an_agents_life(place: Place, mounted: MountedConfigMap) -> None:
    answers = iter([AMD, NVIDIA])
    asked = replace(sources(place, mounted / "config.yaml"), vendor_of=lambda _: next(answers))
    configuration = first_configuration(asked, Latest(None))
    again = configuration.sources.resolve()
    assert (configuration.first.settings.vendor, again.settings.vendor) == (AMD, AMD)
