"""Asks an ``http`` server on the same machine, without an event loop: for a command that wants one answer."""

import socket
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path


def get(socket_path: Path, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """The status and the body of ``path`` from the server on ``socket_path``; ``timeout`` seconds for each wait.

    Raises:
        OSError: nobody listens there, it may not be used, or what listens does not speak HTTP or not in time.
    """
    with socket.socket(socket.AF_UNIX) as connected, closing(HTTPConnection("localhost")) as connection:
        connected.settimeout(timeout)
        connected.connect(str(socket_path))
        connection.sock = connected
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except HTTPException as error:
            raise ConnectionError(f"what listens on {socket_path} does not speak HTTP: {error!r}") from error
