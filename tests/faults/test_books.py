"""Who holds what, over restarts. Users met: one GPU given out through the device plugin and through DRA (B70).

Claims are tried on a real node; here is what the device plugin's side must know before any claim may be prepared.
"""

from tests.fakes.names import GPU_RESOURCE
from tests.faults.conftest import Place, until


async def test_a_restarted_agent_knows_what_pods_hold_before_it_knows_its_gpus(h200: Place) -> None:
    """The kubelet answers in milliseconds, NVML's start takes seconds."""
    async with h200.kubelet.running():
        async with h200.agent() as agent:
            await h200.allocatable(8)
            await until(lambda: agent.ledger.trouble is None)
            ids, _ = await h200.kubelet.admit("trainer", GPU_RESOURCE, 2)
        (h200.settings.paths.state_dir / "ledger.json").unlink()

        h200.node.faults.hang("nvmlInitWithFlags", seconds=2)
        async with h200.agent() as agent:
            await until(agent.limits.synced.is_set)
            assert agent.keeper.inventory.value.generation == 0, "the driver is not open yet"
            assert {hold.device for grant in agent.ledger.grants.value.values() for hold in grant.holds} == set(ids)
            h200.node.faults.clear()


async def test_a_pod_keeps_its_gpu_in_the_books_while_the_gpu_is_off_the_bus(h200: Place) -> None:
    async with h200.kubelet.running():
        async with h200.agent() as agent:
            await h200.allocatable(8)
            await until(lambda: agent.ledger.trouble is None)
            ids, _ = await h200.kubelet.admit("trainer", GPU_RESOURCE, 8)
        (h200.settings.paths.state_dir / "ledger.json").unlink()

        h200.node.faults.lose(3)
        async with h200.agent() as agent:
            await until(agent.limits.synced.is_set)
            assert {hold.device for grant in agent.ledger.grants.value.values() for hold in grant.holds} == set(ids)
