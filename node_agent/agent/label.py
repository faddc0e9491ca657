"""The labels of our own node, as the API server has them: one of them chooses its configuration, one its layout."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from msgspec import Struct, field

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

Labels = Latest[Mapping[str, str] | None]

log = Log(__name__)


class NodeLabels:
    """A service: keeps ``labels`` those of a node, none where it has none; None as long as nobody tells."""

    def __init__(self, client: KubeClient, node: str, labels: Labels) -> None:
        self._mirror = Mirror(client, NODES, fields=f"metadata.name={node}")
        self._node = node
        self._labels = labels

    async def run(self) -> None:
        """Follow until cancelled."""
        async with running(self._mirror.run(), name="node"):
            async for _ in changes(self._mirror.objects, self._mirror.synced):
                if self._mirror.synced.value:
                    node = self._mirror.objects.value.get(self._node, {"metadata": {}})
                    self._labels.set(node["metadata"].get("labels") or {})


class Labelled(Struct, frozen=True, kw_only=True):
    """The value of the label that chooses the configuration, and all ``labels``; ``followed`` says whether they are."""

    config: Latest[str | None] = field(default_factory=lambda: Latest(None))
    labels: Labels = field(default_factory=lambda: Latest(None))
    followed: bool = False


@asynccontextmanager
async def node_label(sources: Sources) -> AsyncIterator[Labelled]:
    """The labels where the sources need one of them, kept up to date during the block.

    They are not known where nobody can be asked; nor are they followed where no label is needed.
    """
    labelled = Labelled()
    if sources.named is None:
        yield labelled
        return
    name, settings = sources.named.label, sources.bare.resolve().settings
    try:
        access = access_of(settings)
    except KubeAccessError as error:
        log.warning("the node's label is not read", label=name, reason=error)
        yield labelled
        return
    labelled = Labelled(followed=True)
    async with KubeClient(access) as client:
        answered = asyncio.Event()

        async def pick() -> None:
            async for labels in labelled.labels.watch():
                if labels is not None:
                    labelled.config.set(labels.get(name))
                    answered.set()

        follow = NodeLabels(client, settings.node_name, labelled.labels)
        async with running(follow.run(), name="node labels"), running(pick(), name="node label"):
            await _patiently(answered)
            yield labelled


async def _patiently(answered: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await answered.wait()
    except TimeoutError:
        log.warning("the API server does not tell the node's label yet", seconds=PATIENCE_SECONDS)
