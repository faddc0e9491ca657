"""Asking the kubelet who holds devices, over real gRPC."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from node_agent.errors import KubeletError
from node_agent.kubelet.podresources import PodDevice, PodDevices, allocatable_devices
from node_agent.kubelet.server import serving
from node_agent.wire import podresources_v1_pb2 as wire
from node_agent.wire import podresources_v1_pb2_grpc as rpc


class Lister(rpc.PodResourcesListerServicer):
    """Answers the given pods, or refuses as the kubelet does when too many ask."""

    def __init__(
        self, pods: list[wire.PodResources], *, there: list[wire.ContainerDevices] | None = None, busy: bool = False
    ) -> None:
        self.pods = pods
        self.there = there or []
        self.busy = busy

    async def List(self, request: wire.ListPodResourcesRequest, context: Any) -> wire.ListPodResourcesResponse:
        await self._refuse_if_busy(context)
        return wire.ListPodResourcesResponse(pod_resources=self.pods)

    async def _refuse_if_busy(self, context: Any) -> None:
        if self.busy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    async def GetAllocatableResources(
        self, request: wire.AllocatableResourcesRequest, context: Any
    ) -> wire.AllocatableResourcesResponse:
        await self._refuse_if_busy(context)
        return wire.AllocatableResourcesResponse(devices=self.there)

    async def Get(self, request: wire.GetPodResourcesRequest, context: Any) -> wire.GetPodResourcesResponse:
        raise NotImplementedError


def pod(name: str, *containers: dict[str, list[str]]) -> wire.PodResources:
    return wire.PodResources(
        name=name,
        namespace="default",
        containers=[
            wire.ContainerResources(
                name=f"c{number}",
                devices=[wire.ContainerDevices(resource_name=key, device_ids=ids) for key, ids in devices.items()],
            )
            for number, devices in enumerate(containers)
        ],
    )


async def held_devices(socket: Path) -> dict[str, frozenset[str]]:
    async with PodDevices(socket) as pods:
        return await pods.held()


Ask = Callable[[Path], Awaitable[dict[str, frozenset[str]]]]


async def ask(folder: Path, lister: Lister, question: Ask = held_devices) -> dict[str, frozenset[str]]:
    socket = folder / "kubelet.sock"
    async with serving(socket, lambda server: rpc.add_PodResourcesListerServicer_to_server(lister, server)):
        return await question(socket)


async def test_the_devices_of_every_container_of_every_pod_are_held(tmp_path: Path) -> None:
    pods = [
        pod("a", {"nvidia.com/gpu": ["GPU-1", "GPU-2"]}, {"nvidia.com/gpu": ["GPU-3"]}),
        pod("b", {"nvidia.com/gpu": ["GPU-4"], "other.com/nic": ["nic-0"]}),
        pod("c", {}),
    ]
    assert await ask(tmp_path, Lister(pods)) == {
        "nvidia.com/gpu": {"GPU-1", "GPU-2", "GPU-3", "GPU-4"},
        "other.com/nic": {"nic-0"},
    }


async def test_a_device_on_two_numa_nodes_is_listed_twice_and_held_once(tmp_path: Path) -> None:
    entry = wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1"])
    pods = [wire.PodResources(containers=[wire.ContainerResources(devices=[entry, entry])])]
    assert await ask(tmp_path, Lister(pods)) == {"nvidia.com/gpu": {"GPU-1"}}


async def test_who_has_which_device_is_kept_with_claims_and_until_the_next_answer(tmp_path: Path) -> None:
    limits = wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1"])
    claimed = [
        wire.ClaimResource(driver_name="gpu.nvidia.com", pool_name="node", device_name="gpu-2"),
        wire.ClaimResource(driver_name="gpu.nvidia.com", pool_name="node", device_name="gpu-3", share_id="one"),
    ]
    claim = wire.DynamicResource(claim_name="four", claim_namespace="team", claim_resources=claimed)
    container = wire.ContainerResources(name="main", devices=[limits], dynamic_resources=[claim])
    lister = Lister([wire.PodResources(name="train", namespace="team", containers=[container])])
    socket = tmp_path / "kubelet.sock"
    pods = PodDevices(socket)
    async with pods, serving(socket, lambda server: rpc.add_PodResourcesListerServicer_to_server(lister, server)):
        assert await pods.held() == {"nvidia.com/gpu": {"GPU-1"}}
        lister.busy = True
        with pytest.raises(KubeletError):
            await pods.held()

    of_claim = PodDevice(
        namespace="team",
        pod="train",
        container="main",
        of="gpu.nvidia.com",
        device="gpu-2",
        claim="team/four",
        pool="node",
    )
    assert pods.last.value == (
        PodDevice(namespace="team", pod="train", container="main", of="nvidia.com/gpu", device="GPU-1"),
        of_claim,
        replace(of_claim, device="gpu-3", share_id="one"),
    )


async def test_an_answer_larger_than_grpcs_default_is_taken(tmp_path: Path) -> None:
    ids = [f"GPU-{number:060}" for number in range(100_000)]
    assert len((await ask(tmp_path, Lister([pod("large", {"nvidia.com/gpu": ids})])))["nvidia.com/gpu"]) == 100_000


async def test_what_could_be_given_out_is_told_by_resource_whoever_holds_it(tmp_path: Path) -> None:
    """With an entry for each NUMA node here as well."""
    there = [
        wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1"]),
        wire.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-1", "GPU-2"]),
        wire.ContainerDevices(resource_name="other.com/nic", device_ids=["nic-0"]),
    ]
    lister = Lister([pod("a", {"nvidia.com/gpu": ["GPU-2"]})], there=there)
    assert await ask(tmp_path, lister, allocatable_devices) == {
        "nvidia.com/gpu": {"GPU-1", "GPU-2"},
        "other.com/nic": {"nic-0"},
    }


@pytest.mark.parametrize("question", [held_devices, allocatable_devices])
async def test_a_kubelet_that_is_asked_too_often_is_an_error_that_says_so(tmp_path: Path, question: Ask) -> None:
    with pytest.raises(KubeletError, match="RESOURCE_EXHAUSTED: rejected by rate limit"):
        await ask(tmp_path, Lister([], busy=True), question)


@pytest.mark.parametrize("question", [held_devices, allocatable_devices])
async def test_no_kubelet_is_an_error_that_names_the_socket(tmp_path: Path, question: Ask) -> None:
    with pytest.raises(KubeletError, match=str(tmp_path / "none.sock")):
        await question(tmp_path / "none.sock")


@pytest.mark.parametrize("own_pod", ["agent", ""])
async def test_a_kubelet_that_has_read_its_pods_knows_them_since_its_start(tmp_path: Path, own_pod: str) -> None:
    add = partial(rpc.add_PodResourcesListerServicer_to_server, Lister([pod("agent")]))
    async with PodDevices(tmp_path / "kubelet.sock", own_pod) as pods:
        assert pods.since() is None
        begun = time.time()
        async with serving(tmp_path / "kubelet.sock", add):
            serves = time.time()
            await asyncio.sleep(0.2)
            await pods.held()
            assert begun - 0.1 <= (pods.since() or 0.0) <= serves + 0.1


async def test_a_kubelet_that_tells_of_static_pods_alone_does_not_know_those_of_the_api_server_yet(
    tmp_path: Path,
) -> None:
    lister = Lister([pod("proxy-node")])
    add = partial(rpc.add_PodResourcesListerServicer_to_server, lister)
    async with PodDevices(tmp_path / "kubelet.sock", "agent") as pods:
        async with serving(tmp_path / "kubelet.sock", add, grace=0):
            await pods.held()
            assert pods.since() is None
            await asyncio.sleep(0.1)
            known = time.time()
            lister.pods = [pod("proxy-node"), pod("agent")]
            await pods.held()
            since = pods.since()
            assert known <= (since or 0.0)
            lister.pods = []
            await pods.held()
            assert pods.since() == since, "the agent may be about to end"
        async with serving(tmp_path / "kubelet.sock", add, grace=0):
            assert pods.since() is None, "another kubelet, that was not asked yet"
            await pods.held()
            assert pods.since() is None


async def test_a_kubelet_that_has_restarted_is_asked_over_a_connection_of_its_own(tmp_path: Path) -> None:
    async with PodDevices(tmp_path / "kubelet.sock") as pods:
        for number in range(3):
            name = f"GPU-{number}"
            lister = Lister([pod("a", {"nvidia.com/gpu": [name]})])
            add = partial(rpc.add_PodResourcesListerServicer_to_server, lister)
            async with serving(tmp_path / "kubelet.sock", add, grace=0):
                for _ in range(2):
                    assert await pods.held() == {"nvidia.com/gpu": {name}}
            with pytest.raises(KubeletError):
                await pods.held()


class Slow(Lister):
    """Takes its time for the first who asks, and refuses the second meanwhile."""

    calls = 0

    async def List(self, request: wire.ListPodResourcesRequest, context: Any) -> wire.ListPodResourcesResponse:
        self.calls += 1
        self.busy = self.calls == 2
        answer = await super().List(request, context)
        await asyncio.sleep(0.3)
        return answer


async def test_who_is_refused_takes_the_answer_from_nobody_else_who_asks(tmp_path: Path) -> None:
    """The one that asks for the ledger's sake ended when a plugin beside it heard no."""
    add = partial(rpc.add_PodResourcesListerServicer_to_server, Slow([pod("a", {"nvidia.com/gpu": ["GPU-1"]})]))
    async with PodDevices(tmp_path / "kubelet.sock") as pods, serving(tmp_path / "kubelet.sock", add):
        first, second = await asyncio.gather(pods.held(), pods.held(), return_exceptions=True)
    assert first == {"nvidia.com/gpu": frozenset({"GPU-1"})}
    assert isinstance(second, KubeletError)
