"""Faults from outside the process: a small server on a Unix socket, and its client.

One line of JSON in, one line of JSON out: ``{"ok": true}``, or ``{"error": "…"}`` and nothing has changed. The server
runs in threads of its own, since it must answer while the process is busy, or hangs as told. The socket can be used by
its owner only. ``commands`` says what can be asked.
"""

import os
import socket
import socketserver
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from node_agent.errors import SimulationError
from node_agent.hardware.simulated.commands import carry_out
from node_agent.hardware.simulated.faults import Faults
from node_agent.hardware.simulated.node import SimulatedNode
from node_agent.kit import unix

LONGEST_LINE = 64 * 1024
# Long enough for a busy machine, short enough for a test that waits for nobody.
TIMEOUT_SECONDS = 5.0
# Between looks at whether to stop, of which none is needed: whoever stops the server wakes it.
NEVER = 86400.0


class ControlServer:
    """Listens between ``start`` and ``stop``, or for the length of a ``with`` block."""

    def __init__(self, node: SimulatedNode, path: Path) -> None:
        self._node = node
        self._path = path
        self._server: _Server | None = None
        self._own: unix.FileIdentity | None = None

    def start(self) -> None:
        """Bind and serve; a socket that a dead server left behind is replaced.

        Raises:
            SimulationError: the socket cannot be made there, or another server answers on it.
        """
        try:
            _remove_abandoned(unix.checked(self._path))
            self._server = _Server(self._path, self._node.faults)
        except (OSError, ValueError) as error:
            raise SimulationError(f"cannot listen on {self._path}: {error}") from error
        # Another server may take over the path later; only the own socket is removed at the end.
        self._own = unix.identity(self._path)
        threading.Thread(target=self._server.serve_forever, args=(NEVER,), name="simulated-node", daemon=True).start()

    def stop(self) -> None:
        """Answer what was asked, then remove the socket."""
        if self._server:
            self._server.wake()
            self._server.shutdown()
            self._server.server_close()
            unix.remove_own(self._path, self._own)
            self._server = None

    def __enter__(self) -> "ControlServer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def send(path: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the node behind a socket to carry out one command.

    Raises:
        SimulationError: nobody answers there, or the command was refused.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.connect(os.fspath(path))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            line = connection.makefile("rb").readline(LONGEST_LINE)
        answer = msgspec.json.decode(line, type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise SimulationError(f"no simulated node answers on {path}: {error}") from error
    if "error" in answer:
        raise SimulationError(answer["error"])
    return answer


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    # A Unix socket whose queue is full refuses at once, however patient the client is.
    request_queue_size = 128

    def __init__(self, path: Path, faults: Faults) -> None:
        self.faults = faults
        super().__init__(os.fspath(path), _Conversation)

    def wake(self) -> None:
        """Let the wait for connections end; there will be no more."""
        self.socket.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        # A socket's own mode becomes that of its file: there is no moment at which others could connect.
        os.fchmod(self.fileno(), 0o600)
        super().server_bind()


class _Conversation(socketserver.StreamRequestHandler):
    server: _Server
    timeout = TIMEOUT_SECONDS

    def handle(self) -> None:
        # A client that hangs up or falls silent has nobody left to be told of it.
        with suppress(TimeoutError, ConnectionError):
            if line := self.rfile.readline(LONGEST_LINE):
                self.wfile.write(msgspec.json.encode(self._answer(line)) + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            carry_out(self.server.faults, msgspec.json.decode(line))
        except msgspec.DecodeError as error:
            return {"error": f"a request is one line of JSON: {error}"}
        except SimulationError as error:
            return {"error": str(error)}
        return {"ok": True}


def _remove_abandoned(path: Path) -> None:
    """Remove a socket that nobody listens on; OSError where somebody does, or where the path is no socket."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError("another server answers there")
