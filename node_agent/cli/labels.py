"""``node-agent labels``: the labels that describe the node's GPUs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from node_agent.cli.shared import chosen_node, look, node_options
from node_agent.errors import HardwareError

if TYPE_CHECKING:
    from node_agent.config.settings import Settings


@click.command()
@node_options
@click.option("--remove", is_flag=True, help="Take away all labels that an agent has written for this node, instead.")
def labels(config: Path | None, simulate: str | None, remove: bool) -> None:
    """Print the labels that describe the node's GPUs.

    Their names are those of GPU Feature Discovery, and a label says what holds for all GPUs. On a node with several
    models each has a count and a memory of its own, as nvidia.com/gpu.NVIDIA-L4.count.

    What an agent has written stays when it ends, since an update is no farewell: --remove is for the farewell. It
    needs NODE_NAME and a way to the API server.
    """
    with chosen_node(config, simulate, {}) as (settings, _):
        lines = _removed(settings) if remove else _lines(settings)
    for line in lines:
        click.echo(line)


def _lines(settings: "Settings") -> list[str]:
    from node_agent.agent.live import selection_of
    from node_agent.agent.node_labels import node_labels
    from node_agent.hardware.machine import machine_of
    from node_agent.hardware.sysfs import Sysfs

    inventory = look(settings)
    machine = machine_of(Sysfs(root=settings.paths.sysfs_root), inventory.gpus, settings.labels.machine_file)
    found = node_labels(selection_of(settings), inventory, machine)
    if found is None:
        raise HardwareError(f"no GPU can be read: {'; '.join(missing.reason for missing in inventory.missing)}")
    return [f"{key}={value}" for key, value in found.items()]


def _removed(settings: "Settings") -> list[str]:
    import asyncio

    from node_agent.agent.label_place import remove_labels

    return [f"removed from {place}" for place in asyncio.run(remove_labels(settings))]
