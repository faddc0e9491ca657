"""``node-agent demo``: the agent at work on a simulated node, beside an embedded kubelet, in one process.

Everything between the two stand-ins is the real thing: NVML's binding and the adapter, the device plugin over gRPC, the
CDI spec on disk. Each step shows what the kubelet or the disk has, not what the agent says of itself.
"""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from node_agent.agent.agent import Agent
from node_agent.agent.build import built
from node_agent.cdi.names import file_name
from node_agent.cli.shared import console, told_to_end
from node_agent.cli.simulated import AnySimulation, any_simulation
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.deviceplugin.offer import OfferedDevice
from node_agent.errors import SimulationError
from node_agent.kit import logs
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import EmbeddedKubelet
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.topology.drawing import draw
from node_agent.topology.explain import explain
from node_agent.topology.preferred import DeviceId, PreferredRequest


@click.command()
@click.option("--profile", default="h200-8", show_default=True, help="The node to simulate: a name or a YAML file.")
@click.option("--hold", is_flag=True, help="Keep serving at the end, until Ctrl-C.")
def demo(profile: str, hold: bool) -> None:
    """Show the agent at work on a simulated node: no GPU, no cluster, no root."""
    # Not in a home folder or a clone: the path of a socket may not be longer than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="node-agent-demo-", dir="/tmp") as name:
        folder = Path(name)
        with any_simulation(profile, folder / "node") as simulated, simulated.controlled(folder / "simulate.sock"):
            # What the agent would log is what the demo shows; an error would be none of it.
            logs.configure("error")
            asyncio.run(_play(simulated, _settings(simulated, folder), hold))


def _settings(simulated: AnySimulation, folder: Path) -> Settings:
    flags = {
        **simulated.flags,
        "agent.paths.kubeletDir": str(folder / "kubelet"),
        "agent.paths.cdiDir": str(folder / "cdi"),
        "agent.paths.stateDir": str(folder / "state"),
        "agent.paths.runDir": str(folder),
        "agent.nodeName": "demo-node",
        "agent.health.probeInterval": "1s",
    }
    return resolve(file=None, environment={}, flags=flags).settings


async def _play(simulated: AnySimulation, settings: Settings, hold: bool) -> None:
    kubelet = EmbeddedKubelet(settings.paths.kubelet_dir / "device-plugins")
    async with kubelet.running(), built(settings, simulated.stat) as agent, running(agent.run()):
        stage = Stage(simulated, settings, kubelet, agent)
        await stage.registration()
        await stage.allocations()
        stage.spec()
        await stage.withdrawal_and_return()
        stage.summary()
        if hold:
            async with asyncio.TaskGroup() as group:
                group.create_task(told_to_end())
                await asyncio.sleep(0)  # which listens before anybody is told that they may end it
                stage.how_to_go_on()


class Stage:
    """The scenes of the demo, in the order in which ``_play`` calls them."""

    def __init__(self, simulated: AnySimulation, settings: Settings, kubelet: EmbeddedKubelet, agent: Agent) -> None:
        self._simulated = simulated
        self._settings = settings
        self._resource = settings.vendor.resource
        self._kubelet = kubelet
        self._agent = agent
        self._out = console()
        self._began = time.monotonic()

    async def registration(self) -> None:
        """The kubelet knows the resource and lists its devices."""
        view = await self._kubelet.until(self._resource, allocatable=await self._offered())
        self._scene(
            "Registration",
            f"{self._resource} is served on {Path(view.endpoint).name}, {_since(self._began)} after the start.",
        )
        self._out.print(draw(self._agent.keeper.inventory.value), markup=False)
        self._out.print(f"\nThe kubelet lists {view.capacity} devices, {view.allocatable} of them allocatable:")
        for gpu in self._listed():
            device = view.devices[gpu.uuid]
            node = device.topology.nodes[0].ID if device.topology.nodes else "-"
            self._out.print(f"  {gpu.name}  {gpu.uuid}  NUMA node {node}  {device.health}")

    async def allocations(self) -> None:
        """A pod asks for half of the GPUs and, where that leaves two, another one for one of them."""
        half = self._kubelet.view(self._resource).allocatable // 2
        await self._allocation("trainer", max(half, 1))
        if half > 1:
            await self._allocation("notebook", 1)

    async def _allocation(self, pod: str, count: int) -> None:
        """The kubelet asks which GPUs, then allocates."""
        free = self._kubelet.free(self._resource)
        ids, response = await self._kubelet.admit(pod, self._resource, count)
        request = PreferredRequest(available=frozenset(map(DeviceId, free)), size=count)
        self._scene("Allocation", f"The pod {pod} asks for {count} of the {len(free)} free GPUs. Why these:")
        self._out.print(explain(request, self._agent.plugins[self._resource].offer.value.pool).text, markup=False)
        self._out.print("\nThe container runtime is told:")
        for device in response.cdi_devices:
            self._out.print(f"  {device.name}")
        assert {device.name.partition("=")[2] for device in response.cdi_devices} == set(ids)

    def spec(self) -> None:
        """The CDI spec on disk says what those names stand for."""
        path = self._settings.paths.cdi_dir / file_name(self._settings.vendor.cdi_kind)
        spec, gpu = json.loads(path.read_text()), self._held("trainer")[0]
        common = spec["containerEdits"]
        size = f"{path.stat().st_size // 1024} KiB, CDI {spec['cdiVersion']}"
        self._scene("CDI", f"{path.name} ({size}) gives a container with {gpu.name}:")
        (device,) = [one for one in spec["devices"] if one["name"] == gpu.uuid]
        nodes = [node["path"] for node in (*device["containerEdits"]["deviceNodes"], *common["deviceNodes"])]
        self._out.print(f"  device nodes   {' '.join(nodes)}")
        mounts = [mount["containerPath"] for mount in common.get("mounts", ())]
        such = next((one for one in mounts if "libcuda" in one), None)
        self._out.print(f"  driver files   {len(mounts)} mounts{f', such as {such}' if such else ''}")
        self._out.print(f"  environment    {' '.join(common.get('env', ())) or '-'}", markup=False)

    async def withdrawal_and_return(self) -> None:
        """A lost GPU goes out, and only that one; it comes back when it answers and no recovery is asked for."""
        allocatable = self._kubelet.view(self._resource).allocatable
        taken = {gpu.uuid for pod in self._kubelet.held for gpu in self._held(pod)}
        listed = self._listed()
        victim = next((gpu for gpu in listed if gpu.uuid not in taken), listed[-1])
        began = time.monotonic()
        seen = self._simulated.lose(victim.uuid)
        self._scene("Health", f"{victim.name} {seen} fallen off the bus.")
        await self._kubelet.until(self._resource, allocatable=allocatable - 1)
        self._out.print(f"  withdrawn after {_since(began)}: the kubelet has {allocatable - 1} allocatable")
        for cause in self._agent.board.report.value.of(victim.uuid).causes:
            self._out.print(f"  {cause.reason}: {cause.message}")
        began = time.monotonic()
        self._simulated.restore(victim.uuid)
        await self._kubelet.until(self._resource, allocatable=allocatable)
        self._out.print(f"  mended, and back by itself after {_since(began)}: {allocatable} allocatable again")
        self._out.print("  the pods that ran meanwhile were not touched, and the agent was not restarted")

    def summary(self) -> None:
        status, view = self._agent.status(), self._kubelet.view(self._resource)
        pods, held = len(self._kubelet.held), sum(len(ids) for _, ids in self._kubelet.held.values())
        self._scene(
            "Summary",
            f"{_many(len(status.gpus), 'GPU')}, {view.allocatable} allocatable, {held} held by {_many(pods, 'pod')}.",
        )
        restarts = sum(service.restarts for service in status.services)
        self._out.print(
            f"  {_many(len(status.services), 'service')} in one process, {_many(restarts, 'restart')},"
            f" {_many(view.registrations, 'registration')}"
        )
        self._out.print(f"  [green]all of it worked[/green], in {time.monotonic() - self._began:.1f} s")

    def how_to_go_on(self) -> None:
        run_dir, gpu = self._settings.paths.run_dir, self._listed()[0].name
        # A clone's own environment is not on the path of another terminal.
        program = "node-agent" if shutil.which("node-agent") else Path(sys.executable).with_name("node-agent")
        self._out.print("\nServing until Ctrl-C. In another terminal:")
        faults = (
            f"simulate xid --gpu {gpu} --code 48 --socket {run_dir}/simulate.sock",
            f"simulate restore-gpu --gpu {gpu} --socket {run_dir}/simulate.sock",
        )
        for words in (f"status --socket {run_dir}/agent.sock", *(faults if self._settings.vendor.cuda else ())):
            self._out.print(f"  {program} {words}", soft_wrap=True)

    async def _offered(self) -> int:
        """How many GPUs the agent offers, as soon as it offers any and has looked at all."""
        try:
            async with asyncio.timeout(30):
                async for offer in self._agent.plugins[self._resource].offer.watch():
                    if any(device.healthy for device in offer.devices) and all(map(self._decided, offer.devices)):
                        break
        except TimeoutError as error:
            name = self._simulated.node.profile.name
            raise SimulationError(
                f"the node {name} has no GPU that can be offered: choose another --profile"
            ) from error
        return sum(device.healthy for device in self._agent.plugins[self._resource].offer.value.devices)

    def _decided(self, device: OfferedDevice) -> bool:
        """Whether it is offered, or is out of service for what was found, and not since nobody has looked yet."""
        health = self._agent.board.report.value.of(device.gpu)
        return device.healthy or (health.withdrawn and health.probed)

    def _listed(self) -> list[Gpu]:
        """The GPUs that the kubelet lists, in its order."""
        by_uuid = self._agent.keeper.inventory.value.by_uuid
        return [by_uuid[GpuUuid(name)] for name in self._kubelet.view(self._resource).devices]

    def _held(self, pod: str) -> list[Gpu]:
        by_uuid = self._agent.keeper.inventory.value.by_uuid
        return sorted((by_uuid[GpuUuid(name)] for name in self._kubelet.held[pod][1]), key=lambda gpu: gpu.pci)

    def _scene(self, name: str, text: str) -> None:
        self._out.print(f"\n[bold]{name}[/bold]  {text}\n")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _since(began: float) -> str:
    return f"{(time.monotonic() - began) * 1000:.0f} ms"
