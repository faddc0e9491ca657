"""``node-agent cdi``: the CDI spec without an agent."""

import os
from pathlib import Path

import click

from node_agent.cli.shared import chosen_node, look, node_options
from node_agent.errors import CdiError


@click.group()
def cdi() -> None:
    """Work with the node's CDI spec."""


@cdi.command()
@node_options
@click.option("--output", type=click.Path(path_type=Path), help="Write to this folder instead of printing.")
def generate(config: Path | None, simulate: str | None, output: Path | None) -> None:
    """Print the CDI spec of the node's GPUs, or write it to a folder.

    What the spec lacks, and why, goes to standard error.
    """
    from node_agent.agent.hardware import host_of
    from node_agent.cdi.edits import encode
    from node_agent.cdi.writer import SpecWriter

    with chosen_node(config, simulate, {}) as (settings, stat):
        inventory = look(settings)
        if not inventory.gpus:
            raise CdiError("the node has no GPU, so there is no spec")
        built = host_of(settings, stat).look(inventory)
    for one in built.left_out:
        click.echo(f"left out: {one}", err=True)
    if built.spec is None:
        raise CdiError("no GPU can be given to a container, so there is no spec")
    if output is None:
        click.echo(encode(built.spec).decode(), nl=False)
        return
    changed = SpecWriter(output).write(built.spec)
    click.echo(f"{'wrote' if changed else 'already there:'} {os.fspath(output)}", err=True)
