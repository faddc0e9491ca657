"""Asks an ``http`` server on the same machine, without an event loop: for a command that wants an answer."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path


def get(socket_path: Path, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """The status and the body of ``path`` from the server on ``socket_path``; ``timeout`` seconds for each wait.

    Raises:
        OSError: nobody listens there, it may not be used, or what listens does not speak HTTP or not in time.
    """
    with _asked(socket_path, "GET", path, timeout) as response:
        return response.status, response.read()


def post(socket_path: Path, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """As ``get``, of a path that changes something."""
    with _asked(socket_path, "POST", path, timeout) as response:
        return response.status, response.read()


@contextmanager
def lines(socket_path: Path, path: str, timeout: float = 60.0) -> Iterator[tuple[int, Iterator[bytes]]]:
    """As ``get``, of an answer that goes on: its lines as they come, each within ``timeout`` seconds.

    Raises:
        As ``get``; the lines too.
    """
    with _asked(socket_path, "GET", path, timeout) as response:
        yield response.status, iter(response.readline, b"")


@contextmanager
def _asked(socket_path: Path, method: str, path: str, timeout: float) -> Iterator[HTTPResponse]:
    with socket.socket(socket.AF_UNIX) as connected, closing(HTTPConnection("localhost")) as connection:
        connected.settimeout(timeout)
        connected.connect(str(socket_path))
        connection.sock = connected
        try:
            connection.request(method, path)
            with connection.getresponse() as response:
                yield response
        except HTTPException as error:
            raise ConnectionError(f"what listens on {socket_path} does not speak HTTP: {error!r}") from error
