"""Serves the status document and the health endpoints over HTTP: one server on the agent's socket, one on TCP if asked.

``/healthz`` answers as long as the event loop turns, and says what hangs; ``/readyz`` answers 503 with the reasons
while the agent cannot do its work; ``/status`` is the whole document.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from node_agent.errors import ConfigError
from node_agent.kit.http import Request, Response, Routes, serving
from node_agent.reporting.status import Status

JSON = "application/json"


class StatusServer:
    """Serves what ``read`` answers in one place, a Unix socket or a TCP address."""

    def __init__(self, read: Callable[[], Status], where: Path | tuple[str, int]) -> None:
        self._read = read
        self._where = where
        self.routes: Routes = {"/healthz": self._healthz, "/readyz": self._readyz, "/status": self._status}

    async def run(self) -> None:
        """Serve until cancelled. Raises ConfigError where nobody can listen there."""
        try:
            async with serving(self.routes, self._where):
                await asyncio.Event().wait()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{_setting(self._where)}: cannot listen there: {error}") from error

    async def _healthz(self, _: Request) -> Response:
        return Response(body="\n".join(["alive", *self._read().trouble, ""]).encode())

    async def _readyz(self, _: Request) -> Response:
        trouble = self._read().trouble
        if trouble:
            return Response(status=503, body="\n".join(["not ready", *trouble, ""]).encode())
        return Response(body=b"ready\n")

    async def _status(self, _: Request) -> Response:
        return Response(body=msgspec.json.encode(self._read()), content_type=JSON)


def _setting(where: Path | tuple[str, int]) -> str:
    """Where a place is set, and what it is."""
    return f"agent.paths.runDir ({where})" if isinstance(where, Path) else f"agent.http.address ({where[0]}:{where[1]})"
