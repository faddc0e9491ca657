"""Commands of the host that run to their end: one way to start them, one error when they fail."""

import os
import subprocess
from collections.abc import Mapping, Sequence

from tests.node.rig.waiting import RigError


def run(command: Sequence[str], *, timeout: float = 30, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output; a RigError has what it said when it fails. ``environment`` adds to ours."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=os.environ | dict(environment or {}),
        )
    except subprocess.TimeoutExpired as error:
        raise RigError(f"`{' '.join(command)}` did not end within {timeout:g} s") from error
    if done.returncode:
        raise RigError(f"`{' '.join(command)}` failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
