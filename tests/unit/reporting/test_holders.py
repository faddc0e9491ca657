"""Who holds what: the ledger's grants, with the containers of which the kubelet tells."""

from collections.abc import Mapping

from msgspec.structs import replace

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.kit.latest import Latest
from node_agent.kubelet.podresources import PodDevice
from node_agent.model.gpu import GpuUuid
from node_agent.reporting.holders import Holders, Holding, holdings

DRIVER = "gpu.nvidia.com"
CLAIM = Holder(door=Door.CLAIM, id="uid-1", name="team/four")
LIMIT = Holder(door=Door.LIMIT, id="nvidia.com/gpu/GPU-0", name="nvidia.com/gpu")
TRAIN = PodDevice(namespace="team", pod="train", container="main", of="nvidia.com/gpu", device="GPU-0")
CLAIMED = replace(TRAIN, of=DRIVER, device="gpu-1", claim="team/four", pool="node")


def hold(device: str, number: int = 0, **more: str) -> Hold:
    return Hold(device=device, gpus=(GpuUuid(f"GPU-{number}"),), **more)  # type: ignore[arg-type]


def grant(holder: Holder, *holds: Hold) -> Grant:
    return Grant(holder=holder, holds=holds)


def test_a_limits_device_is_with_the_container_that_the_kubelet_names() -> None:
    held = hold("GPU-0")
    assert holdings(DRIVER, [grant(LIMIT, held)], [TRAIN]) == (Holding(holder=LIMIT, hold=held, pods=(TRAIN,)),)


def test_a_device_of_which_the_kubelet_says_nothing_yet_is_held_by_no_container() -> None:
    (found,) = holdings(DRIVER, [grant(LIMIT, hold("GPU-0"))], [replace(TRAIN, device="GPU-1")])
    assert found.pods == ()


def test_a_claim_shared_by_two_pods_is_with_both() -> None:
    other = replace(CLAIMED, pod="other")
    (found,) = holdings(DRIVER, [grant(CLAIM, hold("gpu-1", 1, pool="node"))], [CLAIMED, other])
    assert found.pods == (CLAIMED, other)


def test_each_device_of_a_claim_is_a_holding_of_its_own() -> None:
    found = holdings(
        DRIVER,
        [grant(CLAIM, hold("gpu-1", 1, pool="node"), hold("gpu-2", 2, pool="node"))],
        [CLAIMED, replace(CLAIMED, device="gpu-2")],
    )
    assert [(one.hold.device, one.pods[0].device) for one in found] == [("gpu-1", "gpu-1"), ("gpu-2", "gpu-2")]


def test_shares_of_one_device_are_told_apart() -> None:
    one, two = (hold("gpu-1", 1, pool="node", share_id=share) for share in ("a", "b"))
    first, second = holdings(
        DRIVER,
        [grant(CLAIM, one), grant(replace(CLAIM, id="uid-2"), two)],
        [replace(CLAIMED, share_id="a"), replace(CLAIMED, share_id="b", pod="second")],
    )
    assert ([pod.pod for pod in first.pods], [pod.pod for pod in second.pods]) == (["train"], ["second"])


def test_a_device_of_another_driver_in_the_same_claim_is_not_taken_for_the_agents() -> None:
    (found,) = holdings(DRIVER, [grant(CLAIM, hold("gpu-1", 1, pool="node"))], [replace(CLAIMED, of="nic.example.com")])
    assert found.pods == ()


def test_the_view_follows_the_ledger_and_the_kubelet() -> None:
    grants: Latest[Mapping[str, Grant]] = Latest({})
    pods: Latest[tuple[PodDevice, ...]] = Latest((TRAIN,))
    holders = Holders(DRIVER, grants, pods)
    assert not holders.value
    grants.set({LIMIT.id: grant(LIMIT, hold("GPU-0"))})
    assert [holding.pods for holding in holders.value] == [(TRAIN,)]
    pods.set(())
    assert [holding.pods for holding in holders.value] == [()]
