"""Sets how long turns on a GPU are, by the driver's ``nvidia-smi compute-policy``: NVML has no call for it."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from node_agent.errors import CallTimedOut, HardwareError, NotSupported
from node_agent.kit.programs import put_away
from node_agent.model.gpu import GpuUuid
from node_agent.sharing.shares import Interval

CALL = "nvidia-smi compute-policy --set-timeslice"

# What its manual says of its return codes.
_NOT_AVAILABLE, _NO_PERMISSION = 3, 4


class Program(Struct, frozen=True, kw_only=True):
    """A program of the driver as the agent sees it, and a folder with the NVML that belongs to it, if not the system's.

    The folder has nothing else: the driver's root has a C library of its own, which does not go with this loader.
    """

    path: Path
    library_folder: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        if self.library_folder is None:
            return dict(os.environ)
        folders = [str(self.library_folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(folders)}


class Smi:
    """The driver's ``nvidia-smi``; ``find`` looks for it each time, since it comes and goes with the driver."""

    def __init__(self, find: Callable[[], Program | None], *, seconds: float = 30.0) -> None:
        self._find = find
        self._seconds = seconds

    async def set_interval(self, gpu: GpuUuid, interval: Interval) -> None:
        """Have turns on a GPU last that long, until the driver is loaded anew.

        Raises:
            NotSupported: the GPU has no such setting.
            CallTimedOut: the program did not end in time.
            HardwareError: there is no program, or it failed.
        """
        try:
            program = self._find()
        except OSError as error:
            raise HardwareError(f"{gpu}: time slices cannot be set to {interval}: {error}", call=CALL) from error
        if program is None:
            raise HardwareError(
                f"{gpu}: time slices cannot be set to {interval}: the driver's nvidia-smi is not found under its root"
            )
        code, said = await self._run(program, "compute-policy", "-i", gpu, "--set-timeslice", str(interval.number))
        if code == _NOT_AVAILABLE:
            raise NotSupported(f"{gpu} has no time slices to set to {interval}: {said}", call=CALL, code=code)
        if code:
            advice = "; run the agent as root" if code == _NO_PERMISSION else ""
            raise HardwareError(
                f"{gpu}: time slices cannot be set to {interval}: nvidia-smi ended with {code}: {said}{advice}",
                call=CALL,
                code=code,
            )

    async def _run(self, program: Program, *arguments: str) -> tuple[int, str]:
        try:
            process = await asyncio.create_subprocess_exec(
                program.path, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=program.environment
            )
        except OSError as error:
            raise HardwareError(f"cannot run {program.path}: {error.strerror}", call=CALL) from error
        try:
            async with asyncio.timeout(self._seconds):
                said, _ = await process.communicate()
        except TimeoutError as error:
            raise CallTimedOut(f"{program.path} did not end within {self._seconds:g} s", call=CALL) from error
        finally:
            await put_away(process)
        return process.returncode or 0, " ".join(said.decode(errors="replace").split()) or "it says nothing"
