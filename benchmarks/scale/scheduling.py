"""What the real scheduler takes for a pod with a claim, by what is asked for and by how the devices are published.

The scheduler's processor time for a pod is what tells layouts apart: it does not depend on what else the machine does.
The latency is from the pod's creation to its binding, one pod after the other; pods a second are of many at once, with
the limit of the scheduler's own requests lifted.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles
from typing import Any

from benchmarks.scale.control_plane import ControlPlane, each
from benchmarks.scale.layouts import GROUPS, LEAN, MIG, MIG_LEAN, SHARED, SPLIT, WHOLE, Layout, of_its_own
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kube.find import find_access
from node_agent.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Object, Resource
from node_agent.model.inventory import Inventory

DRIVER = "gpu.nvidia.com"
# A slice of a GPU that claims cut is large, and a machine that does other work as well takes its time for hundreds.
PATIENCE = Patience(attempt=60.0, budget=300.0)
SERVICE_ACCOUNTS = Resource(plural="serviceaccounts", kind="ServiceAccount")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A claim, and the layout that it is allocated from."""

    name: str
    layout: Layout
    request: Mapping[str, Any] = field(default_factory=dict)
    device_class: str = DRIVER
    constraints: Sequence[Mapping[str, Any]] = ()

    @property
    def spec(self) -> Object:
        exactly = {"deviceClassName": self.device_class, **self.request}
        return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}], "constraints": list(self.constraints)}}


def cel(expression: str) -> Mapping[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


MEMORY = cel(f'device.capacity["{DRIVER}"].memory.compareTo(quantity("100Gi")) >= 0')
OF_FOUR = cel(f'device.attributes["{DRIVER}"].gpuCount == 4')
SAME_ISLAND = [{"requests": ["gpus"], "matchAttribute": f"{DRIVER}/nvlinkDomain"}]


def profile(name: str) -> Mapping[str, Any]:
    return cel(f'device.attributes["{DRIVER}"].profile == "{name}"')


CASES = (
    Case(name="one GPU", layout=WHOLE),
    Case(name="4 of 8 GPUs", layout=WHOLE, request={"count": 4}),
    Case(name="4 of 8 GPUs, one NVLink domain", layout=WHOLE, request={"count": 4}, constraints=SAME_ISLAND),
    Case(name="one GPU, by its memory", layout=WHOLE, request=MEMORY),
    Case(name="one GPU", layout=LEAN),
    Case(name="one GPU, by its memory", layout=LEAN, request=MEMORY),
    Case(name="one GPU", layout=SPLIT),
    Case(name="one GPU", layout=GROUPS),
    Case(name="a group of 4", layout=GROUPS, device_class="gpu-group.nvidia.com", request=OF_FOUR),
    Case(name="10 GiB of one GPU", layout=SHARED, request={"capacity": {"requests": {"memory": "10Gi"}}}),
    Case(name="one GPU", layout=MIG),
    Case(name="a 1g.18gb", layout=MIG, device_class="mig.nvidia.com", request=profile("1g.18gb")),
    Case(name="a 1g.18gb", layout=MIG_LEAN, device_class="mig.nvidia.com", request=profile("1g.18gb")),
)


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """What a case took; seconds and bytes. ``cpu`` is the scheduler's for a pod of many."""

    case: str
    layout: str
    slices: int
    bytes: int
    latencies: Sequence[float]
    pods_per_second: float
    cpu: float

    @property
    def row(self) -> str:
        p99 = quantiles(self.latencies, n=100)[98]
        return (
            f"| {self.layout} | {self.case} | {self.slices} | {self.bytes / 1000:.0f} kB "
            f"| {median(self.latencies) * 1000:.0f} ms | {p99 * 1000:.0f} ms | {self.pods_per_second:.1f} "
            f"| {self.cpu * 1000:.1f} ms |"
        )


HEAD = (
    "| published | claim | slices a node | JSON a node | p50 | p99 | pods a second | scheduler's processor, a pod |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
)


async def measured(
    plane: ControlPlane, nodes: Sequence[str], inventory: Inventory, cases: Sequence[Case], *, one: int, many: int
) -> AsyncIterator[Scheduled]:
    """Each case in turn: ``one`` pods after each other, then ``many`` at once."""
    async with KubeClient(find_access(plane.kubeconfig), patience=PATIENCE) as client:
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
        published: Layout | None = None
        published_as = Published(slices=0, bytes=0)
        for case in cases:
            if case.layout is not published:
                published_as, published = await publish(client, nodes, inventory, case.layout), case.layout
            yield await _measured(plane, client, case, published_as, one=one, many=many)


async def publish(client: KubeClient, nodes: Sequence[str], inventory: Inventory, layout: Layout) -> "Published":
    """Replace what is published of all nodes."""
    old = await client.list(RESOURCE_SLICES)
    await each(lambda item: client.delete(RESOURCE_SLICES, item["metadata"]["name"]), old.items)
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in (await client.list(NODES)).items}

    async def put(node: str) -> list[Object]:
        objects = layout.objects(of_its_own(inventory, node), node, uids[node])
        return [await client.create(RESOURCE_SLICES, item) for item in objects]

    first, *_ = await each(put, nodes)
    return Published(slices=len(first), bytes=sum(len(json.dumps(item["spec"])) for item in first))


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """Of one node."""

    slices: int
    bytes: int


async def _measured(
    plane: ControlPlane, client: KubeClient, case: Case, published: Published, *, one: int, many: int
) -> Scheduled:
    # The first pod waits for the scheduler to have seen the slices.
    async with _claimed(client, case, 1 + one, "one") as names:
        latencies = [await _bound(client, name) for name in names][1:]
    async with _claimed(client, case, many, "many") as names:
        before, began = plane.usage("scheduler"), time.monotonic()
        await each(lambda name: client.create(PODS, _pod(name)), names)
        async with asyncio.timeout(300):
            while (await client.list(PODS, "default", fields="spec.nodeName=")).items:
                await asyncio.sleep(0.2)
        took, after = time.monotonic() - began, plane.usage("scheduler")
    return Scheduled(
        case=case.name,
        layout=case.layout.name,
        slices=published.slices,
        bytes=published.bytes,
        latencies=latencies,
        pods_per_second=many / took,
        cpu=(after.cpu_seconds - before.cpu_seconds) / many,
    )


@asynccontextmanager
async def _claimed(client: KubeClient, case: Case, count: int, name: str) -> AsyncIterator[list[str]]:
    """So many claims while the block runs, by their names, which are those of the pods as well."""
    names = [f"{name}-{number}" for number in range(count)]
    await each(lambda name: client.create(RESOURCE_CLAIMS, {"metadata": _named(name), "spec": case.spec}), names)
    yield names
    await each(partial(_remove, client), names)


async def _bound(client: KubeClient, name: str) -> float:
    began = time.monotonic()
    await client.create(PODS, _pod(name))
    async with asyncio.timeout(120):
        while not (await client.get(PODS, name, "default"))["spec"].get("nodeName"):
            await asyncio.sleep(0.002)
    return time.monotonic() - began


def _named(name: str) -> Object:
    return {"name": name, "namespace": "default"}


def _pod(name: str) -> Object:
    container = {"name": "work", "image": "work", "resources": {"claims": [{"name": "gpus"}]}}
    spec = {
        "containers": [container],
        "resourceClaims": [{"name": "gpus", "resourceClaimName": name}],
        "automountServiceAccountToken": False,
        # No kubelet would let it go, nor does one have to.
        "terminationGracePeriodSeconds": 0,
    }
    return {"metadata": _named(name), "spec": spec}


async def _remove(client: KubeClient, name: str) -> None:
    await client.delete(PODS, name, "default")
    # No controller runs that would take the scheduler's finalizer away.
    await client.patch(RESOURCE_CLAIMS, name, {"metadata": {"finalizers": None}}, "default")
    await client.delete(RESOURCE_CLAIMS, name, "default")
