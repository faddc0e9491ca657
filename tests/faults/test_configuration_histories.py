"""Any history of configurations and pods: no GPU is offered under two names, none is given out twice, none is lost."""

import asyncio
import random
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from node_agent.agent import live, plugins
from node_agent.config import watch
from node_agent.errors import KubeletError
from node_agent.kit.latest import Latest
from node_agent.kubelet.embedded import ResourceView
from tests.faults.conftest import Place, until
from tests.faults.test_configuration import Watched, at_work

GPU, RENAMED, SHARED = "nvidia.com/gpu", "nvidia.com/h200", "nvidia.com/gpu.shared"
NAMES = (GPU, RENAMED, SHARED)
WHOLE: dict[str, Any] = {"version": "v1"}
RENAME = {"gpus": [{"pattern": "*", "name": "h200"}]}


def share(replicas: int, *devices: int, resource: str = "") -> dict[str, Any]:
    rule = {"devices": list(devices), "replicas": replicas, **({"resource": resource} if resource else {})}
    return {"agent": {"sharing": {"rules": [rule]}}}


CONFIGURATIONS: list[dict[str, Any]] = [
    WHOLE,
    {"agent": {"devices": {"exclude": [0, 1]}}},
    {"agent": {"devices": {"exclude": [2]}}, "resources": RENAME},
    {"resources": RENAME},
    share(4, 0, 1, 2, resource="gpu.shared"),
    share(2, 0, 3, resource="gpu.shared"),
    share(3, 0, 1),
    {"flags": {"migStrategi": "none"}},
]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch, short_waits: None) -> None:
    for module, name, seconds in (
        (watch, "LOOK_SECONDS", 0.02),
        (watch, "STAND_SECONDS", 0.02),
        (live, "SETTLE_SECONDS", 0.25),
        (plugins, "SETTLE_SECONDS", 0.25),
    ):
        monkeypatch.setattr(module, name, seconds)


Views = Mapping[str, ResourceView]


class Record(Latest[Views]):
    """All that the kubelet ever had, every moment of it: a watcher would skip what was overtaken."""

    def __init__(self) -> None:
        super().__init__({})
        self.all: list[Views] = []

    def set(self, value: Views) -> None:
        self.all.append(value)
        super().set(value)

    @property
    def double_offers(self) -> list[tuple[str, list[str]]]:
        """The GPUs that were offered under several names at once, and these names."""
        found = []
        for views in self.all:
            gpus = [(device.partition("::")[0], name) for name, view in views.items() for device in view.healthy]
            names = {gpu: sorted({name for each, name in gpus if each == gpu}) for gpu, _ in gpus}
            found += [(gpu, of) for gpu, of in names.items() if len(of) > 1]
        return found


class History:
    """What happens to a node, and the pods that are on it."""

    def __init__(self, place: Place, agent: Watched, seed: int) -> None:
        self.place, self.kubelet, self.agent = place, place.kubelet, agent
        self.chance = random.Random(seed)
        self.pods = 0

    async def step(self) -> None:
        await self.chance.choice([self.configure, self.configure, self.admit, self.admit, self.release])()

    async def configure(self) -> None:
        self.agent.write(self.chance.choice(CONFIGURATIONS))
        await self.rest()

    async def admit(self) -> None:
        name = self.chance.choice(NAMES)
        if free := self.kubelet.free(name):
            self.pods += 1
            # The kubelet may be a moment behind, and is refused then; it never gives out what it must not.
            with_refusal = await self.admitted(f"pod-{self.pods}", name, self.chance.randint(1, min(2, len(free))))
            assert with_refusal is None or "is out of service" in with_refusal or "has no device" in with_refusal

    async def admitted(self, pod: str, name: str, count: int) -> str | None:
        try:
            await self.kubelet.admit(pod, name, count)
        except KubeletError as error:
            return str(error)
        return None

    async def release(self) -> None:
        for pod in self.chance.sample(sorted(self.kubelet.held), min(1, len(self.kubelet.held))):
            await self.end(pod)

    async def end(self, pod: str) -> None:
        name, devices = self.kubelet.held[pod]
        self.kubelet.release(pod)
        for device in devices:
            await self.agent.agent.ledger.release(f"{name}/{device}")

    async def rest(self) -> None:
        await asyncio.sleep(self.chance.choice([0.05, 0.2, 0.6]))

    def wholes(self) -> Collection[str]:
        """The GPUs that pods hold as a whole, one entry for each pod."""
        return [device for _, devices in self.kubelet.held.values() for device in devices if "::" not in device]


@pytest.mark.parametrize("seed", range(4))
async def test_no_history_offers_or_gives_out_a_gpu_twice_and_none_is_lost(h200: Place, seed: int) -> None:
    record = h200.kubelet.resources = Record()
    async with at_work(h200, WHOLE) as agent:
        history = History(h200, agent, seed)
        for _ in range(14):
            await history.step()
            assert len(set(history.wholes())) == len(history.wholes())
        for pod in list(h200.kubelet.held):
            await history.end(pod)
        agent.write(WHOLE)
        await h200.allocatable(8)
        await until(lambda: not any(h200.kubelet.view(name).capacity for name in (RENAMED, SHARED)))
    assert len(record.all) > 3, "some of what was offered was seen; a slow machine misses steps"
    assert record.double_offers == []
