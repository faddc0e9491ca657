"""The API client on a real API server: the suite that the fake one keeps, and what another client sees beside it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.dynamic import DynamicClient

from node_agent.errors import KubeApiError
from node_agent.kit.tasks import running
from node_agent.kube.access import Access
from node_agent.kube.client import KubeClient, Patch
from node_agent.kube.find import in_cluster
from node_agent.kube.kubeconfig import read_kubeconfig
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Object,
    Resource,
)
from tests.contract.kube_objects import CONFIG_MAPS, config_map, resource_slice
from tests.contract.test_kube_client import KubeClientContract
from tests.node.rig.node import RealNode
from tests.node.rig.pods import busybox_pod
from tests.node.rig.waiting import PATIENCE

pytestmark = pytest.mark.node

HEAD = ("apiVersion", "kind")

COMPACT = """
import sys, urllib.request
body = b'{"revision": "%s"}' % sys.argv[1].encode()
urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:2379/v3/kv/compaction", data=body)).read()
"""


@pytest.fixture
def access(real_node: RealNode) -> Access:
    return read_kubeconfig(real_node.kubeconfig)


@pytest.fixture
async def client(access: Access) -> AsyncIterator[KubeClient]:
    async with KubeClient(access) as client:
        yield client


class TestOverARealServer(KubeClientContract):
    @pytest.fixture
    def access(self, real_node: RealNode) -> Access:
        return read_kubeconfig(real_node.kubeconfig)

    @pytest.fixture
    def powerless(self, real_node: RealNode) -> Access:
        return read_kubeconfig(real_node.service_account_kubeconfig("default"))

    @pytest.fixture
    def forgotten(self, real_node: RealNode) -> str:
        """The first version, after etcd has dropped all but the newest; events are not kept elsewhere."""
        newest = real_node.api.create(config_map())["metadata"]["resourceVersion"]
        real_node.machine.run([sys.executable, "-c", COMPACT, newest])
        return "1"

    @pytest.fixture
    def passing_time(self) -> None:
        """A real server sends a bookmark shortly before it ends a watch."""


class Official:
    """The official client, which other programs on a cluster are written with."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = kubernetes.config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
        self._dynamic = DynamicClient(self._api)  # type: ignore[no-untyped-call]

    def __enter__(self) -> "Official":
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()
        self._api.rest_client.pool_manager.clear()

    def resource(self, resource: Resource) -> Any:
        return self._dynamic.resources.get(api_version=resource.api_version, kind=resource.kind)

    def list(self, resource: Resource, **options: str) -> list[Object]:
        found: list[Object] = self.resource(resource).get(**options).to_dict()["items"]
        return found


@pytest.fixture
def official(real_node: RealNode) -> Iterator[Official]:
    with Official(real_node.kubeconfig) as official:
        yield official


@pytest.mark.parametrize(
    "resource", [NODES, PODS, EVENTS, DEVICE_CLASSES, DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES, CONFIG_MAPS]
)
async def test_the_official_client_knows_each_resource_by_the_same_name(official: Official, resource: Resource) -> None:
    theirs = await asyncio.to_thread(official.resource, resource)
    assert (theirs.name, theirs.group, theirs.namespaced) == (
        resource.plural,
        resource.group,
        resource.namespaced,
    )


async def test_the_official_client_sees_what_ours_sees(client: KubeClient, official: Official, node: RealNode) -> None:
    await asyncio.to_thread(node.pods.run, busybox_pod("seen"))
    made = await client.create(RESOURCE_SLICES, resource_slice("", "gpu-0", "gpu-1"))
    for resource in (PODS, RESOURCE_SLICES, CONFIG_MAPS):
        # The controllers go on with their work between two lists.
        async with asyncio.timeout(PATIENCE):
            while not await same_lists(client, official, resource):
                await asyncio.sleep(0.1)
    red = await asyncio.to_thread(official.list, RESOURCE_SLICES, field_selector="metadata.name=none")
    assert (await client.list(RESOURCE_SLICES, fields="metadata.name=none")).items == tuple(red) == ()
    await client.delete(RESOURCE_SLICES, made["metadata"]["name"])


async def same_lists(client: KubeClient, official: Official, resource: Resource) -> bool:
    ours = by_uid((await client.list(resource)).items)
    assert ours
    return ours == by_uid(await asyncio.to_thread(official.list, resource))


async def test_ours_sees_what_the_official_client_does(client: KubeClient, official: Official) -> None:
    maps = official.resource(CONFIG_MAPS)
    version = (await client.list(CONFIG_MAPS)).resource_version

    def change() -> Object:
        wanted = config_map(a="1")
        name = wanted["metadata"]["name"]
        maps.create(body=wanted, namespace="default")
        maps.patch(body={"data": {"b": "2"}}, name=name, namespace="default", content_type=Patch.MERGE.value)
        maps.delete(name=name, namespace="default")
        return wanted

    wanted = await asyncio.to_thread(change)
    async with asyncio.timeout(PATIENCE), client.watch(CONFIG_MAPS, version, namespace="default") as events:
        seen = [await anext(events) for _ in range(3)]
    assert [event.type for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
    assert {event.object["metadata"]["name"] for event in seen} == {wanted["metadata"]["name"]}
    assert seen[-1].object["data"] == {"a": "1", "b": "2"}


async def test_a_pods_token_is_let_in_and_its_successor_too(node: RealNode, tmp_path: Path) -> None:
    pod = await asyncio.to_thread(node.pods.run, busybox_pod("owner"))
    (tmp_path / "token").write_text(node.api.token("default", pod=pod))
    (tmp_path / "ca.crt").write_bytes(read_pem(read_kubeconfig(node.kubeconfig)))
    (tmp_path / "namespace").write_text("default")
    environment = {"KUBERNETES_SERVICE_HOST": node.machine.address, "KUBERNETES_SERVICE_PORT": "443"}
    async with KubeClient(in_cluster(environment, tmp_path)) as client:
        assert await client.newest_version() == "v1"
        (tmp_path / "token").write_text("not a token")
        with pytest.raises(KubeApiError, match="the token or the client certificate is not valid there"):
            await client.newest_version()
        (tmp_path / "token").write_text(node.api.token("default", pod=pod))
        assert await client.newest_version() == "v1"


async def test_a_mirror_survives_the_api_servers_restart(real_node: RealNode, client: KubeClient) -> None:
    kept, gone = [await client.create(RESOURCE_SLICES, resource_slice()) for _ in range(2)]
    mirror = Mirror(client, RESOURCE_SLICES, fields="spec.driver=gpu.test")
    async with asyncio.timeout(PATIENCE), running(mirror.run()):
        await until(mirror, {kept["metadata"]["name"], gone["metadata"]["name"]})
        await asyncio.to_thread(real_node.stop_api_server)
        real_node.launch_api_server()
        await client.delete(RESOURCE_SLICES, gone["metadata"]["name"])
        await until(mirror, {kept["metadata"]["name"]})
    assert mirror.restarts > 0
    await client.delete(RESOURCE_SLICES, kept["metadata"]["name"])


async def until(mirror: Mirror, names: set[str]) -> None:
    async for objects in mirror.objects.watch():
        if set(objects) == names:
            return


def by_uid(items: Iterable[Object]) -> dict[str, Object]:
    """Objects by their uid, without what the items of a list do not say of themselves."""
    return {item["metadata"]["uid"]: {k: v for k, v in item.items() if k not in HEAD} for item in items}


def read_pem(access: Access) -> bytes:
    assert isinstance(access.authority, Path)
    return access.authority.read_bytes()
