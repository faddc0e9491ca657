"""The node's labels from what it has and what of it is offered, for the agent and for the command."""

from msgspec.structs import replace

from node_agent.deviceplugin.selection import Selection
from node_agent.hardware.machine import Machine
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.model.naming import named
from node_agent.reporting.labels import labels
from node_agent.reporting.mig_labels import MigOffer


def node_labels(
    selection: Selection, inventory: Inventory, machine: Machine, health: HealthReport | None = None
) -> dict[str, str] | None:
    """As ``labels``: None where those of before stand.

    Schedulers take the count for what they may give out, so GPUs that are left to others are in no label; where all
    are, nobody asks the agent for any, and the labels describe the hardware.
    """
    kept = selection.kept(inventory)
    counted = replace(inventory, gpus=kept) if kept else inventory
    return labels(
        counted,
        shares=selection.shares(inventory).gpus,
        machine=machine,
        mig=_offer(selection, counted),
        health=health,
    )


def _offer(selection: Selection, inventory: Inventory) -> MigOffer:
    """Of the GPUs that claims cut no MIG device is offered by limits."""
    forms = selection.forms(inventory).values()
    return MigOffer(
        strategy=selection.strategy,
        devices=tuple((form.unit.partition, form.shared) for form in forms if form.unit.partition is not None),
        cut=frozenset(gpu.uuid for gpu in inventory.gpus if gpu.partitioned and not named(selection.on_demand, gpu)),
    )
