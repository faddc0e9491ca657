"""A CUDA program as the simulated MPS daemon knows one: it connects by what its container was given, and stays."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class MpsClient:
    """Connected while the block runs. ``granted`` are the limits that hold for it: ``threads`` and ``memory``."""

    def __init__(self, pipe: Path, environment: Mapping[str, str], uid: int = 0) -> None:
        self._pipe = pipe
        self._environment = dict(environment)
        self._uid = uid
        self._connection = socket.socket(socket.AF_UNIX)
        self.granted: dict[str, Any] = {}

    def __enter__(self) -> "MpsClient":
        self._connection.connect(str(self._pipe / "control"))
        request = f"attach {self._uid} {os.getpid()} {json.dumps(self._environment)}\n"
        self._connection.sendall(request.encode())
        with self._connection.makefile("rb") as answers:
            self.granted = json.loads(answers.readline())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    @property
    def connected(self) -> bool:
        """Whether the daemon still holds the other end: it says nothing, and a dead one hangs up."""
        self._connection.setblocking(False)
        try:
            return self._connection.recv(1) != b""
        except BlockingIOError:
            return True
