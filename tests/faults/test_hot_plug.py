"""GPUs that come late, go and come back. Users met: a GPU that showed up after the start was never offered, and a node
without a GPU made the agent quit (B10); names moved when a card dropped out, so that another card was meant (B46).
"""

import msgspec
import pytest
from msgspec.structs import replace

from node_agent.agent.supervisor import Condition
from node_agent.hardware.simulated import SimulatedNode, install
from tests.faults.conftest import Place, Simulate, until


@pytest.fixture
def l4(simulate: Simulate) -> Place:
    """Two L4."""
    return simulate("l4-2")


async def test_an_agent_on_a_node_without_a_gpu_stays_up_and_is_ready(simulate: Simulate) -> None:
    bare = simulate("none")
    async with bare.kubelet.running(), bare.agent() as agent:
        await bare.ready()
        assert bare.view.registrations == 0
        assert not bare.spec_file.exists()
        states = agent.supervisor.states.value.values()
        assert all(state.condition is Condition.RUNNING and not state.restarts for state in states)


async def test_a_gpu_that_is_plugged_into_an_empty_node_is_offered_and_keeps_its_id(l4: Place) -> None:
    l4.node.faults.unplug(0)
    l4.node.faults.unplug(1)
    async with l4.kubelet.running(), l4.agent():
        await l4.ready()
        l4.node.faults.plug(1)
        first = await l4.allocatable(1)
        await l4.ready()

        l4.node.faults.unplug(1)
        gone = await l4.allocatable(0)
        assert set(gone.devices) <= {l4.uuid(1)}

        l4.node.faults.plug(1)
        again = await l4.allocatable(1)

    assert set(first.healthy) == set(again.healthy) == {l4.uuid(1)}
    assert again.registrations == 1


async def test_a_gpu_that_a_pod_holds_stays_in_the_list_when_it_is_pulled_out(l4: Place) -> None:
    """The kubelet may crash on a device that goes while a pod holds it."""
    async with l4.serving() as agent:
        ids, _ = await l4.kubelet.admit("trainer", "nvidia.com/gpu", 2)
        l4.node.faults.unplug(0)
        await l4.only_withdrawn(0)
        assert l4.kubelet.held["trainer"][1] == set(ids)
        await until(lambda: [gone.uuid for gone in agent.keeper.inventory.value.missing] == [l4.uuid(0)])
        await l4.only_withdrawn(0)

        l4.node.faults.plug(0)
        await l4.only_withdrawn()


async def test_with_the_intervals_that_are_shipped_a_gpu_that_is_plugged_in_is_offered_after_one_rescan(
    l4: Place,
) -> None:
    l4.node.faults.unplug(1)
    async with l4.kubelet.running(), l4.agent(replace(l4.settings, rescan_interval=1.0)):
        await l4.allocatable(1)
        l4.node.faults.plug(1)
        await l4.allocatable(2)


async def test_the_other_names_stay_when_the_first_gpu_is_gone_and_the_agent_restarts(h200: Place) -> None:
    async with h200.serving() as agent:
        before = {gpu.uuid: gpu.name for gpu in agent.keeper.inventory.value.gpus}

    h200.node.faults.unplug(0)
    async with h200.kubelet.running(), h200.agent() as agent:
        await h200.allocatable(7)
        after = {gpu.uuid: gpu.name for gpu in agent.keeper.inventory.value.gpus}
        indices = {str(gpu.uuid): gpu.index for gpu in agent.keeper.inventory.value.gpus}

    assert after == {uuid: name for uuid, name in before.items() if uuid != h200.uuid(0)}
    assert indices[h200.uuid(1)] == 0, "the index moved, as an index does"


async def test_names_stay_with_their_gpus_when_a_reboot_probes_them_in_another_order(h200: Place) -> None:
    async with h200.serving() as agent:
        before = {gpu.uuid: gpu.name for gpu in agent.keeper.inventory.value.gpus}

    minors = [place.minor for place in h200.node.profile.gpus]
    places = [
        msgspec.structs.replace(place, minor=minor)
        for place, minor in zip(h200.node.profile.gpus, reversed(minors), strict=True)
    ]
    rebooted = SimulatedNode(msgspec.structs.replace(h200.node.profile, gpus=tuple(places)))
    rebooted.write_tree(h200.tree, devices="placeholder")
    with install(rebooted):
        async with h200.kubelet.running(), h200.agent() as agent:
            await h200.allocatable(8)
            gpus = agent.keeper.inventory.value.gpus
            nodes = {
                device["name"]: device["containerEdits"]["deviceNodes"][0]["path"] for device in h200.spec()["devices"]
            }

    assert {gpu.uuid: gpu.name for gpu in gpus} == before
    for gpu in gpus:
        assert nodes[gpu.uuid] == nodes[gpu.name] == f"/dev/nvidia{gpu.minor}"


async def test_a_gpu_put_in_the_place_of_another_gets_a_name_of_its_own(h200: Place) -> None:
    async with h200.serving() as agent:
        before = {str(gpu.uuid): gpu.name for gpu in agent.keeper.inventory.value.gpus}

    places = list(h200.node.profile.gpus)
    stranger = "GPU-00000000-1111-2222-3333-444444444444"
    places[0] = msgspec.structs.replace(places[0], uuid=stranger)
    changed = SimulatedNode(msgspec.structs.replace(h200.node.profile, gpus=tuple(places)))
    changed.write_tree(h200.tree, devices="placeholder")
    with install(changed):
        async with h200.kubelet.running(), h200.agent() as agent:
            await h200.allocatable(8)
            after = {str(gpu.uuid): gpu.name for gpu in agent.keeper.inventory.value.gpus}

    assert after[stranger] not in before.values()
    assert {uuid: name for uuid, name in after.items() if uuid in before} == {
        uuid: name for uuid, name in before.items() if uuid in after
    }


async def test_a_damaged_file_of_names_costs_no_gpu(h200: Place) -> None:
    (h200.settings.paths.state_dir).mkdir()
    (h200.settings.paths.state_dir / "names.json").write_bytes(b'{"version": 1, "names": {"GPU-')
    async with h200.serving():
        assert (await h200.status()).gpus[0].name.startswith("gpu-")
    await until((h200.settings.paths.state_dir / "names.json.damaged").exists)
