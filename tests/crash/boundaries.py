"""The boundaries that a process crosses to the world around it, counted; and its death at one of them.

What a killed agent leaves behind changes only where it acts on something that outlives it: files, hardware, processes,
what it answers and what it asks. All of that goes through few doors of the interpreter and of two libraries, so the
doors are watched, and no line of the agent is. Two processes share a ``Fuse``: the one that dies and the one that says
where.
"""

import asyncio
import mmap
import os
import re
import signal
import struct
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import pynvml
from grpc import aio

# Of what the interpreter tells its audit hooks that which changes something outside; ``open`` counts where it writes.
CHANGES = frozenset(
    {
        "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate",
        "subprocess.Popen", "os.posix_spawn", "os.kill", "signal.pthread_kill", "socket.bind",
    }
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NVML_CHANGES = re.compile(r"nvml(Device|GpuInstance|ComputeInstance)(Set|Create|Destroy|Reset)")

# What is chosen anew for each temporary file and each socket.
_ANY_NAME = re.compile(r"(?<=\.)[a-z0-9_]{8}$|(?<=-)[0-9a-f]{8}(?=[.-])")

_NUMBER = struct.Struct("q")


class Fuse:
    """How many boundaries are left until death (0: it lives, -1: it has died of it), in a file that both sides map."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_NUMBER.size))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _NUMBER.size)
        self.trace = path.with_suffix(".trace")

    def light(self, boundaries: int) -> None:
        """Let the process die at this boundary from now on, the first being 1; 0 only counts from now on."""
        self.trace.write_text("")
        _NUMBER.pack_into(self._shared, 0, boundaries)

    @property
    def burnt(self) -> bool:
        """Whether the process has died of it, or is just dying."""
        return bool(_NUMBER.unpack_from(self._shared)[0] < 0)

    @property
    def crossed(self) -> list[str]:
        """What was crossed since it was lit, by name; the last one is where the process died, if it did."""
        return self.trace.read_text().splitlines()

    def step(self) -> bool:
        """Count one more boundary; True where it is the last."""
        (left,) = _NUMBER.unpack_from(self._shared)
        if left > 0:
            _NUMBER.pack_into(self._shared, 0, left - 1 or -1)
        return bool(left == 1)


class Boundaries:
    """Watches this process from ``watch`` on, for ever. What it does below the folders ``apart`` is not its own doing:
    the simulated hardware lives in the same process."""

    def __init__(self, fuse: Fuse, apart: Iterable[Path] = ()) -> None:
        self._fuse = fuse
        self._apart = ("/dev/null", *map(str, apart))
        self._trace = os.open(fuse.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._lock = threading.RLock()

    def cross(self, name: str) -> None:
        """Count this one, and die here if it is the one."""
        with self._lock:
            os.write(self._trace, f"{name}\n".encode())
            if self._fuse.step():
                signal.raise_signal(signal.SIGKILL)

    def watch(self) -> None:
        sys.addaudithook(self._audit)
        _around(asyncio.StreamWriter, "write", self._asking)
        _around(aio, "server", lambda server: lambda: server(interceptors=[_Calls(self.cross)]))

    def watch_hardware(self) -> None:
        """Count the changes of the hardware that is behind the binding by now."""
        pynvml.nvmlLib = Library(
            pynvml.nvmlLib, lambda name: self.cross(f"before {name}"), lambda name: self.cross(f"after {name}")
        )
        pynvml._nvmlGetFunctionPointer_cache.clear()

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and _writes(arguments[2])):
            subject = str(arguments[0])
            # A descriptor was opened before, and what is done to it shows only once it is done.
            if not subject.isdigit() and not subject.startswith(self._apart):
                self.cross(f"{event} {_ANY_NAME.sub('*', Path(subject).name)}")

    def _asking(self, write: Callable[..., None]) -> Callable[..., None]:
        def call(writer: asyncio.StreamWriter, data: bytes) -> None:
            # Over a Unix socket it answers questions about its state, which change none.
            if isinstance(writer.get_extra_info("peername"), tuple):
                self.cross(f"asks {data[:100].split(b' HTTP')[0].decode(errors='replace')}")
            write(writer, data)

        return call


class Library:
    """An NVML library, with something done before and after each call that changes the hardware."""

    def __init__(self, library: object, before: Callable[[str], None], after: Callable[[str], None]) -> None:
        self._library, self._before, self._after = library, before, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._library, name)
        return self._watched(name, function) if NVML_CHANGES.match(name) else function

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._before(name)
            answer = function(*arguments)
            self._after(name)
            return answer

        return call


class _Calls(aio.ServerInterceptor):
    """Counts when a call has come and when its answer is about to go, for each message of a stream."""

    def __init__(self, cross: Callable[[str], None]) -> None:
        self._cross = cross

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler, name = await continuation(details), details.method.rpartition("/")[2]
        if handler is None:
            return None
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._once(name, handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_stream_rpc_method_handler(
            self._often(name, handler.unary_stream), handler.request_deserializer, handler.response_serializer
        )

    def _once(self, name: str, serve: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(request: Any, context: Any) -> Any:
            self._cross(f"asked {name}")
            answer = await serve(request, context)
            self._cross(f"answers {name}")
            return answer

        return call

    def _often(self, name: str, serve: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            async for message in serve(request, context):
                self._cross(f"sends {name}")
                yield message

        return call


def _writes(flags: object) -> bool:
    """Whether a file is opened to be changed; one without a name goes with its process."""
    return isinstance(flags, int) and bool(flags & WRITING) and flags & os.O_TMPFILE != os.O_TMPFILE


def _around(owner: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    setattr(owner, name, change(getattr(owner, name)))
