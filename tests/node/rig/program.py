"""One program that runs on a machine: its log, its process, its end. ``Machine.start`` makes them."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.node.rig.waiting import PATIENCE, NotYet, RigError, TimedOut, wait_until


class Ended(RigError):
    """A program that was to run has ended."""


class Program:
    """A program in a session of its own, with both of its outputs in ``log``, from the byte ``begin`` on.

    ``entry`` is the nsenter process that entered the machine for it: it stays outside with the program as its only
    child, passes the program's exit status on, and ends as the program ends.
    """

    def __init__(self, name: str, entry: "subprocess.Popen[bytes]", log: Path, begin: int = 0) -> None:
        self.name = name
        self.log = log
        self._begin = begin
        self._entry = entry

    @property
    def running(self) -> bool:
        return self._entry.poll() is None

    @property
    def pid(self) -> int:
        """The process id as seen from outside the machine; Ended when there is none."""
        return wait_until(f"{self.name} has started", self._child, every=0.01)

    def brings_about(self, what: str, condition: Callable[[], object], timeout: float = PATIENCE) -> None:
        """Await what it is to bring about; an error, also of its having ended, has the end of its log."""

        def met() -> object:
            self.require_running()
            try:
                return condition()
            except (RigError, OSError) as error:
                raise NotYet(str(error)) from error

        try:
            wait_until(what, met, timeout=timeout)
        except TimedOut as error:
            raise RigError(f"{error}\n{self.tail()}") from error

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM, *, within: float = 15) -> int:
        """Send a signal and await the end; returns the exit status, negative for a signal.

        A program that has not ended ``within`` seconds is killed, and that is a RigError.
        """
        # It may end by itself at any moment up to the signal.
        with contextlib.suppress(Ended, ProcessLookupError):
            self.send(number)
        try:
            return self.wait(within)
        except RigError:
            with contextlib.suppress(Ended, ProcessLookupError):
                self.send(signal.SIGKILL)
            self._entry.wait()
            raise

    def wait(self, timeout: float = 30) -> int:
        """Await the end of the program and return its exit status, negative for a signal."""
        try:
            return self._entry.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise RigError(f"{self.name} has not ended within {timeout:g} s:\n{self.tail()}") from error

    def require_running(self) -> None:
        """Ended, with the end of the log, when the program does not run any more."""
        if not self.running:
            raise Ended(f"{self.name} has ended with status {self._entry.returncode}:\n{self.tail()}")

    def text(self) -> str:
        """Everything that this program has written to the log so far."""
        return self.log.read_bytes()[self._begin :].decode(errors="replace")

    def tail(self, lines: int = 30) -> str:
        """The last lines of the log, under a heading."""
        return "\n".join([f"--- {self.log}", *self.text().splitlines()[-lines:]])

    def _child(self) -> int:
        self.require_running()
        children = Path(f"/proc/{self._entry.pid}/task/{self._entry.pid}/children").read_text().split()
        if not children:
            raise NotYet("nsenter has no child")
        return int(children[0])
