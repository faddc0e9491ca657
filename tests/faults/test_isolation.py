"""What a pod can see. Users met: a pod that asked for nothing saw every GPU through an environment variable, and one
that had a GPU was given it twice (B71).
"""

import pytest

from node_agent.config.resolve import resolve
from tests.fakes.names import GPU_RESOURCE
from tests.faults.conftest import Place


async def test_by_default_a_pod_gets_cdi_names_alone(h200: Place) -> None:
    async with h200.serving():
        ids, response = await h200.kubelet.admit("trainer", GPU_RESOURCE, 2)

    assert {device.name for device in response.cdi_devices} == {
        f"node-agent.gpu.nvidia.com/gpu={device}" for device in ids
    }
    assert not (response.envs or response.annotations or response.mounts or response.devices)


async def test_every_container_is_told_to_see_nothing_by_the_variable_that_pods_could_set(h200: Place) -> None:
    """NVIDIA's own runtime, where it is the default one, adds devices by it."""
    async with h200.serving():
        assert "NVIDIA_VISIBLE_DEVICES=void" in h200.spec()["containerEdits"]["env"]


async def test_two_cdi_strategies_inject_each_device_once(h200: Place) -> None:
    flags = {"flags.plugin.deviceListStrategy": ["cdi-annotations", "cdi-cri"]}
    resolved = resolve(file=None, environment={}, flags=flags)
    assert any("twice" in notice for notice in resolved.notices)
    strategies = resolved.settings.device_list_strategies
    async with h200.serving(h200.with_settings(device_list_strategies=strategies)):
        _, response = await h200.kubelet.admit("trainer", GPU_RESOURCE, 2)

    assert len(response.cdi_devices) == 2
    assert not response.annotations


async def test_the_variable_is_used_only_where_it_was_asked_for_and_its_price_is_said(h200: Place) -> None:
    resolved = resolve(file=None, environment={}, flags={"flags.plugin.deviceListStrategy": "envvar"})
    assert any("NVIDIA_VISIBLE_DEVICES" in notice and "every GPU" in notice for notice in resolved.notices)
    strategies = resolved.settings.device_list_strategies
    async with h200.serving(h200.with_settings(device_list_strategies=strategies)):
        ids, response = await h200.kubelet.admit("trainer", GPU_RESOURCE, 2)

    assert set(response.envs["NVIDIA_VISIBLE_DEVICES"].split(",")) == set(ids)
    assert not response.cdi_devices


async def test_every_device_node_is_named_so_that_the_containers_cgroup_keeps_it(h200: Place) -> None:
    """Rights given past the runtime's books are lost at the next daemon-reload."""
    async with h200.serving():
        spec = h200.spec()
    for edits in (spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])):
        for node in edits["deviceNodes"]:
            assert {"path", "type", "major", "permissions"} <= node.keys()


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["GPU-nobody"], "has no device 'GPU-nobody' on this node"),
        (["all"], "has no device 'all' on this node"),
        ([""], "has no device '' on this node"),
    ],
)
async def test_an_id_that_was_never_offered_is_refused(h200: Place, ids: list[str], words: str) -> None:
    async with h200.serving():
        assert words in await h200.refusal(ids)


async def test_a_gpu_out_of_service_is_refused_with_the_reason(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.recovery_action(3, "gpu-reset")
        await h200.only_withdrawn(3)
        assert "the driver asks for recovery" in await h200.refusal([h200.uuid(3)])
