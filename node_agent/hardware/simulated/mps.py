"""A stand-in for ``nvidia-cuda-mps-control`` and its servers, for machines without a GPU: a program of its own.

It needs nothing but the standard library, so that a script can start it by its path at once. ``-d`` leaves a daemon
behind and ``-f`` is one; without either it sends the commands on standard input, one a line, to the daemon of
CUDA_MPS_PIPE_DIRECTORY. Commands and answers are those that NVIDIA documents. No real daemon was at hand to compare
them with: how it words a refusal, what a ``set_…`` prints and how a program talks to it are made up.

A client says who it is by ``attach <uid> <pid> <its CUDA_MPS_… variables as JSON>`` on the same socket, is answered
with the limits that hold for it, and stays one until it hangs up. What goes wrong on request is in the JSON file
``run/simulated-mps.json`` below the driver's root, see ``Faults``.
"""

import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
FAULTS = "run/simulated-mps.json"
UNITS = {"G": 1 << 30, "M": 1 << 20}


@dataclass(kw_only=True)
class Faults:
    """``refuse``: a start fails with this text. ``ready_after``: seconds before the daemon listens; below zero it never
    does. ``silent``: it takes commands and answers none. ``stubborn``: it does not quit, nor end on SIGTERM."""

    refuse: str = ""
    ready_after: float = 0.0
    silent: bool = False
    stubborn: bool = False


@dataclass(kw_only=True)
class Server:
    """The server of one user, and the clients that it has by their pids."""

    pid: int
    threads: float
    memory: dict[str, str]
    clients: set[int] = field(default_factory=set)


class Daemon:
    """What a control daemon knows: its defaults, which only later servers take, and its servers by user id."""

    def __init__(self, multi_user: bool) -> None:
        self.multi_user = multi_user
        self.threads = float(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or 100)
        self.memory = limits(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""))
        self.servers: dict[int, Server] = {}
        self.ending = threading.Event()

    def start_server(self, uid: int) -> Server:
        if uid not in self.servers:
            pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", __file__, SERVER], os.environ)
            while not _is_server(pid):
                time.sleep(0.005)
            self.servers[uid] = Server(pid=pid, threads=self.threads, memory=dict(self.memory))
            log("control", f"Starting new server {pid} for user {uid}")
        return self.servers[uid]

    def server(self, pid: str) -> Server:
        return next(server for server in self.servers.values() if server.pid == int(pid))

    def answer(self, line: str) -> Iterable[object]:
        """The lines that a command prints."""
        name, *words = line.split()
        try:
            return COMMANDS[name](self, *words)
        except (LookupError, StopIteration, TypeError, ValueError):
            return [f"Unknown command or wrong arguments: {line.strip()}"]

    def attach(self, uid: int, pid: int, variables: dict[str, str]) -> tuple[Server, dict[str, object]]:
        """Let a client in; answers what it may have: its own variables can only lower what its server gives."""
        server = self.start_server(uid)
        server.clients.add(pid)
        threads = float(variables.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") or 100)
        wanted = limits(variables.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""))
        memory = {
            device: min(amount(each[device]) for each in (wanted, server.memory) if device in each)
            for device in wanted.keys() | server.memory.keys()
        }
        return server, {"threads": min(threads, server.threads), "memory": memory, "server": server.pid}


def _set_threads(of: "Daemon | Server", percentage: str) -> Iterable[object]:
    of.threads = float(percentage)
    return [of.threads]


def _set_memory(of: "Daemon | Server", device: str, value: str) -> Iterable[object]:
    amount(value)
    of.memory[device] = value
    return []


def _start_server(daemon: Daemon, option: str, uid: str) -> Iterable[object]:
    daemon.start_server({"-uid": int(uid)}[option])
    return []


def _quit(daemon: Daemon) -> Iterable[object]:
    daemon.ending.set()
    return []


COMMANDS: dict[str, Callable[..., Iterable[object]]] = {
    "get_server_list": lambda daemon: [server.pid for server in daemon.servers.values()],
    "get_server_status": lambda daemon, pid: ["ACTIVE"] if daemon.server(pid) else [],
    "start_server": _start_server,
    "get_client_list": lambda daemon, pid: sorted(daemon.server(pid).clients),
    "get_default_active_thread_percentage": lambda daemon: [daemon.threads],
    "set_default_active_thread_percentage": _set_threads,
    "get_active_thread_percentage": lambda daemon, pid: [daemon.server(pid).threads],
    "set_active_thread_percentage": lambda daemon, pid, value: _set_threads(daemon.server(pid), value),
    "get_default_device_pinned_mem_limit": lambda daemon, device: [daemon.memory[device]],
    "set_default_device_pinned_mem_limit": _set_memory,
    "get_device_pinned_mem_limit": lambda daemon, pid, device: [daemon.server(pid).memory[device]],
    "set_device_pinned_mem_limit": lambda daemon, pid, *limit: _set_memory(daemon.server(pid), *limit),
    "quit": _quit,
}


class _Conversation(socketserver.StreamRequestHandler):
    """One program that talks to the daemon: commands, or a client for as long as it stays."""

    def handle(self) -> None:
        daemon: Daemon = self.server.daemon  # type: ignore[attr-defined]
        for line in self.rfile:
            words = line.decode().split(maxsplit=3)
            if faults().silent:
                time.sleep(3600)
            if words[:1] == ["attach"]:
                self._serve_client(daemon, int(words[1]), int(words[2]), json.loads(words[3]))
                return
            for text in daemon.answer(line.decode()):
                self.wfile.write(f"{text}\n".encode())
            self.wfile.write(b"\0\n")

    def _serve_client(self, daemon: Daemon, uid: int, pid: int, variables: dict[str, str]) -> None:
        server, granted = daemon.attach(uid, pid, variables)
        self.wfile.write(json.dumps(granted).encode() + b"\n")
        with suppress(OSError):
            self.rfile.read()
        server.clients.discard(pid)


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    daemon: Daemon


def serve(pipe: Path, multi_user: bool) -> None:
    """Be the daemon of a pipe folder until it is told to quit and the last client is gone."""
    _name_process(CONTROL)
    (pipe / f"{CONTROL}.pid").write_text(str(os.getpid()))
    if faults().stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait = faults().ready_after
    time.sleep(wait if wait >= 0 else 1 << 20)
    with suppress(FileNotFoundError):
        (pipe / "control").unlink()
    daemon = Daemon(multi_user)
    with _Listener(str(pipe / "control"), _Conversation) as listener:
        listener.daemon = daemon
        (pipe / "control").chmod(0o777)
        log("control", f"Starting control daemon using socket {pipe / 'control'}")
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        daemon.ending.wait()
        while faults().stubborn or any(server.clients for server in daemon.servers.values()):
            time.sleep(0.02)
        for server in daemon.servers.values():
            os.kill(server.pid, signal.SIGTERM)
        log("control", "Quit")
    for name in ("control", f"{CONTROL}.pid"):
        (pipe / name).unlink(missing_ok=True)


def send(pipe: Path, lines: list[str]) -> int:
    """Send commands to the daemon and print what it answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(pipe / "control"))
        except OSError:
            print("Cannot find MPS control daemon process")
            return 1
        answers = connection.makefile("rb")
        for line in filter(None, map(str.strip, lines)):
            connection.sendall(line.encode() + b"\n")
            while (answer := answers.readline()) not in (b"\0\n", b""):
                sys.stdout.write(answer.decode())
    return 0


def limits(text: str) -> dict[str, str]:
    """``0=1G,1=512M`` by device."""
    return dict(part.strip().split("=", 1) for part in text.split(",") if "=" in part)


def amount(text: str) -> int:
    """Bytes. Raises ValueError or KeyError where it is no integer with one of the two units."""
    return int(text[:-1]) * UNITS[text[-1]]


def faults() -> Faults:
    """What shall go wrong, by now."""
    try:
        return Faults(**json.loads((Path(os.environ["SIMULATED_ROOT"]) / FAULTS).read_text()))
    except (OSError, KeyError):
        return Faults()


def log(name: str, text: str) -> None:
    """A line of control.log or server.log."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with suppress(OSError), (Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]) / f"{name}.log").open("a") as file:
        file.write(f"[{stamp} {name.capitalize()} {os.getpid()}] {text}\n")


def _be_server() -> None:
    """The process of a server: it only waits for its end, and has a file in the daemon's /dev/shm."""
    _name_process(SERVER)
    shared = Path(f"/dev/shm/cuda.shm.simulated.{os.getpid()}")
    with suppress(OSError):
        shared.write_bytes(b"")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    log("server", "Started")
    signal.sigwait([signal.SIGTERM])
    shared.unlink(missing_ok=True)


def _is_server(pid: int) -> bool:
    """Whether a process that was just started has become what it is to be: names are those of the parent at first."""
    kernel = Path(f"/proc/{pid}")
    started = SERVER.encode() in (kernel / "cmdline").read_bytes()
    return started and (kernel / "comm").read_text().strip() == SERVER[:15]


def _name_process(name: str) -> None:
    Path("/proc/self/comm").write_text(name[:15])


def _detach() -> bool:
    """Leave the terminal and the parent; False in the process that stays behind."""
    if os.fork():
        return False
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    return True


def main(arguments: list[str]) -> int:
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if arguments == [SERVER]:
        _be_server()
        return 0
    if "-v" in arguments:
        print("simulated MPS control daemon")
        return 0
    if not {"-d", "-f"} & set(arguments):
        return send(pipe, sys.stdin.readlines())
    if text := faults().refuse:
        print(text, file=sys.stderr)
        return 1
    with socket.socket(socket.AF_UNIX) as probe:
        if probe.connect_ex(str(pipe / "control")) == 0:
            print("An instance of this daemon is already running")
            return 1
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended servers are nobody's children
    if "-f" in arguments or _detach():
        serve(pipe, "-M" in arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
