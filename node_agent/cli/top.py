"""``node-agent top``: the GPUs and who uses them, by pod and claim, drawn anew every few seconds."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from node_agent.cli.shared import agent_socket, console, plain
from node_agent.cli.status import COLOURS, ask
from node_agent.errors import NodeAgentError
from node_agent.reporting.overview import GpuUse, HoldingStatus, Overview

if TYPE_CHECKING:
    from rich.table import Table

GIB = 1 << 30
BAR = 10
# To the upper left corner, and away with the picture before.
ANEW = "\x1b[H\x1b[J"


@click.command()
@agent_socket
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="The form of the answer.")
@click.option("--once", is_flag=True, help="Show it once and end, as where the output is no terminal.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5, max=3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
def top(socket: Path, output: str, once: bool, interval: float) -> None:
    """Show the GPUs and who uses them, by pod and claim, until Ctrl-C.

    The figures are those of the agent's last look at each GPU: asking for them costs the driver nothing.
    """
    if output == "json":
        click.echo(msgspec.json.format(ask(socket, "/overview"), indent=2).decode())
        return
    if once or not console().is_terminal:
        show(_asked(socket), time.time())
        return
    with suppress(KeyboardInterrupt):
        while True:
            found = _asked(socket)
            click.echo(ANEW, nl=False)
            show(found, time.time())
            time.sleep(interval)


def _asked(socket: Path) -> Overview:
    try:
        return msgspec.json.decode(ask(socket, "/overview"), type=Overview)
    except msgspec.DecodeError as error:
        raise NodeAgentError(f"the agent on {socket} is of another version: {error}; use its own `top`") from error


def show(found: Overview, now: float) -> None:
    """Print one picture: the GPUs, then who has them."""
    out = console()
    clock = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    out.print(f"[bold]{plain(found.node or 'this node')}[/bold]  {clock}  {_total(found.gpus)}")
    out.print(_gpu_table(found.gpus, now))
    if found.problem is not None:
        out.print(f"[red]no GPU can be read[/red] {plain(found.problem)}")
    for one in () if found.problem is not None else found.missing:
        out.print(f"[red]missing[/red] index {one.index} {plain(one.uuid or '')}: {plain(one.reason)}")
    out.print()
    if found.holdings:
        out.print(_pod_table(found))
    else:
        out.print("nobody holds a device")


def _total(gpus: Sequence[GpuUse]) -> str:
    used = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    power = sum(gpu.power or 0.0 for gpu in gpus)
    mean = f"{sum(used) / len(used):.0%} in use" if used else "use not known"
    return f"{len(gpus)} GPUs, {mean}, {power:.0f} W"


def _table(*headings: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _gpu_table(gpus: Iterable[GpuUse], now: float) -> "Table":
    table = _table("GPU", "product", "health", "use", "memory", "temp", "power", "looked at")
    for gpu in gpus:
        table.add_row(
            gpu.name,
            plain(gpu.product),
            f"[{COLOURS[gpu.health]}]{gpu.health}[/]",
            _share(gpu.utilization),
            _memory(gpu.memory_used, gpu.memory),
            f"{gpu.temperature} °C" if gpu.temperature is not None else "?",
            _power(gpu),
            f"{max(now - gpu.at, 0.0):.0f} s ago" if gpu.at is not None else "not yet",
        )
        for one in gpu.partitions:
            table.add_row("", f"  {plain(one.profile)} at {one.start}", "", "", _memory(one.memory_used, one.memory))
    return table


def _pod_table(found: Overview) -> "Table":
    """What each pod has by one claim or resource; those that use the most come first."""
    by_name = {gpu.name: gpu for gpu in found.gpus}
    groups: dict[tuple[object, ...], list[HoldingStatus]] = {}
    for one in found.holdings:
        groups.setdefault((one.door, one.holder, one.pods), []).append(one)
    table = _table("pod", "container", "devices", "use of these GPUs", "their memory", "by", "claim or resource")
    for members in sorted(groups.values(), key=lambda members: -(_use(members, by_name) or 0.0)):
        one, gpus = members[0], _of(members, by_name)
        pods = [f"{pod.namespace}/{pod.pod}" for pod in one.pods] or ["(not told by the kubelet yet)"]
        table.add_row(
            plain(", ".join(pods)),
            plain(", ".join(dict.fromkeys(pod.container for pod in one.pods))),
            plain(", ".join(dict.fromkeys(_device(member) for member in members))),
            _share(_use(members, by_name)),
            _memory(sum(gpu.memory_used or 0 for gpu in gpus), sum(gpu.memory or 0 for gpu in gpus)),
            one.door,
            plain(one.holder),
        )
    return table


def _device(one: HoldingStatus) -> str:
    of = ", ".join(filter(None, (one.part, f"share {one.share}" if one.share else "")))
    return f"{' + '.join(one.gpus)}{f' ({of})' if of else ''}"


def _of(members: Sequence[HoldingStatus], by_name: Mapping[str, GpuUse]) -> list[GpuUse]:
    """The GPUs that are held, each once; one that is gone has no figures."""
    names = dict.fromkeys(name for one in members for name in one.gpus)
    return [by_name[name] for name in names if name in by_name]


def _use(members: Sequence[HoldingStatus], by_name: Mapping[str, GpuUse]) -> float | None:
    used = [gpu.utilization for gpu in _of(members, by_name) if gpu.utilization is not None]
    return sum(used) / len(used) if used else None


def _share(value: float | None) -> str:
    if value is None:
        return "?"
    filled = round(value * BAR)
    return f"[green]{'█' * filled}[/][dim]{'░' * (BAR - filled)}[/] {value:>4.0%}"


def _memory(used: int | None, total: int | None) -> str:
    if not total:
        return "?"
    return f"{used / GIB:.1f} of {total / GIB:.0f} GiB" if used is not None else f"? of {total / GIB:.0f} GiB"


def _power(gpu: GpuUse) -> str:
    if gpu.power is None:
        return "?"
    return f"{gpu.power:.0f} of {gpu.power_limit} W" if gpu.power_limit else f"{gpu.power:.0f} W"
