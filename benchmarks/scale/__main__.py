"""``python -m benchmarks.scale``: what claims cost the scheduler of a cluster. Needs root, as the rig does."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import machine
from benchmarks.scale import scheduling
from benchmarks.scale.control_plane import ControlPlane
from node_agent.model.inventory import Inventory
from tests.fakes.nodes import inventory_of


@click.group()
@click.option("--into", type=click.Path(path_type=Path, dir_okay=False), help="Write the tables there as well.")
@click.pass_context
def main(context: click.Context, into: Path | None) -> None:
    """Measure against a real API server, etcd and scheduler."""
    context.obj = into
    _say(into, *(f"{name}: {value}" for name, value in machine.facts().items()))


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
    with ControlPlane() as plane:
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
