"""``node-agent explain``: why the agent decides as it does."""

from pathlib import Path

import click

from node_agent.cli.shared import chosen_node, console, look, node_options
from node_agent.errors import AllocationError
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory


@click.group()
def explain() -> None:
    """Say why the agent decides as it does."""


@explain.command()
@node_options
@click.option("--size", type=click.IntRange(min=1), required=True, help="How many GPUs are asked for.")
@click.option("--available", help="The GPUs that are free, by name, index or UUID, with commas; all by default.")
@click.option("--must-include", help="GPUs that must be among them.")
def preferred(
    config: Path | None, simulate: str | None, size: int, available: str | None, must_include: str | None
) -> None:
    """Which GPUs a request gets, among which candidates, and why."""
    from node_agent.topology.explain import explain as explained
    from node_agent.topology.preferred import DeviceId, Pool, PreferredRequest
    from node_agent.topology.score import scores

    with chosen_node(config, simulate, {}) as (settings, _):
        inventory = look(settings)
        free = _chosen(inventory, available) if available is not None else set(inventory.by_uuid)
        must = _chosen(inventory, must_include) if must_include is not None else set()
        if len(must) > size:
            raise AllocationError(f"{len(must)} GPUs cannot be among {size}: raise --size or shorten --must-include")
        request = PreferredRequest(
            available=frozenset(map(DeviceId, free | must)), must_include=frozenset(map(DeviceId, must)), size=size
        )
        whole = Pool(scores=scores(inventory), parents={DeviceId(gpu.uuid): gpu.uuid for gpu in inventory.gpus})
        console().print(explained(request, whole).text, markup=False)


def _chosen(inventory: Inventory, words: str) -> set[GpuUuid]:
    """The GPUs that a list of names, indices or UUIDs means."""
    found = set()
    for word in words.split(","):
        named = [gpu for gpu in inventory.gpus if word.strip() in (gpu.uuid, gpu.name, str(gpu.index))]
        if not named:
            known = ", ".join(f"{gpu.name} (index {gpu.index})" for gpu in inventory.gpus)
            raise AllocationError(f"no GPU is {word.strip()!r}; the node has {known or 'none'}")
        found.add(named[0].uuid)
    return found
