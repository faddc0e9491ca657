"""``node-agent status``: what the running agent knows and does."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from node_agent.cli.shared import agent_socket, console, plain
from node_agent.errors import NodeAgentError
from node_agent.kit.http_client import get
from node_agent.reporting.parts import ClaimsStatus, PartState, ResourceStatus
from node_agent.reporting.status import ConfigStatus, GpuStatus, LayoutStatus, Status

COLOURS = {"healthy": "green", "degraded": "yellow", "withdrawn": "red", "evicted": "red"}


@click.command()
@agent_socket
@click.option("--json", "as_json", is_flag=True, help="As -o json.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="The form of the answer.")
@click.option(
    "--check",
    type=click.Choice(["ready", "live"]),
    is_flag=False,
    flag_value="ready",
    help="Print nothing but trouble, and exit 1 if there is any: for probes.",
)
def status(socket: Path, as_json: bool, output: str, check: str | None) -> None:
    """Show the GPUs, their health, and where the agent stands with the kubelet."""
    if check is not None:
        _check(socket, check)
        return
    body = ask(socket, "/status")
    if as_json or output == "json":
        click.echo(msgspec.json.format(body, indent=2).decode())
        return
    try:
        show(msgspec.json.decode(body, type=Status))
    except msgspec.DecodeError as error:
        raise NodeAgentError(f"the agent on {socket} is of another version: {error}; use its own `status`") from error


def ask(socket: Path, path: str) -> bytes:
    """What the running agent answers on ``path``. Raises NodeAgentError where none does."""
    try:
        return answered(*get(socket, path), path)
    except OSError as error:
        raise no_agent(socket, error) from error


def answered(code: int, body: bytes, path: str) -> bytes:
    """The body of an answer. Raises NodeAgentError where it is no success."""
    if code != 200:
        raise NodeAgentError(f"the agent answers {code} on {path}: {body.decode(errors='replace')}")
    return body


def no_agent(socket: Path, error: OSError) -> NodeAgentError:
    """What to tell where nobody answers."""
    return NodeAgentError(f"no agent answers on {socket}: {error}; is `node-agent run` up, or is --socket another?")


def _check(socket: Path, check: str) -> None:
    path = {"ready": "/readyz", "live": "/healthz"}[check]
    try:
        ask(socket, path)
    except NodeAgentError as error:
        click.echo(str(error), err=True)
        sys.exit(1)


def show(found: Status) -> None:
    """Print the document for people."""
    from rich.table import Table

    out = console()
    cuda = f", CUDA {found.cuda}" if found.cuda else ""
    versions = f"node-agent {found.version}, driver {found.driver or '?'}{cuda}"
    out.print(f"[bold]{plain(found.node)}[/bold]  {plain(versions)}")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("GPU", "product", "PCI", "NUMA", "memory", "health", "UUID"):
        table.add_column(heading)
    for gpu in found.gpus:
        table.add_row(*_gpu_row(gpu))
    out.print(table)
    for line in _lines(found):
        out.print(line)


def _lines(found: Status) -> Iterator[str]:
    """All below the table."""
    for missing in found.missing:
        yield f"[red]missing[/red] index {missing.index} {plain(missing.uuid or '')}: {plain(missing.reason)}"
    for resource in found.resources:
        yield from _resource_lines(resource)
    if found.claims is not None:
        yield _claims_line(found.claims)
    if found.cdi is not None:
        yield f"[bold]{found.cdi.kind}[/bold] in {plain(found.cdi.path)}: {found.cdi.devices} GPUs"
    if found.config is not None:
        yield from _config_lines(found.config)
    for report in found.reports:
        trouble = f" [yellow]cannot be written[/yellow] {plain(report.trouble)}" if report.trouble else ""
        yield f"[bold]{plain(report.name)}[/bold] {plain(report.standing)}{trouble}"
    yield from _ending(found)


def _ending(found: Status) -> Iterator[str]:
    if found.layout is not None:
        yield from _layout_lines(found.layout)
    yield from (f"[yellow]notice[/yellow] {plain(text)}" for text in found.notices)
    # What is wrong with single GPUs is in their table.
    degraded = [part for part in found.parts if part.state is PartState.DEGRADED and part.name != "devices"]
    yield from (f"[yellow]{part.name}[/yellow] {plain('; '.join(part.messages))}" for part in degraded)
    yield from (f"[red]not ready[/red] {plain(text)}" for text in found.trouble)
    if found.ready:
        yield "[green]ready[/green]"


def _config_lines(config: ConfigStatus) -> Iterator[str]:
    """What is in force, and all that is not."""
    yield f"[bold]configuration[/bold] {plain(config.source)}, number {config.generation} since the start"
    if config.trouble:
        yield f"[yellow]refused, the one before stays in force[/yellow] {plain(config.trouble)}"
    for device in config.waits:
        yield f"[yellow]waits for the pod that holds it[/yellow] {plain(device)}"
    if config.after_restart:
        yield f"[yellow]in force after a restart of the agent[/yellow] {plain(', '.join(config.after_restart))}"


def _layout_lines(layout: LayoutStatus) -> Iterator[str]:
    """How far the layout is that is asked for, and why no further."""
    colour = {"success": "green", "failed": "red"}.get(layout.phase, "yellow")
    yield f"[bold]MIG layout[/bold] {plain(layout.name)} ({plain(layout.source)}): [{colour}]{layout.phase}[/]"
    for reason in layout.reasons:
        yield f"  [{colour}]{plain(reason)}[/]"


def _gpu_row(gpu: GpuStatus) -> list[str]:
    health = f"[{COLOURS[gpu.health]}]{gpu.health}[/]"
    if gpu.causes:
        health += " " + plain("; ".join(cause.text for cause in gpu.causes))
    memory = f"{gpu.memory / 2**30:.0f} GiB" if gpu.memory else "?"
    numa = str(gpu.numa_node) if gpu.numa_node is not None else "-"
    return [gpu.name, plain(gpu.product), gpu.pci, numa, memory, health, gpu.uuid]


def _claims_line(claims: ClaimsStatus) -> str:
    facts = [claims.detail, f"{claims.registrations} registrations"]
    published = f"{claims.devices} devices in {claims.slices} slices"
    return f"[bold]{claims.driver}[/bold] {published}, {claims.phase} ({plain(', '.join(filter(None, facts)))})"


def _resource_lines(resource: ResourceStatus) -> Iterator[str]:
    facts = [resource.detail, f"{resource.registrations} registrations"]
    yield (
        f"[bold]{resource.name}[/bold] {resource.healthy} of {resource.devices} healthy, {resource.phase}"
        f" ({plain(', '.join(fact for fact in facts if fact))})"
    )
    for reason in resource.withheld:
        yield f"  [yellow]withheld[/yellow] {plain(reason)}"
