"""Puts the keeper of the node's layout together, for ``build``: what is asked for, who is in the way, who is told."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from msgspec import Struct

from node_agent.agent.access import access_of
from node_agent.agent.label import Labels, NodeLabels
from node_agent.agent.supervisor import Run
from node_agent.allocation.grants import Door, Hold, Holder
from node_agent.allocation.ledger import Ledger
from node_agent.config.settings import Settings
from node_agent.deviceplugin.holding import LimitDoor
from node_agent.errors import KubeAccessError
from node_agent.hardware.inventory import InventoryKeeper
from node_agent.hardware.provider import Partitioning
from node_agent.kit.alone import alone
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kubelet.podresources import PodDevices
from node_agent.layouts.changes import Changer
from node_agent.layouts.label import OWNER, StateLabel
from node_agent.layouts.layouts import Layouts
from node_agent.layouts.orders import Orders
from node_agent.layouts.others import follow_others
from node_agent.layouts.reserved import Reserved
from node_agent.layouts.room import Room
from node_agent.layouts.state import LayoutState, Phase
from node_agent.reporting.holders import Holders
from node_agent.reporting.node_events import LONGEST_NOTE, Notice

# Nobody waits for what is told, and the writer has pauses of its own.
PATIENCE = Patience(attempt=10.0, budget=10.0)
# What NVIDIA's operator calls the pods of its MIG manager.
_MIG_MANAGER = "nvidia-mig-manager-"

log = Log(__name__)


class NodeLayouts(Struct, frozen=True, kw_only=True):
    """What is asked for of the node, what came of it, and the labels that it has, as far as they are followed.

    ``others`` follows what another agent of the node does.
    """

    orders: Orders
    layouts: Layouts
    room: Room
    labels: Labels
    others: Run


def node_layouts(
    settings: Latest[Settings],
    labels: Labels,
    *,
    keeper: InventoryKeeper,
    partitioning: Partitioning,
    ledger: Ledger,
    limits: LimitDoor,
    pods: PodDevices,
    holders: Holders,
) -> NodeLayouts:
    """The parts, to be run by ``layout_services``."""
    orders, turn = Orders(settings, labels), asyncio.Lock()
    changer = Changer(partitioning=partitioning, reserved=Reserved(ledger), look=keeper.look)
    layouts = Layouts(
        order=orders.order,
        inventory=keeper.inventory,
        ledger=ledger,
        changer=changer,
        owner=lambda: mig_manager(pods.pods),
        who=lambda holder, hold: in_words(holders, holder, hold),
        known=(orders.known, limits.synced),
        turn=turn,
    )
    room = Room(
        settings=settings,
        inventory=keeper.inventory,
        ledger=ledger,
        changer=changer,
        followed=lambda: layouts.followed,
        turn=turn,
        known=(layouts.looked,),
    )
    others = partial(follow_others, ledger.company, keeper.rescan)
    return NodeLayouts(orders=orders, layouts=layouts, room=room, labels=labels, others=others)


def mig_manager(pods: frozenset[str]) -> str:
    """Who of the node's pods cuts its GPUs, in words; empty where nobody does."""
    found = sorted(pod for pod in pods if pod.partition("/")[2].startswith(_MIG_MANAGER))
    return f"NVIDIA's MIG manager ({found[0]}) cuts this node's GPUs" if found else ""


def in_words(holders: Holders, holder: Holder, hold: Hold) -> str:
    """The pods that have a device, or its holder as long as nobody tells of pods."""
    pods = {
        f"pod {pod.namespace}/{pod.pod}"
        for one in holders.value
        if one.holder.id == holder.id and one.hold == hold
        for pod in one.pods
    }
    claim = f"{holder} of " if pods and holder.door is Door.CLAIM else ""
    return f"{claim}{', '.join(sorted(pods))}" if pods else str(holder)


@asynccontextmanager
async def layout_services(settings: Settings, node: NodeLayouts, *, followed: bool) -> AsyncIterator[Mapping[str, Run]]:
    """What is to run, by name, with its connection to the API server, which ends with the block.

    ``followed``: somebody else keeps the labels up to date.
    """

    async def keep() -> None:
        # Of two agents one cuts.
        async with alone(settings.paths.state_dir / "layouts.lock"), asyncio.TaskGroup() as group:
            group.create_task(node.layouts.run(), name="layouts")
            group.create_task(node.room.run(), name="room")

    services: dict[str, Run] = {"layout orders": node.orders.run, "layouts": keep, "others' layouts": node.others}
    if settings.mig_layouts == "never":
        yield services
        return
    try:
        access = access_of(settings)
    except KubeAccessError as error:
        log.debug("the node's label for its layout is not followed", reason=error)
        yield services
        return
    async with KubeClient(access, agent=OWNER, patience=PATIENCE) as client:
        told = StateLabel(client, settings.node_name, node.layouts.state, node.labels, node.layouts.looked)
        services |= {"layout orders": lambda: node.orders.run(expects_labels=True), "layout label": told.run}
        if not followed:
            services["node labels"] = NodeLabels(client, settings.node_name, node.labels).run
        yield services


class LayoutNews:
    """What is worth an Event of a layout: that it waits and for what, that it failed, and that it is in force."""

    def __init__(self, state: Latest[LayoutState | None]) -> None:
        self.source = state
        self._told: tuple[str, Phase, str] | None = None

    def notices(self) -> Iterator[Notice]:
        """What is new since this was called last."""
        found = self.source.value
        if found is None:
            return
        reasons = "; ".join(found.reasons)
        before, now = self._told, (found.name, found.phase, reasons)
        # What is just being done is no news.
        if now == before or (found.phase is Phase.PENDING and not reasons):
            return
        self._told = now
        if found.phase is not Phase.SUCCESS:
            reason = "GPULayoutFailed" if found.phase is Phase.FAILED else "GPULayoutWaits"
            yield _notice("Warning", reason, f"{found.name} ({found.source}): {reasons}")
        elif before is not None:
            yield _notice("Normal", "GPULayoutInForce", f"{found.name} ({found.source})")


def _notice(kind: str, reason: str, note: str) -> Notice:
    return Notice(key=(reason, note), type=kind, reason=reason, note=note[:LONGEST_NOTE], action="LayoutChanged")
