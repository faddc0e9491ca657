"""One look at how GPUs are cut: each one for itself, with what runs on it."""

import asyncio
from collections.abc import Iterator

import pytest

from node_agent.agent.partitions import Cuts, cuts_once
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.hardware.simulated import SimulatedNode, install, load_profile
from node_agent.model.gpu import PartitionMode
from node_agent.partition.plan import State
from tests.fakes.nodes import inventory_of


@pytest.fixture
def settings() -> Settings:
    return resolve(None, {}, {"agent.nodeName": "node-a"}).settings


@pytest.fixture(params=["a30-2"])
def node(request: pytest.FixtureRequest) -> Iterator[SimulatedNode]:
    with install(SimulatedNode(load_profile(request.param))) as node:
        yield node


def look(settings: Settings, profile: str = "a30-2") -> Cuts:
    return asyncio.run(cuts_once(settings, inventory_of(profile)))


def test_each_gpu_is_seen_with_its_rules_and_what_lies_on_it(settings: Settings, node: SimulatedNode) -> None:
    first, second = look(settings).gpus
    assert first.rules is second.rules, "GPUs of one model share their rules"
    assert first.state == State(mode=PartitionMode.DISABLED)
    assert [str(piece) for piece in second.state.lying] == ["1g.6gb at 0", "1g.6gb at 1", "2g.12gb at 2"]
    assert second.state.in_use == frozenset()
    assert not first.resetless


def test_what_processes_run_on_is_in_use(settings: Settings, node: SimulatedNode) -> None:
    mig = node.faults.gpu(1).mig
    assert mig is not None
    (instance,) = [one.id for one in mig.instances.values() if one.start == 2]
    node.faults.start_process(1, 4711, instance=instance, compute_instance=0)
    assert [str(piece) for piece in look(settings).gpus[1].state.in_use] == ["2g.12gb at 2"]


def test_a_gpu_that_does_not_answer_hides_no_other(settings: Settings, node: SimulatedNode) -> None:
    name = inventory_of("a30-2").gpus[1].name
    node.faults.lose(1)
    cuts = look(settings)
    assert [gpu.name for gpu in cuts.gpus] == [inventory_of("a30-2").gpus[0].name]
    assert "off the bus" in cuts.failed[name]


@pytest.mark.parametrize("node", ["h200-8"], indirect=True)
def test_boards_of_this_age_need_no_reset(settings: Settings, node: SimulatedNode) -> None:
    assert all(gpu.resetless for gpu in look(settings, "h200-8").gpus)


@pytest.mark.parametrize("node", ["l4-2", "vgpu-1"], indirect=True)
def test_a_gpu_that_cannot_be_cut_has_no_mode_and_no_rules(
    settings: Settings, node: SimulatedNode, request: pytest.FixtureRequest
) -> None:
    for gpu in look(settings, request.node.callspec.params["node"]).gpus:
        assert (gpu.state, gpu.rules.pieces) == (State(mode=None), ())
