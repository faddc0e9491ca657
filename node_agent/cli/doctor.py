"""``node-agent doctor``: examines the node from driver to registration, and names the fix for what fails."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from node_agent.cli.shared import agent_socket, chosen_node, console, node_options, plain

if TYPE_CHECKING:
    from node_agent.doctor.finding import Examination, Finding

COLOURS = {"ok": "green", "skipped": "dim", "warning": "yellow", "failed": "red"}


@click.command()
@node_options
@agent_socket
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="The form of the answer.")
def doctor(config: Path | None, simulate: str | None, socket: Path, output: str) -> None:
    """Examine this node, from driver to registration, and name the fix for what fails.

    Nothing is changed, and no agent has to run. Exits 1 where a check has failed; warnings alone are no failure.
    """
    import asyncio

    import msgspec

    from node_agent.doctor.examine import examine
    from node_agent.kit import logs

    with chosen_node(config, simulate, {}) as (settings, stat):
        # What goes wrong is the command's own answer, not an event in the life of an agent.
        logs.configure("critical")
        found = asyncio.run(examine(settings, stat, socket))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        show(found)
    sys.exit(found.failed)


def show(found: "Examination") -> None:
    """Print the findings for people, what fails at the end: there it is seen."""
    from node_agent.doctor.finding import Result

    out = console()
    ordered = sorted(found.findings, key=lambda one: list(Result).index(one.result))
    widest = max((len(one.check) for one in ordered), default=0)
    for one in ordered:
        out.print("\n".join(_lines(one, widest)), soft_wrap=True)
    counts = ", ".join(f"{found.count(result)} {result}" for result in Result if found.count(result))
    out.print(f"[bold]{plain(found.node or 'this node')}[/bold]: {counts}")


def _lines(one: "Finding", widest: int) -> list[str]:
    where = f"  [dim]{plain(one.where)}[/dim]" if one.where else ""
    lines = [f"[{COLOURS[one.result]}]{one.result:<7}[/]  {one.check.ljust(widest)}  {plain(one.what)}{where}"]
    return [*lines, f"{' ' * (widest + 11)}fix: {plain(one.fix)}"] if one.fix else lines
