"""What several commands share: options, the console, and a look at the node."""

import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec.structs import replace

from node_agent.errors import DriverUnavailable

if TYPE_CHECKING:
    from rich.console import Console

    from node_agent.config.resolve import Sources
    from node_agent.config.settings import Settings
    from node_agent.model.inventory import Inventory

RUN_FOLDER = Path("/run/gpu-node-agent")
LEAST_WIDTH = 140

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


config_file = click.option(
    "--config", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The configuration file."
)


def node_options(command: Command) -> Command:
    """The options that say which node to look at, and with which settings."""
    profile = click.option(
        "--simulate", metavar="PROFILE", envvar="NODE_AGENT_SIMULATE", help="A simulated node: a name or a YAML file."
    )
    return config_file(profile(command))


config_dir = click.option(
    "--config-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Named configurations, such as a mounted ConfigMap; the label of the node chooses one.",
)


@contextmanager
def chosen_node(
    config: Path | None, simulate: str | None, flags: Mapping[str, object]
) -> "Iterator[tuple[Settings, Callable[[Path], Any]]]":
    """The settings for the chosen node and how to look at its device nodes; a simulated one lives with the block."""
    with chosen_sources(config, simulate, flags) as (sources, stat):
        yield sources.resolve(asked_label(sources)).settings, stat


def asked_label(sources: "Sources") -> str | None:
    """The node's label that chooses among named configurations; None where there is none, or nobody to ask."""
    import asyncio

    from node_agent.agent.label import node_label
    from node_agent.kit import logs

    async def ask() -> str | None:
        async with node_label(sources) as labelled:
            return labelled.config.value

    if sources.named is None:
        return None
    logs.configure("critical")
    return asyncio.run(ask())


@contextmanager
def chosen_sources(
    config: Path | None,
    simulate: str | None,
    flags: Mapping[str, object],
    *,
    folder: Path | None = None,
    serves: bool = False,
) -> "Iterator[tuple[Sources, Callable[[Path], Any]]]":
    """Where the settings of the chosen node come from, and how to look at its device nodes.

    Where the command ``serves``, faults for a simulated node are taken from a socket in the run folder.
    """
    import os

    from node_agent.config.resolve import sources as sources_of
    from node_agent.hardware.vendors import vendor_of

    with ExitStack() as opened:
        if simulate is None:
            yield sources_of(config, os.environ, flags, folder, vendor_of), os.stat
            return
        from node_agent.cli.simulated import any_simulation

        place = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="node-agent-", dir="/tmp")))
        node = opened.enter_context(any_simulation(simulate, place))
        sources = sources_of(config, os.environ, {**node.flags, **flags}, folder, vendor_of)
        if serves:
            run_dir = replace(sources, named=None).resolve().settings.paths.run_dir
            opened.enter_context(node.controlled(run_dir / "simulate.sock"))
        yield sources, node.stat


def look(settings: "Settings") -> "Inventory":
    """One look at the node's GPUs, without an agent. Raises HardwareError where the driver cannot be asked."""
    import asyncio

    from node_agent.agent.build import inventory_once
    from node_agent.kit import logs

    # What goes wrong is the command's own answer, not an event in the life of an agent.
    logs.configure("critical")
    inventory = asyncio.run(inventory_once(settings))
    if inventory.problem is not None:
        raise DriverUnavailable(inventory.problem)
    return inventory


async def told_to_end() -> None:
    """Wait for SIGTERM or Ctrl-C."""
    import asyncio

    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await told.wait()


def console() -> "Console":
    """Where commands print: as wide as the terminal, and at least wide enough for tables and drawings.

    A narrower terminal breaks the lines by itself; cells that were cut to fit would lose what they say.
    """
    from rich.console import Console

    # Without emoji: the middle of the PCI address 0000:ab:00.0 is one.
    found = Console(highlight=False, soft_wrap=False, emoji=False)
    found.width = max(found.width, LEAST_WIDTH) if found.is_terminal else LEAST_WIDTH
    return found


def plain(text: object) -> str:
    """Text from elsewhere for a line that is printed with markup: brackets stay what they are."""
    from rich.markup import escape

    return escape(str(text))
