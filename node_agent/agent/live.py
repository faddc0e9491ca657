"""The settings in force, and what those parts take of them that follow a change while they run."""

import asyncio

from msgspec.structs import replace

from node_agent.config.settings import Settings
from node_agent.deviceplugin.selection import Rule, Selection
from node_agent.deviceplugin.servicer import check_size
from node_agent.dra.slices import PoolSettings
from node_agent.kit.latest import Latest
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.naming import named
from node_agent.sharing.shares import Strategy
from node_agent.topology.preferred import Policy

# By then the kubelet has read a list that was sent to it.
SETTLE_SECONDS = 0.5


class Live:
    """What is in force now; ``apply`` puts other settings in force."""

    def __init__(self, settings: Settings) -> None:
        self.settings = Latest(settings)
        self.selection = Latest(selection_of(settings))
        self.pool = Latest(pool_of(settings))

    async def apply(self, settings: Settings, inventory: Inventory) -> None:
        """Put these settings in force; no GPU of the node is offered under two names at any moment.

        Raises:
            ConfigError: the kubelet would not take what they offer; nothing is changed then.
        """
        after = selection_of(settings)
        forms = after.forms(inventory)
        for resource in {form.resource for form in forms.values()}:
            check_size(resource, forms)
        self.pool.set(pool_of(settings))
        before = {gpu: form.resource for gpu, form in self.selection.value.forms(inventory).items()}
        names = {gpu: form.resource for gpu, form in forms.items()}
        if moving := [device for device, name in before.items() if name != names.get(device, name)]:
            self.selection.set(replace(after, moving=moving))
            await asyncio.sleep(SETTLE_SECONDS)
        self.selection.set(after)
        # Last: whoever was interrupted on the way finds that these are not in force yet.
        self.settings.set(settings)


def selection_of(settings: Settings) -> Selection:
    rules = tuple(Rule(pattern=rule.pattern, resource=rule.resource) for rule in settings.resources)
    return Selection(
        vendor=settings.vendor,
        exclude=settings.exclude,
        rules=rules,
        partition_rules=tuple(Rule(pattern=rule.pattern, resource=rule.resource) for rule in settings.mig_resources),
        strategy=settings.mig_strategy,
        on_demand=settings.mig_on_demand,
        # Shares are for pods with limits: where these are not served, nothing is kept from claims for them.
        sharing=settings.sharing.rules if settings.device_plugin else (),
        policy=Policy(settings.sharing.placement),
    )


def pool_of(settings: Settings) -> PoolSettings:
    selection = selection_of(settings)

    def offered(inventory: Inventory) -> set[GpuUuid]:
        """No claim can have a GPU that only clients of an MPS daemon can open."""
        shared = selection.shares(inventory).gpus
        by_mps = {gpu for gpu, how in shared.items() if how.strategy is Strategy.MPS}
        return {gpu.uuid for gpu in inventory.gpus if selection.resource_of(gpu) is not None} - by_mps

    return PoolSettings(
        groups=settings.dra_groups,
        offered=offered,
        shares=lambda gpu: named(settings.shareable, gpu),
        on_demand=lambda gpu: named(settings.mig_on_demand, gpu),
    )
