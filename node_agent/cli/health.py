"""``node-agent health``: what is wrong with the GPUs, since when, and what ends it; and clearing it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import click
import msgspec

from node_agent.cli.shared import agent_socket, console, plain
from node_agent.cli.status import COLOURS, answered, no_agent
from node_agent.errors import NodeAgentError
from node_agent.kit.http_client import get, lines, post
from node_agent.model.health import Reason
from node_agent.reporting.health import CauseStatus, GpuHealth, HealthDocument

if TYPE_CHECKING:
    from rich.console import Console

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@click.group(invoke_without_command=True)
@agent_socket
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="The form of the answer.")
@click.option("--watch", is_flag=True, help="Go on, and tell each change; as JSON, a line at least every ten seconds.")
@click.pass_context
def health(context: click.Context, socket: Path, output: str, watch: bool) -> None:
    """Show what is wrong with the GPUs, since when, and what clears it."""
    if context.invoked_subcommand is not None:
        return
    said = None
    for body in _documents(socket, watch):
        if output == "json":
            click.echo(body.strip() if watch else msgspec.json.format(body, indent=2))
            continue
        document = msgspec.json.decode(body, type=HealthDocument)
        if document != said:
            show(document, time.time())
            said = document


@health.command()
@click.argument("gpu")
@agent_socket
@click.option("--cause", type=click.Choice([one.value for one in Reason]), help="Only causes of this reason.")
@click.option("--xid", type=click.IntRange(min=0), help="Only the cause that this Xid opened.")
def clear(gpu: str, socket: Path, cause: str | None, xid: int | None) -> None:
    """Close the open causes of a GPU, by its name or UUID: the GPU is offered again.

    What is still wrong is found by the next probe, and opened again.
    """
    given = {"gpu": gpu, "cause": cause, "xid": xid}
    path = f"/health/clear?{urlencode({key: value for key, value in given.items() if value is not None})}"
    try:
        code, body = post(socket, path)
    except OSError as error:
        raise no_agent(socket, error) from error
    if code != 200:
        raise NodeAgentError(body.decode(errors="replace").strip())
    cleared = msgspec.json.decode(body, type=tuple[CauseStatus, ...])
    for one in cleared:
        click.echo(f"cleared {one.title} of {gpu}: {one.message}")
    if cleared:
        click.echo("If it is still there, the next probe opens it again.")
    else:
        click.echo(f"{gpu} has no such open cause; nothing was changed")


def _documents(socket: Path, watch: bool) -> Iterator[bytes]:
    """The document once, or a line of it at each change."""
    try:
        if not watch:
            yield answered(*get(socket, "/health"), "/health")
            return
        with lines(socket, "/health?watch=1") as (code, found):
            for line in found:
                yield answered(code, line, "/health?watch=1")
    except OSError as error:
        raise no_agent(socket, error) from error
    raise NodeAgentError(f"the agent on {socket} has ended")


def show(document: HealthDocument, now: float) -> None:
    """Print the document for people; one line where nothing is wrong."""
    out = console()
    if document.trouble:
        out.print(f"[red]nothing is known of the GPUs[/red]: {plain(document.trouble)}")
    for gpu in document.gpus:
        if gpu.causes or not gpu.present:
            _show_gpu(out, gpu, now)
    for missing in document.missing:
        out.print(f"[red]missing[/red] index {missing.index} {plain(missing.uuid or '')}: {plain(missing.reason)}")
    healthy = sum(gpu.present and gpu.health == "healthy" for gpu in document.gpus)
    if not document.trouble:
        out.print(f"{healthy} of {len(document.gpus) + _unnamed(document)} GPUs are healthy")
    for gpu in document.gpus:
        if gpu.xids:
            out.print(f"  {gpu.name} has seen Xid {', '.join(f'{code} ({n} ×)' for code, n in gpu.xids.items())}")


def _unnamed(document: HealthDocument) -> int:
    """How many missing GPUs are not among the others."""
    known = {gpu.uuid for gpu in document.gpus}
    return sum(missing.uuid not in known for missing in document.missing)


def _show_gpu(out: "Console", gpu: GpuHealth, now: float) -> None:
    gone = "" if gpu.present else "; the driver does not list it any more"
    out.print(f"[bold]{gpu.name}[/bold] {gpu.uuid} [{COLOURS[gpu.health]}]{gpu.health}[/]{gone}")
    for cause in gpu.causes:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(cause.since))
        reach = f", {cause.reach}" if cause.reach else ""
        out.print(f"  {cause.title}: {cause.severity} since {since} ({age(now - cause.since)}){reach}")
        out.print(f"    {plain(cause.message)}")
        if cause.clears:
            out.print(f"    {plain(cause.clears)}")


def age(seconds: float) -> str:
    """A time in its largest unit, such as ``5 min ago``; a clock that was set back makes none of it negative."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"
