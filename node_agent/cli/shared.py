"""What several commands share: options and the console."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

RUN_FOLDER = Path("/run/gpu-node-agent")

agent_socket: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default=RUN_FOLDER / "agent.sock",
    envvar="NODE_AGENT_SOCKET",
    show_default=True,
    help="The agent's socket.",
)

simulation_socket: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default=RUN_FOLDER / "simulate.sock",
    envvar="NODE_AGENT_SIMULATE_SOCKET",
    show_default=True,
    help="The control socket of the simulated node.",
)


def console() -> "Console":
    """Where commands print: as wide as the terminal, at least wide enough for a table where there is none."""
    from rich.console import Console

    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=140)
