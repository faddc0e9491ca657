"""Serves the status document and the health endpoints over HTTP, on the agent's socket and on TCP where configured.

``/healthz`` answers as long as the event loop turns, and says what hangs; ``/readyz`` answers 503 with the reasons
while the agent cannot do its work; ``/status`` is the whole document.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from node_agent.kit.http import Request, Response, Routes, serving
from node_agent.reporting.status import Status

JSON = "application/json"


class StatusServer:
    """Serves what ``read`` answers, on a Unix socket and, where given, a TCP address."""

    def __init__(self, read: Callable[[], Status], socket: Path, address: tuple[str, int] | None = None) -> None:
        self._read = read
        self._socket = socket
        self._address = address
        self.routes: Routes = {"/healthz": self._healthz, "/readyz": self._readyz, "/status": self._status}

    async def run(self) -> None:
        """Serve until cancelled."""
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(serving(self.routes, self._socket))
            if self._address is not None:
                await opened.enter_async_context(serving(self.routes, self._address))
            await asyncio.Event().wait()

    async def _healthz(self, _: Request) -> Response:
        return Response(body="\n".join(["alive", *self._read().trouble, ""]).encode())

    async def _readyz(self, _: Request) -> Response:
        trouble = self._read().trouble
        if trouble:
            return Response(status=503, body="\n".join(["not ready", *trouble, ""]).encode())
        return Response(body=b"ready\n")

    async def _status(self, _: Request) -> Response:
        return Response(body=msgspec.json.encode(self._read()), content_type=JSON)
