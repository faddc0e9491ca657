"""``node-agent config``: is a configuration good, and where does each value come from."""

import os
import sys
from pathlib import Path

import click

from node_agent.cli.shared import console, plain
from node_agent.errors import ConfigError


@click.group()
def config() -> None:
    """Check and show the configuration."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
def check(file: Path) -> None:
    """Check a configuration FILE (- for standard input) and exit 1 if the agent would refuse it.

    Keys that are valid and not served yet are named too; they do no harm.
    """
    from node_agent.config.resolve import check as problems_of
    from node_agent.config.resolve import resolve

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    problems = problems_of(text, str(file))
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        sys.exit(1)
    if str(file) != "-":
        for notice in resolve(file, {}, {}).notices:
            click.echo(f"note: {notice}")
    click.echo(f"{file} is good")


@config.command()
@click.option(
    "--config", "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The configuration file."
)
def show(file: Path | None) -> None:
    """Show every value in force and where it comes from: command line, environment, file or default."""
    from rich.table import Table

    from node_agent.config.resolve import resolve

    found = resolve(file, os.environ, {})
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("key", "value", "source"):
        table.add_column(heading, overflow="fold")
    for key, value in found.values.items():
        style = None if found.origin[key] != "default" else "dim"
        table.add_row(key, plain(value), plain(found.origin[key]), style=style)
    out = console()
    out.print(table)
    for notice in found.notices:
        out.print(f"note: {notice}", markup=False)
