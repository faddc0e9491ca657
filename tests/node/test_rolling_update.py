"""A rolling update with a surge, on a real node: two agents at once, while pods with claims and limits run and start.

What a node offers by limits alone is shown in ``test_device_plugin_life_cycle``.
"""

import signal
import time
from typing import NamedTuple

import pytest

from tests.node import agent as agents
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.program import Program
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import DRIVER, attribute, await_nothing_held, cluster, devices, run, start_process

__all__ = ["cluster"]

pytestmark = pytest.mark.node

HELD = f"{DRIVER}/held"


class Stored(NamedTuple):
    """What is stored of a slice at one moment: whose it is, how often it was changed, its pool's generation."""

    uid: str
    changes: int
    generation: int
    held: tuple[tuple[str, str], ...]
    """Devices that are held by limits, each with the time since when."""


@pytest.fixture
def agent(cluster: RealNode) -> Program:
    forget_holders(cluster)
    # Of a pool that another test has published the generation would go on.
    for one in cluster.api.list("ResourceSlice"):
        cluster.api.remove("ResourceSlice", one["metadata"]["name"])
    agent = start_process(cluster)
    await_nothing_held(cluster)
    return agent


def forget_holders(node: RealNode) -> None:
    """Let the next agent know of no other test's pods: what these had by limits is given back after half a minute."""
    node.machine.path(agents.LEDGER).unlink(missing_ok=True)


def stored(node: RealNode) -> tuple[Stored, ...]:
    slices = node.api.list("ResourceSlice", fieldSelector=f"spec.driver={DRIVER}")
    return tuple(
        Stored(
            uid=one["metadata"]["uid"],
            changes=one["metadata"]["generation"],
            generation=one["spec"]["pool"]["generation"],
            held=tuple(sorted(held_since(one).items())),
        )
        for one in slices
    )


def held_since(one: Object) -> dict[str, str]:
    return {
        device["name"]: taint["timeAdded"]
        for device in one["spec"].get("devices") or ()
        for taint in device.get("taints") or ()
        if taint["key"] == HELD
    }


def changes(node: RealNode) -> int:
    return sum(one.changes for one in stored(node))


def by_limit(node: RealNode, program: Program, name: str) -> str:
    """A pod that gets a GPU by its limit from this agent; answers the GPU's name once it is kept from claims."""
    before = len(agents.allocated(program))
    node.pods.run(agents.gpu_pod(name, 1))
    ((uuid,),) = agents.allocated(program)[before:]
    device = next(one for one, content in devices(node).items() if attribute(content, "uuid") == uuid)
    wait_until("claims are kept from it", lambda: device in held_since_all(node), every=0.02)
    return device


def held_since_all(node: RealNode) -> dict[str, str]:
    return dict(one for part in stored(node) for one in part.held)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_update_leaves_claims_limits_and_slices_alone(
    cluster: RealNode, agent: Program, number: signal.Signals
) -> None:
    agents.offered(cluster, 8)
    pod, names = run(cluster, "stays", 2)
    container = cluster.pods.container_id(pod)
    taken = [by_limit(cluster, agent, "limit-of-old")]
    agents.offered(cluster, 6)
    before = changes(cluster)

    with (
        agents.watched(lambda: stored(cluster), every=0.03) as seen,
        agents.watched(lambda: len(agents.healthy_at_kubelet(cluster)), every=0.05) as at_kubelet,
        agents.watched(lambda: cluster.allocatable(agents.GPU)) as in_status,
    ):
        new = start_process(cluster, name="agent-2", run_dir="/run/gpu-node-agent-2")
        agents.registered(new)
        for name in ("both-1", "both-2"):
            names += run(cluster, name)[1]
        taken.append(by_limit(cluster, new, "limit-of-new"))
        time.sleep(2)
        agent.send(number)
        names += run(cluster, "ends")[1]
        agent.wait()
        taken.append(by_limit(cluster, new, "limit-after"))
        time.sleep(2)

    assert len({*names, *taken}) == 8
    assert cluster.pods.container_id(pod) == container
    # What claims take is withdrawn from limits, one after the other; nothing else ever is.
    assert at_kubelet == {6, 5, 4, 3}
    assert in_status <= {6, 5, 4, 3}
    print(f"{changes(cluster) - before} writes, {len(seen)} states")
    assert changes(cluster) - before == 2, "one for each GPU that was taken by a limit"
    assert {len(parts) for parts in seen} == {1}
    assert {part.generation for parts in seen for part in parts} == {1}
    since = {(device, time) for parts in seen for part in parts for device, time in part.held}
    assert since == set(held_since_all(cluster).items()), "a taint that is there stays, with its time"
    for name in ("both-1", "both-2", "ends"):
        assert not [event for event in cluster.pods.events(name) if event.startswith("FailedPrepare")]
