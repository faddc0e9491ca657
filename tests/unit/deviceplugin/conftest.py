"""A node with GPUs, a kubelet in a temporary folder, and a device plugin between the two."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from node_agent.allocation.grants import Grant
from node_agent.cdi.publisher import Published
from node_agent.deviceplugin.answer import Answer, Naming, answer
from node_agent.deviceplugin.holding import Held
from node_agent.deviceplugin.offer import OfferedDevice
from node_agent.deviceplugin.plugin import DevicePlugin
from node_agent.deviceplugin.selection import Selection
from node_agent.deviceplugin.servicer import Take
from node_agent.errors import KubeletError
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.kubelet.routes import Route, SocketRoute
from node_agent.model.gpu import Gpu, GpuUuid, device_name
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid
from node_agent.model.pci import pci_address

RESOURCE = "nvidia.com/gpu"


def gpu(number: int, numa_node: int | None = None, product: str = "NVIDIA H200") -> Gpu:
    return Gpu(
        uuid=GpuUuid(f"GPU-{number}"),
        name=device_name(f"gpu-{number}"),
        index=number,
        minor=number,
        product=product,
        pci=pci_address(f"0000:{number + 16:02x}:00.0"),
        numa_node=numa_node,
    )


def device(number: int) -> OfferedDevice:
    return OfferedDevice(id=f"GPU-{number}", gpu=GpuUuid(f"GPU-{number}"), index=str(number))


def node(count: int, generation: int = 1) -> Inventory:
    """So many GPUs, the first half on NUMA node 0, the rest on 1."""
    gpus = tuple(gpu(number, numa_node=int(number >= count // 2)) for number in range(count))
    return Inventory(generation=generation, gpus=gpus)


@dataclass
class World:
    """What the plugin sees, and the plugin."""

    inventory: Latest[Inventory]
    health: Latest[HealthReport] = field(default_factory=lambda: Latest(HealthReport()))
    cdi: Latest[Published] | None = None
    selection: Latest[Selection] = field(default_factory=lambda: Latest(Selection()))
    daemons: Latest[Mapping[DeviceUuid, str | None]] = field(default_factory=lambda: Latest({}))
    again: Latest[int] = field(default_factory=lambda: Latest(0))
    held: Collection[str] | None = ()
    grants: Latest[Mapping[str, Grant]] = field(default_factory=lambda: Latest({}))
    taken: list[tuple[str, list[str]]] = field(default_factory=list)
    given: list[Sequence[OfferedDevice]] = field(default_factory=list)
    take_by: Take | None = None
    asked: Held | None = None

    def give(self, devices: Sequence[OfferedDevice]) -> Answer:
        self.given.append(devices)
        return answer(devices, ["cdi-cri"], Naming(qualified=lambda name: f"test.example/gpu={name}"))

    async def who_holds(self) -> Mapping[str, Collection[str]]:
        if self.held is None:
            raise KubeletError("nobody tells")
        return {RESOURCE: self.held}

    async def take(self, resource: str, devices: Sequence[OfferedDevice]) -> None:
        self.taken.append((resource, [device.id for device in devices]))

    def plugin(self, folder: Path, resource: str = RESOURCE, route: Route | None = None) -> DevicePlugin:
        return DevicePlugin(
            resource=resource,
            route=route or SocketRoute(folder),
            selection=self.selection,
            inventory=self.inventory,
            health=self.health,
            cdi=self.cdi,
            give=self.give,
            held=self.asked or self.who_holds,
            grants=self.grants,
            take=self.take_by or self.take,
            daemons=self.daemons,
            again=self.again,
            forget_seconds=0.05,
        )


@pytest.fixture
def world() -> World:
    return World(inventory=Latest(node(8)))


@asynccontextmanager
async def served(world: World, kubelet: EmbeddedKubelet) -> AsyncIterator[DevicePlugin]:
    """The plugin at work beside the kubelet's folder."""
    kubelet.folder.mkdir(exist_ok=True)
    plugin = world.plugin(kubelet.folder)
    async with running(plugin.run()):
        yield plugin


@pytest.fixture
def kubelet(tmp_path: Path) -> EmbeddedKubelet:
    return EmbeddedKubelet(tmp_path / "dp")
