"""Talks to an MPS daemon by ``nvidia-cuda-mps-control``: starts one, asks it, tells it."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from node_agent.errors import MpsError
from node_agent.kit.programs import put_away

START_SECONDS = 20.0

PID_FILE = "nvidia-cuda-mps-control.pid"

_PERCENTAGE = re.compile(r"\d+(\.\d+)?")

# Gives the daemon and its servers a /dev/shm of their own, in a mount namespace that nobody else sees.
_WITH_OWN_SHM = 'mount --bind "$0" /dev/shm && exec "$@"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """The control ``program`` for the daemon whose folders ``environment`` names; it answers at once, or not at all."""

    program: Path
    environment: Mapping[str, str] = field(repr=False)
    answer_seconds: float = 5.0

    async def start(self, *, multi_user: bool, shm: Path | None) -> None:
        """Leave a daemon behind that outlives this process. Raises MpsError with what the program says."""
        command = [str(self.program), "-d", *(["-M"] if multi_user else [])]
        if shm is not None:
            command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", _WITH_OWN_SHM, str(shm), *command]
        code, text = await self._run(command, "", START_SECONDS)
        if code:
            raise MpsError(f"{self.program} -d failed with status {code}: {text or 'it says nothing'}")

    async def ask(self, *commands: str) -> str:
        """What the daemon answers. Raises MpsError where it does not, or not in time."""
        code, text = await self._run([str(self.program)], "\n".join(commands) + "\n", self.answer_seconds)
        if code:
            raise MpsError(f"the MPS daemon does not answer {commands[0]}: {text or f'status {code}'}")
        return text

    async def check(self) -> None:
        """Raise MpsError unless the daemon answers as one does that works."""
        text = await self.ask("get_default_active_thread_percentage")
        if not _PERCENTAGE.fullmatch(text):
            raise MpsError(f"the MPS daemon should tell a percentage and says {text!r}")

    async def servers(self) -> list[int]:
        """The pids of the servers that run."""
        return [int(word) for word in (await self.ask("get_server_list")).split() if word.isdigit()]

    @property
    def _full_environment(self) -> dict[str, str]:
        """The agent's own, with the program's folder first, where its server is as well; but no setting of CUDA's."""
        given = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
        return {**given, "PATH": f"{self.program.parent}:{given.get('PATH', os.defpath)}", **self.environment}

    async def _run(self, command: Sequence[str], given: str, seconds: float) -> tuple[int, str]:
        # Files and no pipes: a daemon keeps what it inherits, and a pipe would not end before it does.
        with TemporaryFile() as text, TemporaryFile() as said:
            text.write(given.encode())
            text.seek(0)
            code = await self._ended(command, text, said, seconds)
            said.seek(0)
            return code, said.read().decode(errors="replace").strip()

    async def _ended(self, command: Sequence[str], text: IO[bytes], said: IO[bytes], seconds: float) -> int:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=text, stdout=said, stderr=said, env=self._full_environment, start_new_session=True
            )
        except OSError as error:
            raise MpsError(f"cannot run {command[0]}: {error.strerror}") from error
        try:
            async with asyncio.timeout(seconds):
                return await process.wait()
        except TimeoutError as error:
            raise MpsError(f"{' '.join(command)} was not done within {seconds:g} s") from error
        finally:
            await put_away(process)
