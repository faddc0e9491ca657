"""A real API server takes the slices of every simulated node, keeps all that is in them, and spells it as we do.

Else the agent would write them again at each start. ``test_claims`` has what scheduler and pods make of them.
"""

from collections.abc import Iterable

import pytest

from node_agent.dra.features import not_kept
from node_agent.dra.slices import PoolSettings, SliceSpec, laid_out, pool_of
from node_agent.dra.taints import HELD, Effect, Taint
from node_agent.dra.writes import Attempt, plan, same, times_of, wanted_objects, with_times
from node_agent.hardware.simulated import profile_names
from node_agent.kube.resources import RESOURCE_SLICES
from tests.fakes.builders import switched_node
from tests.fakes.names import DRIVER
from tests.fakes.nodes import inventory_of
from tests.node.rig.api import ApiError, Object
from tests.node.rig.node import RealNode

pytestmark = pytest.mark.node

SETTINGS = {
    "plain": PoolSettings(),
    "groups": PoolSettings(groups=True),
    "shared": PoolSettings(groups=True, shares=lambda gpu: True),
}
TAINTS = [
    Taint(key="gpu.nvidia.com/xid", effect=Effect.NO_SCHEDULE, value="79"),
    Taint(key="gpu.nvidia.com/xid", effect=Effect.NO_SCHEDULE, value="48"),
    Taint(key=f"gpu.nvidia.com/{HELD}", effect=Effect.NO_SCHEDULE),
    Taint(key="gpu.nvidia.com/reset-needed", effect=Effect.NONE),
]


def objects(slices: Iterable[SliceSpec], node: RealNode) -> list[Object]:
    """The slices as the agent creates them, by names of their own: those that it has left may still be there."""
    wanted = wanted_objects(slices, node.name, node.read()["metadata"]["uid"], DRIVER)
    head = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind}
    found = [{**head, **item} for item in plan(wanted, {}, Attempt(), {}, {}).changed]
    return [{**item, "metadata": {**item["metadata"], "name": f"tried-{item['metadata']['name']}"}} for item in found]


def tried(node: RealNode, item: Object) -> Object:
    """What the server would store."""
    answer: Object = node.api.request("POST", f"{RESOURCE_SLICES.path()}?dryRun=All", item)
    return answer


@pytest.mark.parametrize("form", SETTINGS)
@pytest.mark.parametrize("profile", profile_names())
def test_the_slices_of_every_known_node_are_stored_as_they_are_sent(node: RealNode, profile: str, form: str) -> None:
    layout = laid_out(inventory_of(profile), SETTINGS[form])
    healthy, sick = pool_of(layout, lambda gpu: ()).slices, pool_of(layout, lambda gpu: TAINTS).slices
    for item in [*objects(healthy, node), *objects(sick, node)]:
        stored = tried(node, item)
        assert list(not_kept(item["spec"], stored["spec"])) == []
        assert same(with_times(item, times_of([stored])), stored)


@pytest.mark.parametrize("count", [33, 65, 100])
def test_so_are_those_of_nodes_larger_than_any(node: RealNode, count: int) -> None:
    large = switched_node([i % 2 for i in range(count)], buses=[f"{i:04x}:01:00" for i in range(count)])
    for item in objects(pool_of(laid_out(large, PoolSettings(groups=True)), lambda gpu: TAINTS).slices, node):
        stored = tried(node, item)
        assert same(with_times(item, times_of([stored])), stored)


def test_the_limits_that_the_layout_keeps_are_the_servers(node: RealNode) -> None:
    """One device more in a slice is refused: were it not, slices could be larger and fewer."""
    large = switched_node([0] * 66, buses=[f"{i:04x}:01:00" for i in range(66)])
    first, second = objects(pool_of(laid_out(large, PoolSettings()), lambda gpu: TAINTS).slices, node)
    first["spec"]["devices"].append(second["spec"]["devices"][0])
    with pytest.raises(ApiError, match="must have at most 64 items"):
        tried(node, first)
