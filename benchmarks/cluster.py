"""A Kubernetes API server in a process of its own, so that its work is not taken for the agent's: ``served``.

It is the one of the tests, which answers at once, and knows one node.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_agent.kube.client import KubeClient
from node_agent.kube.find import find_access
from node_agent.kube.resources import NODES, RESOURCE_CLAIMS, Object
from node_agent.wire import dra_v1_pb2 as wire

NODE = "node"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The API server's clients: ``kubeconfig`` is the agent's, ``client`` the benchmark's."""

    kubeconfig: Path
    client: KubeClient

    @property
    def settings(self) -> Mapping[str, Any]:
        """What an agent of the node has to be told, as in its file under ``agent``."""
        return {"kubeconfig": str(self.kubeconfig), "nodeName": NODE, "frontDoors": {"dra": True}}

    async def allocated(self, driver: str, name: str, devices: list[str]) -> wire.Claim:
        """A claim to which these devices are allocated, as the kubelet names it."""
        results = [{"request": "gpus", "driver": driver, "pool": NODE, "device": device} for device in devices]
        claim: Object = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": driver}}]}},
        }
        made = await self.client.create(RESOURCE_CLAIMS, claim)
        made["status"] = {"allocation": {"devices": {"results": results}}}
        await self.client.update(RESOURCE_CLAIMS, made, subresource="status")
        return wire.Claim(uid=made["metadata"]["uid"], namespace="default", name=name)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Cluster]:
    """An API server while the block runs; ``folder`` gets the kubeconfig."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.cluster", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        file = folder / "kubeconfig"
        file.write_text(_kubeconfig((await child.stdout.readline()).decode().strip()))
        async with KubeClient(find_access(file)) as client:
            yield Cluster(kubeconfig=file, client=client)
    finally:
        child.stdin.close()
        await child.wait()


def _kubeconfig(url: str) -> str:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "c", "user": {"token": "any"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    return json.dumps(document)


async def _serve() -> None:
    """Serve until standard input ends."""
    from tests.fakes.api_server import ApiServer  # noqa: PLC0415  # only this process needs it

    async with ApiServer() as server:
        server.put(NODES, {"metadata": {"name": NODE}})
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve())
