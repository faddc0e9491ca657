"""GPUs that are cut by MIG. Users met: one GPU in MIG mode without MIG devices, or two sizes of them, stopped the whole
node (B26, B27); one instance had two names (B28); after a change the old list stayed, and new devices were offered
before CDI knew them (B30); the driver's own error was hidden behind one about UUIDs (B31); what an operator had cut was
destroyed at the start (B33).
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

import pytest

from node_agent.agent.agent import Agent
from node_agent.allocation.grants import Door
from node_agent.hardware.simulated.mig import Mig
from node_agent.kit.tasks import running
from node_agent.kubelet.embedded import ResourceView
from node_agent.model.gpu import GpuUuid
from tests.fakes.names import KIND
from tests.faults.conftest import Place, Simulate, lines, until

GPU = "nvidia.com/gpu"
SMALL, QUARTER, HALF, LARGE = (f"nvidia.com/mig-{profile}" for profile in ("1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb"))
ERROR = "nvmlDeviceGetMigDeviceHandleByIndex"

Strategy = Literal["none", "single", "mixed"]


def view(place: Place, resource: str) -> ResourceView:
    return place.kubelet.view(resource)


async def offers(place: Place, counts: Mapping[str, int]) -> None:
    """Wait until the kubelet has so many to give out, by resource, and nothing else."""
    await until(lambda: found(place) == counts)


def found(place: Place) -> dict[str, int]:
    return {name: len(one.healthy) for name, one in place.kubelet.resources.value.items() if one.healthy}


def partitions(agent: Agent, gpu: str) -> dict[str, str]:
    """The MIG devices of a GPU by profile and start."""
    live = agent.keeper.inventory.value.partitions.values()
    return {f"{one.profile}@{one.placement.start}": one.uuid for one in live if one.parent == gpu}


def names_in_spec(place: Place) -> set[str]:
    return {device["name"] for device in place.spec()["devices"]}


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("none", {GPU: 6}), ("mixed", {GPU: 6, SMALL: 2}), ("single", {GPU: 6})],
)
async def test_a_gpu_in_mig_mode_without_mig_devices_stops_no_other(
    h200: Place, strategy: Strategy, expected: Mapping[str, int]
) -> None:
    h200.node.faults.cut(0, ["1g.18gb@0", "1g.18gb@1"])
    h200.node.faults.cut(1)
    async with h200.kubelet.running(), h200.agent(h200.with_settings(mig_strategy=strategy)) as agent:
        await offers(h200, expected)
        await h200.ready()
        assert any("is in MIG mode and has no MIG devices" in note for note in agent.status().notices)


@pytest.mark.parametrize("strategy", ["none", "mixed", "single"])
async def test_where_all_gpus_are_in_mig_mode_without_mig_devices_the_agent_stays_up(
    h200: Place, strategy: Strategy
) -> None:
    for gpu in range(8):
        h200.node.faults.cut(gpu)
    async with h200.kubelet.running(), h200.agent(h200.with_settings(mig_strategy=strategy)) as agent:
        await h200.ready()
        assert found(h200) == {}
        h200.node.faults.cut(0, ["1g.18gb@0"])
        await offers(h200, {"none": {}, "mixed": {SMALL: 1}, "single": {GPU: 1}}[strategy])
        assert all(not state.restarts for state in agent.supervisor.states.value.values())


async def test_mig_devices_of_two_sizes_are_not_offered_as_one_thing_and_the_agent_says_so(h200: Place) -> None:
    for gpu in range(8):
        h200.node.faults.cut(gpu, ["1g.18gb@0", "2g.35gb@2"])
    async with h200.kubelet.running(), h200.agent(h200.with_settings(mig_strategy="single")) as agent:
        await h200.ready()
        assert found(h200) == {}
        assert any("no MIG devices that differ: there are 1g.18gb, 2g.35gb" in one for one in agent.status().notices)
        for gpu in range(8):
            h200.node.faults.cut(gpu, ["1g.18gb@0"])
        await offers(h200, {GPU: 8})


@pytest.mark.parametrize(
    ("node", "part", "name"),
    [
        ("a100-40gb-8", "3g.20gb@0", "3g.20gb"),
        ("a100-80gb-8", "7g.80gb@0", "7g.80gb"),
        ("h200-8", "1g.18gb+me@0", "1g.18gb.me"),
    ],
)
async def test_resource_inventory_and_spec_call_a_mig_device_what_the_driver_calls_it(
    simulate: Simulate, node: str, part: str, name: str
) -> None:
    place = simulate(node)
    place.node.faults.cut(0, [part])
    async with place.kubelet.running(), place.agent(place.with_settings(mig_strategy="mixed")) as agent:
        await offers(place, {GPU: len(place.uuids) - 1, f"nvidia.com/mig-{name}": 1})
        (uuid,) = partitions(agent, place.uuid(0)).values()
        assert partitions(agent, place.uuid(0)).keys() == {part}
        assert set(view(place, f"nvidia.com/mig-{name}").devices) == {uuid} < names_in_spec(place)


async def test_a_change_by_another_program_is_taken_up_and_nothing_is_offered_before_cdi_knows_it(h200: Place) -> None:
    h200.node.faults.cut(0, ["4g.71gb@0", "2g.35gb@4", "1g.18gb@6"])
    early: list[str] = []

    async def watched() -> None:
        async for resources in h200.kubelet.resources.watch():
            offered = {one for resource in resources.values() for one in resource.healthy}
            early.extend(offered - (names_in_spec(h200) if h200.spec_file.exists() else set()))

    async with (
        h200.kubelet.running(),
        h200.agent(h200.with_settings(mig_strategy="mixed")) as agent,
        running(watched()),
    ):
        await offers(h200, {GPU: 7, LARGE: 1, QUARTER: 1, SMALL: 1})
        before = partitions(agent, h200.uuid(0))
        await h200.kubelet.admit("trainer", LARGE, 1)

        h200.node.faults.cut(0, ["4g.71gb@0", "3g.71gb@4"])
        await offers(h200, {GPU: 7, LARGE: 1, HALF: 1})
        after = partitions(agent, h200.uuid(0))
        assert after["4g.71gb@0"] == before["4g.71gb@0"]
        assert set(view(h200, HALF).healthy) == {after["3g.71gb@4"]}
        await until(lambda: not names_in_spec(h200) & {before["2g.35gb@4"], before["1g.18gb@6"]})
        assert h200.kubelet.held["trainer"][1] == {before["4g.71gb@0"]}
        await until(lambda: not view(h200, SMALL).devices)
        assert view(h200, LARGE).healthy
    assert early == []


async def test_a_mig_device_that_is_removed_under_a_pod_is_unhealthy_and_its_gpu_is_nobodys_until_the_pod_ends(
    h200: Place,
) -> None:
    h200.node.faults.cut(0, ["3g.71gb@0"])
    async with h200.kubelet.running(), h200.agent(h200.with_settings(mig_strategy="mixed")) as agent:
        await offers(h200, {GPU: 7, HALF: 1})
        ids, _ = await h200.kubelet.admit("trainer", HALF, 1)
        # Written once the kubelet has listed it: an agent that starts later knows from there whose GPU it was.
        await until(lambda: ids[0] in (h200.settings.paths.state_dir / "ledger.json").read_text())

        h200.node.faults.cut(0, enabled=False)
        await until(lambda: view(h200, HALF).devices.keys() == set(ids) and not view(h200, HALF).healthy)
        await until(lambda: h200.uuid(0) in view(h200, GPU).devices)
        assert h200.uuid(0) not in view(h200, GPU).healthy
        assert "held by limit" in await h200.refusal([h200.uuid(0)])

        h200.kubelet.release("trainer")
        await offers(h200, {GPU: 8})
        assert agent.ledger.held_gpus(Door.LIMIT) == frozenset()


async def test_a_gpu_that_is_cut_under_a_pod_gives_nothing_away_until_the_pod_ends(h200: Place) -> None:
    async with h200.serving(h200.with_settings(mig_strategy="mixed")) as agent:
        await h200.kubelet.admit("trainer", GPU, 8)
        await until(lambda: len(agent.ledger.held_gpus(Door.LIMIT)) == 8)
        h200.node.faults.cut(0, ["3g.71gb@0"])
        await until(lambda: HALF in agent.plugins and agent.plugins[HALF].offer.value.devices)
        (device,) = agent.plugins[HALF].offer.value.devices
        assert "held by limit" in str(device.trouble)


async def test_the_drivers_own_error_is_in_the_log_and_in_the_reason_and_costs_no_other_gpu(
    h200: Place, caplog: pytest.LogCaptureFixture
) -> None:
    for gpu in range(2):
        h200.node.faults.cut(gpu, ["3g.71gb@0"])
    async with h200.kubelet.running(), h200.agent(h200.with_settings(mig_strategy="mixed")) as agent:
        await offers(h200, {GPU: 6, HALF: 2})
        h200.node.faults.fail(ERROR, "NO_PERMISSION", gpu=0)
        await offers(h200, {GPU: 6, HALF: 1})
        (sick,) = (one for one in agent.plugins[HALF].offer.value.devices if not one.healthy)
        assert (sick.gpu, sick.gone) == (h200.uuid(0), False)
        assert ERROR in str(sick.trouble)
        assert "NVML error 4" in str(sick.trouble)
        await until(lambda: any("NVML error 4" in str(facts) for facts in lines(caplog, "facts left out")))
        h200.node.faults.clear()
        await offers(h200, {GPU: 6, HALF: 2})


@pytest.mark.parametrize("strategy", ["none", "mixed", "single"])
async def test_what_an_operator_has_cut_is_left_as_it_is_by_an_agent_that_starts_and_ends(
    h200: Place, strategy: Strategy
) -> None:
    h200.node.faults.cut(0, ["3g.71gb@0", "1g.18gb@6"])
    h200.node.faults.cut(1)
    before = [(mig.enabled, dict(mig.instances)) for mig in migs(h200)]
    async with h200.kubelet.running(), h200.agent(h200.with_settings(mig_strategy=strategy)) as agent:
        await h200.ready()
        await agent.keeper.look()
    assert [(mig.enabled, mig.instances) for mig in migs(h200)] == before


def migs(place: Place) -> list[Mig]:
    return [mig for slot in range(len(place.uuids)) if (mig := place.node.faults.gpu(slot).mig) is not None]


async def test_an_xid_that_is_confined_to_one_mig_device_withdraws_that_one(h200: Place) -> None:
    h200.node.faults.cut(0, ["3g.71gb@0", "3g.71gb@4"])
    async with h200.kubelet.running(), h200.agent(h200.with_settings(mig_strategy="mixed")) as agent:
        await offers(h200, {GPU: 7, HALF: 2})
        await until(lambda: not agent.board.report.value.known_of(GpuUuid(h200.uuid(0))).causes)
        (sick, fit) = (
            one for _, one in sorted((one.placement, one) for one in agent.keeper.inventory.value.partitions.values())
        )
        h200.node.faults.xid(0, 48, instance=sick.instance, compute_instance=sick.compute_instance)
        await until(lambda: view(h200, HALF).healthy == {fit.uuid})


async def test_a_pod_is_given_its_mig_device_by_a_cdi_name_whose_nodes_are_the_gpus_and_its_own(h200: Place) -> None:
    h200.node.faults.cut(0, ["3g.71gb@0", "3g.71gb@4"])
    async with h200.kubelet.running(), h200.agent(h200.with_settings(mig_strategy="mixed")):
        await offers(h200, {GPU: 7, HALF: 2})
        answers = [(await h200.kubelet.admit(f"pod-{number}", HALF, 1)) for number in range(2)]
        nodes = [nodes_of(h200.spec(), [device.name for device in answer.cdi_devices]) for _, answer in answers]
    minor = h200.node.faults.gpu(0).place.minor
    assert [answer.cdi_devices[0].name for _, answer in answers] == [f"{KIND}={ids[0]}" for ids, _ in answers]
    assert all(len(paths) == 3 and paths[0] == f"/dev/nvidia{minor}" for paths in nodes)
    assert not set(nodes[0][1:]) & set(nodes[1][1:])


def nodes_of(spec: Mapping[str, Any], names: Collection[str]) -> list[str]:
    devices = {f"{spec['kind']}={device['name']}": device for device in spec["devices"]}
    return [node["path"] for name in names for node in devices[name]["containerEdits"]["deviceNodes"]]


async def test_another_strategy_is_put_in_force_while_the_agent_runs_and_no_mig_device_is_under_two_names(
    h200: Place,
) -> None:
    for gpu in range(8):
        h200.node.faults.cut(gpu, ["3g.71gb@0"])
    twice: set[str] = set()

    async def watched() -> None:
        async for resources in h200.kubelet.resources.watch():
            twice.update(resources.get(GPU, ResourceView()).healthy & resources.get(HALF, ResourceView()).healthy)

    settings = h200.with_settings(mig_strategy="mixed")
    async with h200.kubelet.running(), h200.agent(settings) as agent, running(watched()):
        await offers(h200, {HALF: 8})
        await agent.live.apply(h200.with_settings(mig_strategy="single"), agent.keeper.inventory.value)
        await offers(h200, {GPU: 8})
        await until(lambda: HALF not in agent.plugins)
        await agent.live.apply(h200.with_settings(mig_strategy="none"), agent.keeper.inventory.value)
        await until(lambda: not view(h200, GPU).devices)
    assert not twice
