"""``node-agent topology``: how the node's GPUs reach each other."""

from collections.abc import Mapping
from pathlib import Path

import click

from node_agent.cli.shared import chosen_node, console, look, node_options, plain
from node_agent.model.inventory import Inventory


@click.command()
@node_options
@click.option(
    "--table/--no-table", default=True, show_default=True, help="The links as a table, as nvidia-smi topo -m."
)
@click.option("--drawing/--no-drawing", default=True, show_default=True, help="As a drawing.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="The form of the answer.")
def topology(config: Path | None, simulate: str | None, table: bool, drawing: bool, output: str) -> None:
    """Show the link graph: NVLink, PCIe and NUMA nodes, as a table and as a drawing."""
    from node_agent.hardware.sysfs import Sysfs
    from node_agent.topology.drawing import draw

    with chosen_node(config, simulate, {}) as (settings, _):
        inventory = look(settings)
        if output == "json":
            _print_json(settings.node_name, inventory)
            return
        if table and inventory.gpus:
            _print_table(inventory, Sysfs(root=settings.paths.sysfs_root).node_cpus())
        if drawing:
            console().print(draw(inventory), markup=False)


def _print_json(node: str, inventory: Inventory) -> None:
    """The document that a running agent serves as /overview, of what one look at the hardware tells."""
    import msgspec

    from node_agent.model.health import HealthReport
    from node_agent.reporting.overview import overview

    found = overview(node=node, inventory=inventory, health=HealthReport(), looks={}, holdings=())
    click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())


def _print_table(inventory: Inventory, cpus: Mapping[int, str]) -> None:
    from rich.table import Table

    from node_agent.topology.render import link_table

    found = link_table(inventory, cpus)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in found.header:
        table.add_column(heading)
    for row in found.rows:
        table.add_row(*map(plain, row))
    out = console()
    out.print(table)
    out.print()
    for word, meaning in found.legend.items():
        out.print(f"  {word:<5} {meaning}", style="dim")
    out.print()
