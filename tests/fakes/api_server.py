"""A Kubernetes API server in the test's own process: real HTTP, any kind of object, and faults on demand.

    async with ApiServer() as server, KubeClient(server.access) as client:
        server.put(NODES, {"metadata": {"name": "n0"}})      # what is there before the test
        ...                                                  # the part under test writes slices through the client
        await server.until(lambda: server.objects(RESOURCE_SLICES))
        assert [asked.verb for asked in server.writes("resourceslices")] == ["create"]

It keeps versions, generations and uids, refuses stale updates and changes of immutable fields, knows ``/status``, dry
runs, selectors, pages, finalizers and patches (merge, JSON, apply), and watches with history and bookmarks. It trusts
its clients with the form of their objects: what a real server validates beyond that, a test adds with ``check``.
``api_store`` has the rules, ``api_patches`` the patches, ``api_requests`` what goes over the wire.

What goes wrong on demand, each for the next requests whose RBAC verb and path fit (``verb=""`` and ``path=""`` fit all,
``path`` is a part of it):

    server.fail(2, verb="update", code=500)        # 409, 429 with retry_after=…, 403 …: an answer, nothing done
    server.drop(verb="create", applied=True)       # the connection breaks, after the object was made
    server.hang(path="resourceslices")             # no answer, ever
    server.slow(0.2, times=3)                      # the right answer, late
    server.forbid("create", "resourceslices")      # as RBAC does, until ``permit``
    server.strip("spec.devices[*].taints")         # as a server whose feature gate is off; or a function of the object
    server.serve("resource.k8s.io", "v1beta1")     # only these versions of a group
    server.end_watches(clean=False)                # all open watches; ``watch_error`` sends an ERROR event first
    server.compact()                               # whoever resumes a watch from now on is told 410
    await server.stop(); await server.start()      # away, and back on the same port with all its objects
"""

import asyncio
import copy
import ssl
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Self

import h11

from node_agent.kit.latest import Latest, changes
from node_agent.kit.tasks import cancel, running
from node_agent.kube.access import Access
from node_agent.kube.resources import Object, Resource
from tests.fakes import api_requests
from tests.fakes.api_answers import Answers
from tests.fakes.api_requests import Asked
from tests.fakes.api_store import Check, Place, Refused, Store, strip_at
from tests.fakes.api_watches import Dropped, Watch, events

WRITES = {"create", "update", "patch", "delete", "deletecollection"}
REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(kw_only=True)
class Fault:
    """What happens to the next ``times`` requests that fit; where ``applied``, after they were carried out."""

    times: int
    verb: str
    path: str
    refusal: Refused | None = None
    delay: float = 0.0
    ending: str = ""
    applied: bool = False

    def fits(self, asked: Asked) -> bool:
        return self.times > 0 and self.verb in ("", asked.verb) and self.path in asked.path


class ApiServer:
    """See the module. ``token`` is the one that it takes, or ``""`` for any; a TLS context makes it speak HTTPS.

    ``requests`` has all requests so far, ``watches`` the open watches, ``store`` the objects, ``answers`` the rights.
    """

    def __init__(self, *, token: str = "", tls: ssl.SSLContext | None = None, authority: bytes | None = None) -> None:
        self.store = Store()
        self.answers = Answers(self.store)
        self.answers.token = token
        self.requests: list[Asked] = []
        self.watches: set[Watch] = set()
        self._tls, self._authority = tls, authority
        self._faults: list[Fault] = []
        self._count = Latest(0)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after a ``stop`` on the same port again."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, ssl=self._tls)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and break all connections."""
        if self._server is not None:
            self._server.close()
            # One that was just accepted may come up while others are waited for.
            while self._connections:
                await cancel(next(iter(self._connections)))
            await self._server.wait_closed()
            self._server = None

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def access(self) -> Access:
        """What a client needs to come in."""
        return Access(server=self.url, source="the test", token=self.answers.token, authority=self._authority)

    # What is there, and what was done

    def put(self, resource: Resource, item: Object) -> Object:
        """Make an object with its status, or replace the one of that name; watches see it."""
        item = copy.deepcopy(item)
        name, namespace = item["metadata"]["name"], item["metadata"].get("namespace", "default")
        place = _place(resource, namespace)
        if not self.store.select(place, lambda found: found["metadata"]["name"] == name):
            return self.store.create(place, item, keep_status=True)
        item["metadata"].pop("resourceVersion", None)
        return self.store.update(place, name, item, keep_status=True)

    def remove(self, resource: Resource, name: str, namespace: str = "default") -> None:
        self.store.delete(_place(resource, namespace), name, {})

    def objects(self, resource: Resource, namespace: str = "", fields: str = "", labels: str = "") -> list[Object]:
        """What is stored now, in the order of names."""
        place = _place(resource, namespace)
        return self.store.select(place, self.store.selection(place, fields, labels))

    def writes(self, path: str = "") -> list[Asked]:
        """The requests so far that would change something, dry runs left out; ``path`` is a part of theirs."""
        return [asked for asked in self.requests if asked.verb in WRITES and not asked.dry_run and path in asked.path]

    async def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait until the condition holds, looked at after each change and each request; returns what it returned."""
        async with asyncio.timeout(seconds):
            async for _ in changes(self.store.revision, self._count, every=lambda: 0.02):
                if met := condition():
                    return met

    # What goes wrong

    def fail(
        self,
        times: int = 1,
        *,
        verb: str = "",
        path: str = "",
        code: int = 500,
        reason: str = "",
        message: str = "made to fail",
        retry_after: float | None = None,
    ) -> None:
        """Answer with an error, doing nothing."""
        refusal = Refused(code, reason or REASONS.get(code, ""), message, retry_after=retry_after)
        self._faults.append(Fault(times=times, verb=verb, path=path, refusal=refusal))

    def drop(self, times: int = 1, *, verb: str = "", path: str = "", applied: bool = False) -> None:
        """Break the connection without an answer."""
        self._faults.append(Fault(times=times, verb=verb, path=path, ending="drop", applied=applied))

    def hang(self, times: int = 1, *, verb: str = "", path: str = "", applied: bool = False) -> None:
        """Never answer."""
        self._faults.append(Fault(times=times, verb=verb, path=path, ending="hang", applied=applied))

    def slow(self, seconds: float, times: int = 1, *, verb: str = "", path: str = "") -> None:
        """Carry out and answer, so many seconds late."""
        self._faults.append(Fault(times=times, verb=verb, path=path, delay=seconds))

    def heal(self) -> None:
        """Forget the faults that have not struck yet."""
        self._faults.clear()

    def forbid(self, verb: str, resource: str) -> None:
        """Take away a right; the resource is a plural, or plural and subresource: ``resourceclaims/status``.

        It may be a path that is none of objects, too: ``/apis``.
        """
        self.answers.forbidden.add((verb, resource))

    def permit(self) -> None:
        """Give all rights back."""
        self.answers.forbidden.clear()

    def serve(self, group: str, *versions: str) -> None:
        """Serve only these versions of a group, newest first; all objects are there in each, in the same form."""
        self.answers.versions[group] = versions

    def strip(self, what: str | Callable[[Object], None]) -> None:
        """Drop a field from all that is written, or let a function change it: ``spec.devices[*].taints``."""
        self.store.mutations.append(what if callable(what) else lambda item: strip_at(item, what))

    def check(self, plural: str, check: Check) -> None:
        """Refuse (422) what ``check`` finds wrong with an object as it was and as it shall be."""
        self.store.checks.setdefault(plural, []).append(check)

    def compact(self) -> None:
        """Forget the history: who resumes a watch or a list from before is told 410."""
        self.store.forget()

    def bookmark(self) -> None:
        """Send a bookmark on every open watch that wants them."""
        self._order("bookmark")

    def watch_error(self, code: int = 410, reason: str = "") -> None:
        """Send an ERROR event on every open watch and end it."""
        self._order(Refused(code, reason or REASONS.get(code, ""), "made to fail").status, "end")

    def end_watches(self, *, clean: bool = True) -> None:
        """End every open watch, in order or by breaking the connection."""
        self._order("end" if clean else "cut")

    def _order(self, *orders: str | Object) -> None:
        for watch in self.watches:
            watch.order(*orders)

    # Connections

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._converse(reader, writer), name="connection of the fake API server")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        # One that is cancelled before it began closes nothing.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=65536)
        try:
            while (asked := await api_requests.read(http, reader)) is not None:
                await self._exchange(asked, http, reader, writer)
                if not (http.our_state is http.their_state is h11.DONE):
                    break
                http.start_next_cycle()
        except (OSError, Dropped, h11.RemoteProtocolError):
            pass  # gone, or made to go
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def _exchange(
        self, asked: Asked, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append(asked)
        self._count.set(self._count.value + 1)
        try:
            await self._suffer(asked)
            self.answers.admit(asked)
            if asked.verb == "watch":
                await self._watch(asked, http, reader, writer)
            else:
                asked.code, content = self.answers.carry_out(asked)
                writer.write(api_requests.answer(http, asked.code, content))
        except Refused as refused:
            asked.code = refused.code
            writer.write(api_requests.answer(http, refused.code, refused.status, refused.retry_after))
        await writer.drain()

    async def _suffer(self, asked: Asked) -> None:
        """Let the next fault strike that was made for such a request."""
        fault = next((fault for fault in self._faults if fault.fits(asked)), None)
        if fault is None:
            return
        fault.times -= 1
        await asyncio.sleep(fault.delay)
        if fault.applied:
            self.answers.admit(asked)
            self.answers.carry_out(asked)
        if fault.ending == "hang":
            await asyncio.Event().wait()
        if fault.ending == "drop":
            raise Dropped
        if fault.refusal is not None:
            raise fault.refusal

    async def _watch(
        self, asked: Asked, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert asked.place is not None
        self.store.selection(asked.place, asked.query.get("fieldSelector", ""), asked.query.get("labelSelector", ""))
        writer.write(api_requests.beginning(http))
        watch, asked.code = Watch(asked), 200
        self._note(watch, open_=True)
        try:
            async with running(watch.end_with(reader)), aclosing(events(watch, asked.place, self.answers)) as seen:
                async for event in seen:
                    writer.write(api_requests.line(http, event))
                    await writer.drain()
        finally:
            self._note(watch, open_=False)
        writer.write(api_requests.end(http))

    def _note(self, watch: Watch, *, open_: bool) -> None:
        (self.watches.add if open_ else self.watches.discard)(watch)
        self._count.set(self._count.value + 1)


def _place(resource: Resource, namespace: str) -> Place:
    within = namespace if resource.namespaced else ""
    return Place(group=resource.group, plural=resource.plural, namespace=within)
