"""Asks the Kubernetes API: few verbs, objects as plain dicts.

``resources`` names what can be asked for, ``access`` where; ``calls`` tries again what can be; ``mirror`` keeps a copy.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from enum import StrEnum
from random import randint
from typing import Any

import msgspec
from msgspec import Struct

from node_agent.errors import NotFound, Unavailable
from node_agent.kit.shallow import decoded
from node_agent.kube.access import Access
from node_agent.kube.answers import refusal
from node_agent.kube.calls import Call, Calls, Patience
from node_agent.kube.resources import RESOURCE_GROUP, RESOURCE_VERSIONS, Object, Resource

PAGE = 500
# After so many seconds the server ends a watch in order; chance keeps the nodes' watches from ending together.
WATCH_SECONDS = (300, 600)


class Patch(StrEnum):
    """The kinds of patch, by media type; ``APPLY`` owns what it sets, in the agent's name."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(Struct, frozen=True, kw_only=True):
    """One change with the object as it then was, or with BOOKMARK nothing but the resourceVersion that was reached."""

    type: EventType
    object: Object


class Listing(Struct, frozen=True, kw_only=True):
    """Objects as they were at one ``resource_version``, from which a watch goes on."""

    items: tuple[Object, ...]
    resource_version: str


class KubeClient:
    """One identity's way to one API server. An async context manager: its connections end with the block.

    ``agent`` is what it is called in the server's log and as the owner of the fields that it sets.

    Every method raises KubeError: KubeApiError for what the server said, Unavailable where it said nothing, and
    KubeAccessError where it cannot be trusted or our files cannot be read. What can be repeated without harm is, with
    growing pauses, for ``patience.budget`` seconds; ``create`` only where the server has certainly done nothing.
    """

    def __init__(self, access: Access, *, agent: str = "gpu-node-agent", patience: Patience | None = None) -> None:
        self._agent = agent
        self._calls = Calls(access, agent=agent, patience=patience or Patience())

    async def __aenter__(self) -> "KubeClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._calls.__aexit__()

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """One object; NotFound where there is none."""
        return await self._calls.object(Call(verb="get", path=resource.path(namespace, name)))

    async def find(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        """One object, or None where there is none.

        Raises:
            NotFound: the server does not serve the kind, or is none, as a proxy's page says: the object may be there.
        """
        try:
            return await self.get(resource, name, namespace)
        except NotFound as error:
            if error.name != name:
                raise
            return None

    async def list(self, resource: Resource, namespace: str = "", *, fields: str = "", labels: str = "") -> Listing:
        """All objects that the selectors name, of all namespaces where none is given.

        Raises:
            Expired: it took so long that the server forgot its place: list anew.
        """
        query = _given(fieldSelector=fields, labelSelector=labels, limit=str(PAGE))
        # The items of a list say neither, unlike objects that come alone.
        named = {"apiVersion": resource.api_version, "kind": resource.kind}
        items: list[Object] = []
        while True:
            page = await self._calls.object(Call(verb="list", path=resource.path(namespace), query=query))
            items += [named | item for item in page["items"] or ()]
            if not (rest := page["metadata"].get("continue")):
                return Listing(items=tuple(items), resource_version=page["metadata"]["resourceVersion"])
            query["continue"] = rest

    async def create(self, resource: Resource, body: Object, *, dry_run: bool = False) -> Object:
        """Make an object; returns it as it was stored, which may be less than what was sent.

        Raises:
            AlreadyExists: one of that name is there.
            Unavailable: it may have been made nevertheless.
        """
        path = resource.path(body["metadata"].get("namespace", ""))
        return await self._calls.object(
            Call(verb="create", path=path, query=self._writing(dry_run), body=body, repeatable=False)
        )

    async def update(self, resource: Resource, body: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        """Replace an object; where it says a ``resourceVersion``, only if it is still that one.

        Raises:
            Conflict: it was changed since, be it by a try of this very call whose answer was lost.
        """
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        return await self._calls.object(Call(verb="update", path=path, query=self._writing(dry_run), body=body))

    async def patch(
        self,
        resource: Resource,
        name: str,
        change: Any,
        namespace: str = "",
        *,
        how: Patch = Patch.MERGE,
        subresource: str = "",
        owner: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Change parts of an object. ``Patch.APPLY`` takes over fields that others own, and makes what is not there.

        What an ``owner`` has applied before and does not any more goes. Empty, it is the client's ``agent``.
        """
        query = self._writing(dry_run, owner) | ({"force": "true"} if how is Patch.APPLY else {})
        path = resource.path(namespace, name, subresource)
        # The steps of a JSON patch may add up: an entry appended twice is there twice.
        repeatable = how is not Patch.JSON
        return await self._calls.object(
            Call(verb="patch", path=path, query=query, body=change, content_type=how, repeatable=repeatable)
        )

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> bool:
        """Ask for an object's deletion, where given only of the one with this uid and version; says if it was there.

        Raises:
            Conflict: it is another one.
        """
        conditions = _given(uid=uid, resourceVersion=resource_version)
        options = {"apiVersion": "v1", "kind": "DeleteOptions"} | ({"preconditions": conditions} if conditions else {})
        try:
            await self._calls.object(Call(verb="delete", path=resource.path(namespace, name), body=options))
        except NotFound:
            return False  # also where a try of ours has deleted it and the answer was lost
        return True

    @asynccontextmanager
    async def watch(
        self, resource: Resource, version: str, *, namespace: str = "", fields: str = "", labels: str = ""
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """What changes after ``version``, a listing's or an event's resourceVersion; it is not tried again.

        The events end when the server ends the watch in order, which it does every few minutes.

        Raises:
            Expired: that version is forgotten: list anew. As all others, raised on entering or by the events.
            Unavailable: the connection broke, or nothing came for too long.
        """
        query = _given(
            watch="true",
            resourceVersion=version,
            allowWatchBookmarks="true",
            timeoutSeconds=str(randint(*WATCH_SECONDS)),
            fieldSelector=fields,
            labelSelector=labels,
        )
        call = Call(verb="watch", path=resource.path(namespace), query=query)
        async with self._calls.lines(call) as lines, aclosing(_events(call, lines)) as events:
            yield events

    async def newest_version(self, group: str = RESOURCE_GROUP, known: Sequence[str] = RESOURCE_VERSIONS) -> str:
        """The first of the ``known`` versions of an API group that the server serves.

        Raises:
            NotFound: it serves none of them.
        """
        path = f"/apis/{group}"
        try:
            served = {one["version"] for one in (await self._calls.object(Call(verb="get", path=path)))["versions"]}
        except NotFound:
            served = set()
        for version in known:
            if version in served:
                return version
        have = f"only {', '.join(sorted(served))}" if served else "none"
        raise NotFound(
            f"the API server serves {have} of {group}, and {', '.join(known)} are known here: enable one there",
            verb="get",
            path=path,
            code=404,
        )

    async def groups(self) -> frozenset[str]:
        """The names of all API groups that the server serves, which tell what is installed in the cluster."""
        found = await self._calls.object(Call(verb="get", path="/apis"))
        return frozenset(one["name"] for one in found["groups"])

    def _writing(self, dry_run: bool, owner: str = "") -> dict[str, str]:
        return _given(fieldManager=owner or self._agent, dryRun="All" if dry_run else "")


async def _events(call: Call, lines: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent, None]:
    async for line in lines:
        try:
            event = decoded(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise refusal(call.verb, call.path, item)
            yield WatchEvent(type=EventType(kind), object=item)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"{call} brought no event: {error!r}", verb=call.verb, path=call.path) from error


def _given(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
