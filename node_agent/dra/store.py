"""The slices of one node in the API: spoken in the version that the server serves, seen in the form of the newest."""

from collections.abc import Iterable

from node_agent.dra.writes import Objects
from node_agent.kube.client import KubeClient
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import NODES, RESOURCE_SLICES, Object

# Here, what describes a device is below this key; in all later versions it is beside the name.
_OLD_VERSION, _WRAPPED = "v1beta1", "basic"


class SliceStore:
    """All slices of ``driver`` on ``node``; every method raises KubeError."""

    def __init__(self, client: KubeClient, node: str, version: str, driver: str) -> None:
        self._client = client
        self._node = node
        self._resource = RESOURCE_SLICES.at(version)
        self._selector = f"spec.nodeName={node},spec.driver={driver}"

    def mirror(self) -> Mirror:
        """A copy that follows what happens to them; its objects are for ``seen``."""
        return Mirror(self._client, self._resource, fields=self._selector)

    def seen(self, items: Iterable[Object]) -> Objects:
        """Slices by name, in the newest form."""
        return {item["metadata"]["name"]: self._newest(item) for item in items}

    async def list(self) -> Objects:
        return self.seen((await self._client.list(self._resource, fields=self._selector)).items)

    async def write(self, item: Object) -> Object:
        """Make a slice, or replace the version of it that ``item`` says that it has; returns it as it was stored."""
        body = {"apiVersion": self._resource.api_version, "kind": self._resource.kind, **self._served(item)}
        if item["metadata"].get("resourceVersion"):
            return self._newest(await self._client.update(self._resource, body))
        return self._newest(await self._client.create(self._resource, body))

    async def delete(self, item: Object) -> None:
        metadata = item["metadata"]
        await self._client.delete(self._resource, metadata["name"], uid=metadata["uid"])

    async def node_uid(self) -> str:
        """Raises NotFound where the node is not registered."""
        return str((await self._client.get(NODES, self._node))["metadata"]["uid"])

    def _served(self, item: Object) -> Object:
        if self._resource.version != _OLD_VERSION or not item["spec"].get("devices"):
            return item
        devices = [{"name": device["name"], _WRAPPED: _but(device, "name")} for device in item["spec"]["devices"]]
        return {**item, "spec": {**item["spec"], "devices": devices}}

    def _newest(self, item: Object) -> Object:
        if self._resource.version != _OLD_VERSION or not item["spec"].get("devices"):
            return item
        devices = [{**_but(device, _WRAPPED), **device.get(_WRAPPED, {})} for device in item["spec"]["devices"]]
        return {**item, "spec": {**item["spec"], "devices": devices}}


def _but(item: Object, name: str) -> Object:
    return {key: value for key, value in item.items() if key != name}
