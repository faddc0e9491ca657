"""``node-agent config``: is a configuration good, and where does each value come from."""

import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from node_agent.cli.shared import asked_label, chosen_sources, config_dir, config_file, console, plain
from node_agent.errors import ConfigError

if TYPE_CHECKING:
    from node_agent.model.health import Reason


@click.group()
def config() -> None:
    """Check and show the configuration."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
def check(file: Path) -> None:
    """Check a configuration FILE (- for standard input) and exit 1 if the agent would refuse it.

    Of a folder, such as a mounted ConfigMap, every entry is checked. Keys that are valid and not served yet are named
    too; they do no harm.
    """
    from node_agent.config.named import Named

    files = list(Named(folder=file).entries.values()) if file.is_dir() else [file]
    if not files:
        raise ConfigError(f"{file}: there is no configuration in this folder")
    # Each of them, also behind one that is bad.
    if not all([_is_good(one) for one in files]):
        sys.exit(1)


def _is_good(file: Path) -> bool:
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
        return False
    if str(file) != "-":
        for notice in resolve(file, {}, {}).notices:
            click.echo(f"note: {notice}")
    click.echo(f"{file} is good")
    return True


@config.command()
@config_file
@config_dir
@click.option("--label", metavar="NAME", help="As if the node's label said so, instead of asking the API server.")
def show(config: Path | None, config_dir: Path | None, label: str | None) -> None:
    """Show every value in force and where it comes from.

    That is the command line, the environment, the named configuration of the node, the file, or the default. A running
    agent that follows a change has it in force a moment later; `node-agent status` says what it has in force.
    """
    from rich.table import Table

    with chosen_sources(config, None, {}, folder=config_dir) as (sources, _):
        found = sources.resolve(label or asked_label(sources))
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


@config.command()
@click.argument("troubles", nargs=-1, metavar="[XID|CAUSE]...")
@config_file
@config_dir
@click.option("--label", metavar="NAME", help="As if the node's label said so, instead of asking the API server.")
def health(troubles: tuple[str, ...], config: Path | None, config_dir: Path | None, label: str | None) -> None:
    """Show what Xids and causes cost, what ends them, and which rule says so.

    Without any named, these are all causes, and the Xids about which the configuration has a word.
    """
    from rich.table import Table

    from node_agent.agent.health import policy as policy_of
    from node_agent.health.rules import Policy
    from node_agent.health.xids import catalogue
    from node_agent.model.health import Reason

    asked = [_trouble(word) for word in troubles]
    with chosen_sources(config, None, {}, folder=config_dir) as (sources, _):
        policy = policy_of(sources.resolve(label or asked_label(sources)).settings)
    xids = [xid for xid in catalogue if policy.decide(Reason.XID, xid) != Policy().decide(Reason.XID, xid)]
    usual = [*((reason, None) for reason in Reason if reason is not Reason.XID), *((Reason.XID, xid) for xid in xids)]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("", "action", "cleared by", "says"):
        table.add_column(heading, overflow="fold")
    for reason, xid in asked or usual:
        found = policy.decide(reason, xid)
        often = f", after {found.after} in {found.within:.0f} s" if found.after > 1 else ""
        title = reason if xid is None else f"Xid {xid}"
        table.add_row(title, f"{found.action}{often}", found.cleared_by, plain(found.rule))
    console().print(table)


def _trouble(word: str) -> "tuple[Reason, int | None]":
    """The number of an Xid, or a cause by its name."""
    from node_agent.model.health import Reason

    if word.isdecimal():
        return Reason.XID, int(word)
    names = [reason.value for reason in Reason if reason is not Reason.XID]
    if word in names:
        return Reason(word), None
    near = get_close_matches(word, names, n=1)
    known = f"did you mean {near[0]}?" if near else f"there is {', '.join(names)}"
    raise click.BadParameter(f"{word} is neither the number of an Xid nor a cause; {known}")


@config.command()
def schema() -> None:
    """Print the JSON schema of the configuration file, for editors."""
    import json

    from node_agent.config.schema import schema as schema_of

    click.echo(json.dumps(schema_of(), indent=2))
