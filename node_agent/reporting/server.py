"""Serves what the agent says of itself over HTTP: one server on the agent's socket, one on TCP if asked.

``/healthz`` answers as long as the event loop turns, and says what hangs; ``/readyz`` answers 503 with the reasons
while the agent cannot do its work, and with ``?verbose`` has a line for each part; ``/status`` is the whole status
document, ``/metrics`` is for Prometheus. ``/health`` is the health document, with ``?watch=1`` a line of it at each
change and every ten seconds. ``POST /health/clear`` closes causes of a GPU, and is on the agent's socket only: over TCP
anybody may ask.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from node_agent.errors import ConfigError
from node_agent.kit.http import Request, Response, Routes, serving
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Cause, Reason
from node_agent.reporting.health import cause_status, found, not_found
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.status import Status

JSON, JSON_LINES = "application/json", "application/x-ndjson"

Clear = Callable[[GpuUuid, Reason | None, int | None], tuple[Cause, ...]]
"""Closes the open causes of a GPU, where given only those of a reason and a code; answers which."""


class StatusServer:
    """Serves in one place, a Unix socket or a TCP address, what ``read`` answers and ``health`` shows.

    With ``clear`` causes can be closed there; ``more`` are routes of others, as ``/metrics``.
    """

    def __init__(
        self,
        read: Callable[[], Status],
        health: HealthView,
        where: Path | tuple[str, int],
        *,
        clear: Clear | None = None,
        more: Routes | None = None,
    ) -> None:
        self._read = read
        self._view = health
        self._where = where
        self.routes: Routes = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/status": self._status,
            "/health": self._health,
            **({"POST /health/clear": Clearing(health, clear)} if clear is not None else {}),
            **(more or {}),
        }

    async def run(self) -> None:
        """Serve until cancelled. Raises ConfigError where nobody can listen there."""
        try:
            async with serving(self.routes, self._where):
                await asyncio.Event().wait()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{_setting(self._where)}: cannot listen there: {error}") from error

    async def _healthz(self, _: Request) -> Response:
        return Response(body="\n".join(["alive", *self._read().trouble, ""]).encode())

    async def _readyz(self, request: Request) -> Response:
        found = self._read()
        parts = _part_lines(found) if "verbose" in dict(parse_qsl(request.query, keep_blank_values=True)) else []
        if found.trouble:
            return Response(status=503, body="\n".join(["not ready", *found.trouble, *parts, ""]).encode())
        return Response(body="\n".join(["ready", *parts, ""]).encode())

    async def _status(self, _: Request) -> Response:
        return Response(body=msgspec.json.encode(self._read()), content_type=JSON)

    async def _health(self, request: Request) -> Response:
        if dict(parse_qsl(request.query)).get("watch", "") in ("1", "true"):
            return Response(content_type=JSON_LINES, more=self._lines())
        return Response(body=msgspec.json.encode(self._view.document), content_type=JSON)

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._view.watch()) as documents:
            async for document in documents:
                yield msgspec.json.encode(document) + b"\n"


def _part_lines(found: Status) -> list[str]:
    """How each part stands, in the form of Kubernetes' own probes."""
    signs = {True: "[-]", False: "[+]"}
    return [f"{signs[part.state.blocks]}{part.name} {part.state}: {part.reason}" for part in found.parts]


class Clearing:
    """The route that closes causes of ``?gpu=NAME``: all, or those of ``&cause=REASON`` and of ``&xid=NUMBER``."""

    def __init__(self, view: HealthView, clear: Clear) -> None:
        self._view = view
        self._clear = clear

    async def __call__(self, request: Request) -> Response:
        asked, document = dict(parse_qsl(request.query, keep_blank_values=True)), self._view.document
        # What is not understood must not widen what is closed.
        if wrong := next((f"{key}: {_wanted(key)}" for key, text in asked.items() if not _is_sound(key, text)), None):
            return Response(status=400, body=f"{wrong}\n".encode())
        word, reason, code = asked.get("gpu", ""), asked.get("cause"), asked.get("xid")
        gpu = found(document, word)
        if gpu is None:
            return Response(status=404, body=f"{not_found(document, word)}\n".encode())
        cleared = self._clear(GpuUuid(gpu.uuid), Reason(reason) if reason else None, int(code) if code else None)
        return Response(body=msgspec.json.encode([cause_status(cause) for cause in cleared]), content_type=JSON)


# What may be asked: how to tell whether a text means something, and what does.
_ASKED: Mapping[str, tuple[Callable[[str], object], str]] = {
    "gpu": (lambda text: True, ""),
    "cause": (lambda text: text in set(Reason), f"expected {', '.join(Reason)}"),
    "xid": (re.compile("[0-9]{1,9}").fullmatch, "expected the number of an Xid"),
}


def _is_sound(key: str, text: str) -> bool:
    return key in _ASKED and bool(_ASKED[key][0](text))


def _wanted(key: str) -> str:
    return _ASKED[key][1] if key in _ASKED else f"unknown; there is {', '.join(_ASKED)}"


def _setting(where: Path | tuple[str, int]) -> str:
    """Where a place is set, and what it is."""
    return f"agent.paths.runDir ({where})" if isinstance(where, Path) else f"agent.http.address ({where[0]}:{where[1]})"
