"""A machine to run a node on: namespaces, a folder, and the programs in them, gone without trace when it is closed.

The kubelet and containerd insist on fixed places (``/var/lib/kubelet/device-plugins``, ``/run/containerd``,
``/var/log/pods``), mount below them, start daemons that outlive them and take well-known ports. So a machine has mount,
process, network and host name namespaces of its own:

- ``/run``, ``/var/lib``, ``/var/log`` and ``/dev`` are folders below the machine's folder. Programs on it use all
  default paths, and a test reaches the same files from outside with ``Machine.path``. No GPU is in ``/dev``, whatever
  the host has, unless a test makes one.
- It shares the rest of the file system with the host, so the project's code and its interpreter are at the same place.
  So is ``/tmp``, which several machines may have in use at once.
- It has one network address, which the test's process reaches, every port free, and no way to anywhere else.
- Its first process (``machine.sh``) ends when the pipe to it closes, be it that the test's process was killed. Then the
  kernel kills all other processes of the machine and drops its mounts and network: there is no tear-down to get wrong.

What survives a killed test's process is its folder and its cgroups; the next machine sweeps them. ``program.py`` has
the programs, ``traces.py`` what is left of a machine, ``node.py`` the node that runs on one.
"""

import contextlib
import ipaddress
import os
import random
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.node.rig import traces
from tests.node.rig.command import run
from tests.node.rig.program import Program
from tests.node.rig.waiting import RigError

# Reserved for tests of network gear (RFC 2544): no real network uses it.
ADDRESSES = ipaddress.IPv4Network("198.18.0.0/15")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRIPT = Path(__file__).with_name("machine.sh")
OWN_FOLDERS = ("/dev", "/run", "/var/run", "/var/lib", "/var/log")


class Machine:
    """See the module. A context manager: entering makes the machine, leaving ends all that runs on it.

    ``search_path`` is the PATH of its programs, which inherit nothing else of the test's environment.
    """

    def __init__(self, hostname: str, *, search_path: str = SEARCH_PATH) -> None:
        self.hostname = hostname
        self.name = f"{traces.PREFIX}{secrets.token_hex(4)}"
        self.folder = traces.PARENT / self.name
        self.logs = self.folder / "logs"
        self.address = ""
        self.programs: dict[str, Program] = {}
        self.devices: list[Path] = []
        self._environment = {"PATH": search_path, "HOME": "/root"}
        self._first_pid = 0
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        traces.sweep()
        with contextlib.ExitStack() as opened:
            opened.callback(os.close, traces.claim(self.folder))
            opened.callback(traces.remove, self.name)
            self.logs.mkdir()
            traces.make_cgroups(self.name)
            self._first_pid = self._boot(opened)
            self._connect()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    @property
    def entry(self) -> list[str]:
        """What comes before a command that shall run on the machine."""
        return ["nsenter", f"--target={self._first_pid}", "--mount", "--pid", "--net", "--uts"]

    def path(self, inside: str | Path) -> Path:
        """Where a path of the machine is for those outside: ``/var/lib/kubelet`` is below the machine's folder."""
        own = any(Path(inside).is_relative_to(folder) for folder in OWN_FOLDERS)
        return self.folder / Path(inside).relative_to("/") if own else Path(inside)

    def start(
        self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None, folder: str = "/"
    ) -> Program:
        """Start a program under a name of the caller's choice, by which its log is named and appended to."""
        if name in self.programs and self.programs[name].running:
            raise RigError(f"a program named {name} runs already: stop it, or choose another name")
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            begin = output.tell()
            entry = subprocess.Popen(
                self._entering(command, environment or {}, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.programs[name] = Program(name, entry, log, begin)
        return self.programs[name]

    def run(self, command: Sequence[str], *, timeout: float = 30) -> str:
        """Run a command to its end and return its output; a RigError has what it said when it fails."""
        return run(self._entering(command, {}, "/"), timeout=timeout)

    def make_device(self, path: str, major: int, minor: int) -> None:
        """Make a character device such as ``/dev/nvidia0`` (195, 0); it needs no driver to be passed to a container."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.run(["mknod", "--mode=0666", path, "c", str(major), str(minor)])
        self.devices.append(self.path(path))

    def tails(self, lines: int = 30) -> dict[str, str]:
        """The last lines of every program's log, by the program's name."""
        return {name: program.tail(lines) for name, program in self.programs.items()}

    def _entering(self, command: Sequence[str], environment: Mapping[str, str], folder: str) -> list[str]:
        variables = [f"{key}={value}" for key, value in (self._environment | dict(environment)).items()]
        return [*self.entry, "env", "--ignore-environment", f"--chdir={folder}", *variables, *command]

    def _boot(self, opened: contextlib.ExitStack) -> int:
        """Make the namespaces; returns the process id of the first process in them."""
        entry = ["unshare", "--mount", "--pid", "--net", "--uts", "--propagation=slave", "--fork", "--kill-child"]
        log = self.logs / "machine.log"
        with log.open("ab") as output:
            first = subprocess.Popen(
                [*entry, str(SCRIPT), str(self.folder), self.hostname],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        # Last in, first out: the pipe closes, the kernel kills everything, then what it has killed is reaped.
        opened.callback(lambda: [program.wait() for program in self.programs.values()])
        opened.enter_context(first)
        said = first.stdout.readline() if first.stdout else ""
        if not said:
            raise RigError(f"the machine did not come up:\n{log.read_text()}")
        return int(said)

    def _connect(self) -> None:
        """Join the machine to the host by a pair of interfaces, which go away with its network namespace."""
        subnet = _free_subnet()
        host, self.address = (str(address) for address in subnet.hosts())
        link = traces.link(self.name)
        peer = ["peer", "name", "eth0", "netns", str(self._first_pid)]
        run(["ip", "link", "add", "name", link, "type", "veth", *peer])
        run(["ip", "address", "add", f"{host}/{subnet.prefixlen}", "dev", link])
        run(["ip", "link", "set", link, "up"])
        self.run(["ip", "address", "add", f"{self.address}/{subnet.prefixlen}", "dev", "eth0"])
        self.run(["ip", "link", "set", "eth0", "up"])


def _free_subnet() -> ipaddress.IPv4Network:
    """Two addresses of which no other machine of the rig has one."""
    listed = run(["ip", "-4", "-oneline", "address"]).splitlines()
    used = [ipaddress.IPv4Interface(line.split()[3]).network for line in listed]
    free = [subnet for subnet in ADDRESSES.subnets(new_prefix=30) if not any(map(subnet.overlaps, used))]
    return random.choice(free)
