"""``python -m benchmarks.scale``: what a cluster of agents costs. Needs root, as the rig does."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from benchmarks import machine
from benchmarks.scale import publishing, scheduling
from benchmarks.scale.control_plane import ControlPlane
from benchmarks.scale.model import Rates, extrapolated, load
from node_agent.model.inventory import Inventory
from tests.fakes.nodes import inventory_of

FURTHER = (10_000, 100_000)
DAYS: dict[str, Rates] = {
    "a usual day: 2 GPUs withdrawn or restored, 500 claims, a start over a week": {
        publishing.WITHDRAWN: 2,
        publishing.CLAIMS: 500,
        publishing.OVER: 1 / 7,
    },
    "a bad day: 200 GPUs withdrawn or restored": {publishing.WITHDRAWN: 200, publishing.CLAIMS: 500},
    "an update of all within an hour, as long as it goes on": {publishing.UPDATE: 24},
}


@click.group()
@click.option("--into", type=click.Path(path_type=Path, dir_okay=False), help="Write the tables there as well.")
@click.pass_context
def main(context: click.Context, into: Path | None) -> None:
    """Measure against a real API server, etcd and scheduler."""
    context.obj = into
    _say(into, *(f"{name}: {value}" for name, value in machine.facts().items()))


@main.command()
@click.option("--nodes", multiple=True, type=int, default=(100, 300, 1000), show_default=True)
@click.pass_obj
def publishers(into: Path | None, nodes: Sequence[int]) -> None:
    """What agents ask of the API server: starts, an update, sick GPUs, claims, a server that ends; and what follows."""
    sizes = []
    _say(into, publishing.HEAD)
    for count in nodes:
        with ControlPlane() as plane:
            sizes.append(asyncio.run(publishing.measured(plane, names(count))))
        _say(into, *sizes[-1].rows)
    largest = sizes[-1]
    _say(into, "", f"a slice: {largest.slice_json} bytes of JSON, {largest.slice_stored} in etcd", "")
    if len(sizes) > 2:
        totals = {name: {size.nodes: size.totals[name] for size in sizes} for name in largest.totals}
        _say(into, _head("in all", "n nodes", f"missed {largest.nodes} by"), *extrapolated(totals, FURTHER), "")
    _say(into, _head("in a second", "nodes:"), *_loads(largest))


def _head(*titles: str) -> str:
    columns = [*titles, *(f"{nodes:,}" for nodes in FURTHER)]
    return f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"


def _loads(size: publishing.Size) -> Iterator[str]:
    """What comes of what was measured for each thing that happens, on days of several kinds."""
    for day, rates in DAYS.items():
        loads = [load(nodes, rates, size.costs) for nodes in FURTHER]
        yield f"| {day} | writes | {' | '.join(f'{one.writes:,.1f}' for one in loads)} |"
        yield f"| | requests | {' | '.join(f'{one.requests:,.1f}' for one in loads)} |"
        yield f"| | kB sent | {' | '.join(f'{one.sent / 1000:,.0f}' for one in loads)} |"


@main.command()
@click.option("--nodes", default=200, show_default=True)
@click.option("--one", default=30, show_default=True, help="Pods after each other, for the latency.")
@click.option("--many", default=100, show_default=True, help="Pods at once, for the processor time.")
@click.option("--case", "chosen", multiple=True, type=int, help="Only these, by their numbers.")
@click.pass_obj
def scheduler(into: Path | None, nodes: int, one: int, many: int, chosen: Sequence[int]) -> None:
    """What the scheduler takes for a pod with a claim, by what is asked for and how devices are published."""
    cases = [case for number, case in enumerate(scheduling.CASES) if not chosen or number in chosen]
    inventory = inventory_of("h200-8")
    _say(into, scheduling.HEAD)
    with ControlPlane(scheduler=True, audit=False) as plane:
        asyncio.run(_scheduled(plane, into, names(nodes), inventory, cases, one=one, many=many))


async def _scheduled(
    plane: ControlPlane,
    into: Path | None,
    nodes: Sequence[str],
    inventory: Inventory,
    cases: Sequence[scheduling.Case],
    *,
    one: int,
    many: int,
) -> None:
    await plane.make_nodes(nodes)
    async for found in scheduling.measured(plane, nodes, inventory, cases, one=one, many=many):
        _say(into, found.row)


def names(count: int) -> list[str]:
    return [f"node-{number:05}" for number in range(count)]


def _say(into: Path | None, *lines: str) -> None:
    text = "\n".join(lines)
    click.echo(text)
    if into is not None:
        with into.open("a") as file:
            file.write(text + "\n")


if __name__ == "__main__":
    main()
