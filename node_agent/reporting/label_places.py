"""The places where the node's labels are written: Node Feature Discovery's two ways in, and the Node itself.

Each tells what stands there of ours, and which labels others have set, by whom: of one label there is one writer.
``label_writer`` decides what is to be written, and when.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from node_agent.errors import Forbidden, LabelsNotWritten, NotFound
from node_agent.kit.files import remove, write_atomic
from node_agent.kit.logs import Log
from node_agent.kube.client import KubeClient, Patch
from node_agent.kube.resources import NODE_FEATURES, NODES, PODS, Object
from node_agent.reporting.node_condition import REPORTER

# What NFD takes for a comment, and we for the sign that a file is ours.
_MARK = f"# written by {REPORTER}"
_LONGEST_FILE = 64 * 1024
_NFDS_LABELS = "nfd.node.kubernetes.io/feature-labels"
_NODE_NAME = "nfd.node.kubernetes.io/node-name"

Labels = Mapping[str, str]

log = Log(__name__)


class Stored(Struct, frozen=True, kw_only=True):
    """The labels of ours that stand in a place, and who else has set which."""

    own: Labels = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)


class LabelPlace(Protocol):
    """Where labels are written. Both methods raise KubeError or LabelsNotWritten."""

    @property
    def name(self) -> str:
        """What to call it."""

    async def look(self) -> Stored: ...

    async def put(self, labels: Labels) -> None:
        """Replace what stands there of ours; with no labels nothing of us is left."""


class FeatureFile:
    """A file in NFD's folder, which its worker on the node reads when something happens there.

    Of a second's events the worker heeds the first only, such as that of our temporary file. So the folder is touched
    ``deaf_seconds`` later; the worker might read the file a minute late otherwise.
    """

    def __init__(self, path: Path, deaf_seconds: float = 1.1) -> None:
        self._path = path
        self._deaf_seconds = deaf_seconds

    @property
    def name(self) -> str:
        return f"file {self._path}"

    async def look(self) -> Stored:
        return await asyncio.to_thread(self._look)

    async def put(self, labels: Labels) -> None:
        try:
            await asyncio.to_thread(self._put, labels)
            await asyncio.sleep(self._deaf_seconds)
            await asyncio.to_thread(os.utime, self._path.parent)
        except OSError as error:
            raise LabelsNotWritten(f"{self._path}: cannot be written: {error.strerror}") from error

    def _look(self) -> Stored:
        try:
            found = {path: _read(path) for path in sorted(self._path.parent.iterdir()) if _is_read(path)}
        except OSError as error:
            raise LabelsNotWritten(
                f"{self._path.parent}: {error.strerror}: it is Node Feature Discovery's folder on the host, and is to "
                "be mounted; or choose another agent.labels.writer"
            ) from error
        own = found.pop(self._path, "")
        if own and not own.startswith(_MARK):
            raise LabelsNotWritten(
                f"{self._path} is another program's: remove it, or name another flags.gfd.outputFile"
            )
        return Stored(
            own=_parsed(own), others={key: f"file {path}" for path, text in found.items() for key in _parsed(text)}
        )

    def _put(self, labels: Labels) -> None:
        lines = [_MARK, *(f"{key}={value}" for key, value in labels.items())]
        if labels:
            write_atomic(self._path, ("\n".join(lines) + "\n").encode())
        else:
            remove(self._path)


def _is_read(path: Path) -> bool:
    """Whether NFD reads it; nobody would ever be done with a pipe."""
    return not path.name.startswith(".") and path.is_file()


def _read(path: Path) -> str:
    with suppress(FileNotFoundError), open(path, errors="replace") as file:
        return file.read(_LONGEST_FILE)
    return ""


def _parsed(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    parts = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() if equals else "true" for key, equals, value in parts}


class FeatureObject:
    """An object from which NFD's master makes labels; it goes with the owner of the agent's pod, if that is known."""

    def __init__(
        self, client: KubeClient, node: str, namespace: str, owners: Callable[[], Awaitable[list[Object]]]
    ) -> None:
        self._client = client
        self._node = node
        self._namespace = namespace
        self._owners = owners
        self._object = f"{REPORTER}-{node}"

    @property
    def name(self) -> str:
        return f"NodeFeature {self._namespace}/{self._object}"

    async def look(self) -> Stored:
        """NFD's master would overwrite a label that somebody has set on the Node, and take it away at the end."""
        metadata = (await self._client.get(NODES, self._node))["metadata"]
        found = await self._client.list(NODE_FEATURES, labels=f"{_NODE_NAME}={self._node}")
        of = {f"NodeFeature {one['metadata']['namespace']}/{one['metadata']['name']}": one for one in found.items}
        labels = {name: one.get("spec", {}).get("labels") or {} for name, one in of.items()}
        own = labels.pop(self.name, {})
        others = {key: name for name, theirs in labels.items() for key in theirs}
        return Stored(own=own, others=dict(_set_beside_nfd(metadata)) | others)

    async def put(self, labels: Labels) -> None:
        if not labels:
            await self._client.delete(NODE_FEATURES, self._object, self._namespace)
            return
        metadata: Object = {"name": self._object, "namespace": self._namespace, "labels": {_NODE_NAME: self._node}}
        if owners := await self._owners():
            metadata["ownerReferences"] = owners
        body = {
            "apiVersion": NODE_FEATURES.api_version,
            "kind": NODE_FEATURES.kind,
            "metadata": metadata,
            # Older releases of NFD want all three kinds of features to be there.
            "spec": {"features": {"flags": {}, "attributes": {}, "instances": {}}, "labels": dict(labels)},
        }
        await self._client.patch(NODE_FEATURES, self._object, body, self._namespace, how=Patch.APPLY)


class NodeLabels:
    """The Node itself, where there is no NFD."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._client = client
        self._node = node

    @property
    def name(self) -> str:
        return f"Node {self._node}"

    async def look(self) -> Stored:
        metadata = (await self._client.get(NODES, self._node))["metadata"]
        present, managers = metadata.get("labels") or {}, dict(_managers(metadata))
        own = managers.pop(REPORTER, frozenset())
        return Stored(
            own={key: value for key, value in present.items() if key in own},
            others={key: manager for manager, keys in managers.items() for key in keys},
        )

    async def put(self, labels: Labels) -> None:
        metadata = {"name": self._node, "labels": dict(labels)}
        body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": metadata}
        await self._client.patch(NODES, self._node, body, how=Patch.APPLY)


def _set_beside_nfd(metadata: Object) -> Iterator[tuple[str, str]]:
    """The labels of a Node that are neither ours nor NFD's, which lists its own in annotations, and who set them."""
    listed = [text for key, text in (metadata.get("annotations") or {}).items() if key.endswith(_NFDS_LABELS)]
    nfds = {name for text in listed for name in text.split(",")}
    for manager, keys in _managers(metadata):
        if manager != REPORTER:
            yield from ((key, manager) for key in keys - nfds)


def _managers(metadata: Object) -> Iterator[tuple[str, frozenset[str]]]:
    """Who has set which labels of an object."""
    for entry in metadata.get("managedFields") or ():
        labels = entry.get("fieldsV1", {}).get("f:metadata", {}).get("f:labels", {})
        if labels:
            yield str(entry.get("manager")), frozenset(key.removeprefix("f:") for key in labels if key != ".")


class FirstFitting:
    """The place that ``choose`` finds, which is asked once, when the place is needed."""

    def __init__(self, choose: Callable[[], Awaitable[LabelPlace]]) -> None:
        self._choose = choose
        self._chosen: LabelPlace | None = None

    @property
    def name(self) -> str:
        return self._chosen.name if self._chosen else "the place that fits"

    async def look(self) -> Stored:
        self._chosen = self._chosen or await self._choose()
        return await self._chosen.look()

    async def put(self, labels: Labels) -> None:
        self._chosen = self._chosen or await self._choose()
        await self._chosen.put(labels)


async def owners_of_pod(client: KubeClient, name: str, namespace: str) -> list[Object]:
    """What the agent's own pod belongs to, as references; none where that cannot be told."""
    if not name:
        return []
    try:
        pod = await client.get(PODS, name, namespace)
    except (NotFound, Forbidden) as error:
        log.warning("the object with the labels outlives the agent's pods: whose they are is not known", reason=error)
        return []
    return pod["metadata"].get("ownerReferences") or []
