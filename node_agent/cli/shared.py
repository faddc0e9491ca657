"""What several commands share: options, the console, and a look at the node."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from node_agent.config.settings import Settings
    from node_agent.model.inventory import Inventory

RUN_FOLDER = Path("/run/gpu-node-agent")

Command = TypeVar("Command", bound=Callable[..., Any])


def _socket_option(name: str, variable: str, text: str) -> Callable[[Command], Command]:
    return click.option(
        "--socket",
        type=click.Path(path_type=Path),
        default=RUN_FOLDER / name,
        envvar=variable,
        show_default=True,
        help=text,
    )


agent_socket = _socket_option("agent.sock", "NODE_AGENT_SOCKET", "The agent's socket.")
simulation_socket = _socket_option(
    "simulate.sock", "NODE_AGENT_SIMULATE_SOCKET", "The control socket of the simulated node."
)


def node_options(command: Command) -> Command:
    """The options that say which node to look at, and with which settings."""
    file = click.option(
        "--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The configuration file."
    )
    profile = click.option(
        "--simulate", metavar="PROFILE", envvar="NODE_AGENT_SIMULATE", help="A simulated node: a name or a YAML file."
    )
    return file(profile(command))


@contextmanager
def chosen_node(
    config: Path | None, simulate: str | None, flags: Mapping[str, object], *, serves: bool = False
) -> "Iterator[tuple[Settings, Callable[[Path], Any]]]":
    """The settings for the chosen node and how to look at its device nodes; a simulated one lives with the block.

    Where the command ``serves``, faults for a simulated node are taken from a socket in the run folder.
    """
    import os

    from node_agent.config.resolve import resolve

    with ExitStack() as opened:
        if simulate is None:
            yield resolve(config, os.environ, flags).settings, os.stat
            return
        from node_agent.cli.simulated import simulation

        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="node-agent-", dir="/tmp")))
        node = opened.enter_context(simulation(simulate, folder))
        settings = resolve(config, os.environ, {**node.flags, **flags}).settings
        if serves:
            opened.enter_context(node.controlled(settings.paths.run_dir / "simulate.sock"))
        yield settings, node.stat


def look(settings: "Settings") -> "Inventory":
    """One look at the node's GPUs, without an agent."""
    from node_agent.agent.build import inventory_once
    from node_agent.kit import logs

    logs.configure("error")
    return asyncio.run(inventory_once(settings))


def console() -> "Console":
    """Where commands print: as wide as the terminal, at least wide enough for a table where there is none."""
    from rich.console import Console

    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=140)
