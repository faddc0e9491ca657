"""``node-agent labels``: the labels that describe the node's GPUs."""

from pathlib import Path

import click

from node_agent.cli.shared import chosen_node, look, node_options
from node_agent.errors import HardwareError


@click.command()
@node_options
def labels(config: Path | None, simulate: str | None) -> None:
    """Print the labels that describe the node's GPUs.

    Their names are those of GPU Feature Discovery, and a label says what holds for all GPUs. On a node with several
    models each has a count and a memory of its own, as nvidia.com/gpu.NVIDIA-L4.count.
    """
    from node_agent.agent.live import selection_of
    from node_agent.hardware.machine import machine_of
    from node_agent.hardware.sysfs import Sysfs
    from node_agent.reporting.labels import labels as labels_of

    with chosen_node(config, simulate, {}) as (settings, _):
        inventory = look(settings)
        machine = machine_of(Sysfs(root=settings.paths.sysfs_root), inventory.gpus, settings.labels.machine_file)
        found = labels_of(inventory, shares=selection_of(settings).shares(inventory).gpus, machine=machine)
    if found is None:
        raise HardwareError(f"no GPU can be read: {'; '.join(missing.reason for missing in inventory.missing)}")
    for key, value in found.items():
        click.echo(f"{key}={value}")
