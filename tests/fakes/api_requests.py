"""Requests and answers of the fake API server of ``api_server``, as they go over its connections."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from tests.fakes.api_store import Place

METHODS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
READ_BYTES = 65536


@dataclass(kw_only=True)
class Asked:
    """One request as it came in; ``verb`` is RBAC's, ``code`` the status that it was answered with, 0 for none yet.

    ``place`` is None where the path is not one of objects.
    """

    verb: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None
    place: Place | None = None
    version: str = ""
    name: str = ""
    subresource: str = ""
    code: int = 0

    @property
    def agent(self) -> str:
        return self.headers.get("user-agent", "")

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"


async def read(http: h11.Connection, reader: asyncio.StreamReader) -> Asked | None:
    """The next request with its body, or None where the client has closed."""
    request, body = None, b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            return _understood(request, body) if request is not None else None


def answer(http: h11.Connection, code: int, content: Any, retry_after: float | None = None) -> bytes:
    """The bytes of a whole answer in JSON."""
    body = json.dumps(content).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    if retry_after is not None:
        headers.append(("retry-after", f"{retry_after:g}"))
    return _sent(http, [h11.Response(status_code=code, headers=headers), h11.Data(data=body), h11.EndOfMessage()])


def beginning(http: h11.Connection) -> bytes:
    """The bytes with which a watch's answer begins."""
    headers = [("content-type", "application/json"), ("transfer-encoding", "chunked")]
    return _sent(http, [h11.Response(status_code=200, headers=headers)])


def line(http: h11.Connection, content: Any) -> bytes:
    return _sent(http, [h11.Data(data=json.dumps(content).encode() + b"\n")])


def end(http: h11.Connection) -> bytes:
    return _sent(http, [h11.EndOfMessage()])


def _sent(http: h11.Connection, events: Sequence[h11.Event]) -> bytes:
    return b"".join(http.send(event) or b"" for event in events)


def _understood(request: h11.Request, body: bytes) -> Asked:
    target = urlsplit(request.target.decode())
    asked = Asked(
        verb=METHODS.get(request.method.decode(), ""),
        path=target.path,
        query=dict(parse_qsl(target.query)),
        headers={name.decode().lower(): value.decode() for name, value in request.headers},
        body=json.loads(body) if body else {},
    )
    _find_place(asked)
    collective = {"get": "watch" if asked.query.get("watch") in ("1", "true") else "list", "delete": "deletecollection"}
    if asked.place is not None and not asked.name:
        asked.verb = collective.get(asked.verb, asked.verb)
    return asked


def _find_place(asked: Asked) -> None:
    """Take ``/api/v1/[namespaces/ns/]plural[/name[/subresource]]`` or ``/apis/group/version/…`` apart."""
    parts = [unquote(part) for part in asked.path.strip("/").split("/")]
    group, rest = ("", parts[1:]) if parts[0] == "api" else (parts[1] if len(parts) > 1 else "", parts[2:])
    if parts[0] not in ("api", "apis") or len(rest) < 2:
        return
    asked.version, rest = rest[0], rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    asked.place = Place(group=group, plural=rest[0], namespace=namespace)
    asked.name, asked.subresource = (*rest[1:3], "", "")[:2]
