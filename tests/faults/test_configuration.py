"""Mistakes in a configuration: none is ignored in silence, and none takes a node out, be it at the start or later.

Users met: a key on the wrong level that was ignored (B23), and a bad number of replicas that stopped every part (B24).
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from node_agent.agent.agent import Agent
from node_agent.agent.build import built
from node_agent.agent.reload import Configuration, first_configuration
from node_agent.config import watch
from node_agent.config.resolve import Sources
from node_agent.errors import ConfigError
from node_agent.hardware.simulated.placeholders import stat
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.reporting.status import ConfigStatus
from tests.faults.conftest import PATIENCE, Place

GPU = "nvidia.com/gpu"
ABSENT = object()


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watch, "STAND_SECONDS", 0.02)


def shared(**resource: object) -> dict[str, Any]:
    """A file that shares GPUs in NVIDIA's way."""
    return {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": GPU, **resource}]}}}


@dataclass(frozen=True)
class Watched:
    """An agent at work with a configuration file."""

    place: Place
    file: Path
    agent: Agent

    def write(self, document: object) -> None:
        self.file.write_text(yaml.safe_dump(document))

    async def config(self) -> ConfigStatus:
        found = (await self.place.status()).config
        assert found is not None
        return found

    async def trouble(self) -> str:
        """What is wrong with the configuration, as soon as that is told."""
        async with asyncio.timeout(PATIENCE):
            while (found := await self.config()).trouble is None:
                await asyncio.sleep(0.02)
        return found.trouble

    async def well(self) -> None:
        """Wait until nothing is wrong with it."""
        async with asyncio.timeout(PATIENCE):
            while (await self.config()).trouble is not None:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def at_work(place: Place, document: object) -> AsyncIterator[Watched]:
    file = place.folder / "config.yaml"
    file.write_text(yaml.safe_dump(document))
    sources = Sources(file=file)
    configuration = Configuration(sources=sources, label=Latest(None), first=sources.resolve())
    async with place.kubelet.running(), built(place.settings, stat, configuration) as agent, running(agent.run()):
        await place.allocatable(8)
        await agent.limits.synced.wait()
        yield Watched(place, file, agent)


WRONG_KEYS = [
    ({"flags": {"renameByDefault": True}}, "flags.renameByDefault", "sharing.timeSlicing.renameByDefault"),
    ({"sharing": {"timeslicing": {"resources": []}}}, "sharing.timeslicing", "sharing.timeSlicing"),
    ({"sharing": {"replicas": 4}}, "sharing.replicas", "sharing.timeSlicing.resources[].replicas"),
]


@pytest.mark.parametrize(("document", "path", "meant"), WRONG_KEYS)
async def test_a_key_on_the_wrong_level_is_refused_with_the_right_one_and_changes_nothing(
    h200: Place, document: object, path: str, meant: str
) -> None:
    async with at_work(h200, {"version": "v1"}) as watched:
        messages = h200.view.messages
        watched.write(document)
        assert (await watched.trouble()).startswith(f"{path}: unknown key; did you mean {meant}?")
        await h200.ready()
        assert (h200.view.messages, h200.view.allocatable) == (messages, 8)


@pytest.mark.parametrize(("document", "path", "meant"), WRONG_KEYS)
def test_at_the_first_start_such_a_key_is_an_error_that_names_both(
    tmp_path: Path, document: object, path: str, meant: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(document))
    flags = {"agent.paths.stateDir": str(tmp_path)}
    with pytest.raises(ConfigError, match=re.escape(f"{path}: unknown key; did you mean {meant}?")):
        first_configuration(Sources(file=file, flags=flags), Latest(None))


@pytest.mark.parametrize("replicas", [0, 1, -1, "4", 1.5, ABSENT])
async def test_a_bad_replica_count_leaves_the_good_configuration_in_force_and_is_counted(
    h200: Place, replicas: object
) -> None:
    async with at_work(h200, {"version": "v1"}) as watched:
        watched.write(shared() if replicas is ABSENT else shared(replicas=replicas))
        trouble = await watched.trouble()
        assert trouble.startswith("sharing.timeSlicing.resources[0].replicas: ")
        assert "expected a whole number of at least 2" in trouble
        assert (await watched.config()).refused == 1
        assert h200.view.allocatable == 8
        watched.write({"version": "v1", "agent": {"devices": {"exclude": [0]}}})
        await h200.allocatable(7)
        await watched.well()


async def test_a_file_that_is_gone_for_a_while_costs_nothing(h200: Place) -> None:
    async with at_work(h200, {"agent": {"devices": {"exclude": ["gpu-none"]}}}) as watched:
        watched.file.unlink()
        assert "cannot be read: No such file or directory" in await watched.trouble()
        assert h200.view.allocatable == 8
        watched.write({"version": "v1"})
        await watched.well()
        await h200.ready()
