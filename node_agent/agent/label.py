"""The label of our own node that chooses its configuration, as the API server has it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from node_agent.agent.access import access_of
from node_agent.config.resolve import Sources
from node_agent.errors import KubeAccessError
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log
from node_agent.kit.tasks import running
from node_agent.kube.client import KubeClient
from node_agent.kube.mirror import Mirror
from node_agent.kube.resources import NODES

# Without an answer by then the agent starts as if there were no label; that API server sends no pods either.
PATIENCE_SECONDS = 10.0

log = Log(__name__)


@asynccontextmanager
async def node_label(sources: Sources) -> AsyncIterator[Latest[str | None]]:
    """The value of the label that the sources need, kept up to date during the block.

    None where the node has no such label, nobody can be asked, or no label is needed.
    """
    label: Latest[str | None] = Latest(None)
    if sources.named is None:
        yield label
        return
    name, settings = sources.named.label, sources.bare.resolve().settings
    try:
        access = access_of(settings)
    except KubeAccessError as error:
        log.warning("the node's label is not read", label=name, reason=error)
        yield label
        return
    async with KubeClient(access) as client:
        mirror = Mirror(client, NODES, fields=f"metadata.name={settings.node_name}")
        answered = asyncio.Event()

        async def follow() -> None:
            async for _ in changes(mirror.objects, mirror.synced):
                if mirror.synced.value:
                    node = mirror.objects.value.get(settings.node_name, {"metadata": {}})
                    label.set(node["metadata"].get("labels", {}).get(name))
                    answered.set()

        async with running(mirror.run(), name="node"), running(follow(), name="node label"):
            await _patiently(answered)
            yield label


async def _patiently(answered: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await answered.wait()
    except TimeoutError:
        log.warning("the API server does not tell the node's label yet", seconds=PATIENCE_SECONDS)
