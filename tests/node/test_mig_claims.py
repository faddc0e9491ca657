"""MIG devices that claims make, on a real node: the scheduler counts, the agent cuts, containers get their own part."""

import time
from functools import partial

import pytest
from msgspec.structs import replace

from node_agent.dra.slices import PoolSettings, laid_out, pool_of
from tests.fakes.nodes import inventory_of
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import (
    DRIVER,
    allocated,
    attribute,
    claim,
    cluster,
    devices,
    pod_with,
    slices,
    start_process,
)

__all__ = ["cluster"]

pytestmark = pytest.mark.node

MIG = "mig.nvidia.com"
LIST = ["sh", "-c", "ls -d /dev/nvidia[0-9]* /dev/nvidia-caps/*"]


def selecting(expression: str) -> list[Object]:
    return [{"cel": {"expression": expression}}]


def of_profile(profile: str) -> list[Object]:
    return selecting(f'device.attributes["{DRIVER}"].profile == "{profile}"')


def test_a_mix_of_partitions_is_made_for_claims_and_the_whole_gpu_waits_for_their_end(cluster: RealNode) -> None:
    agent = start_process(cluster, mig={"onDemand": ["gpu-0"]})
    published = devices(cluster)
    assert sum(attribute(one, "type") == "mig" for one in published.values()) == 25

    mix = {"three": "3g.71gb", "two": "2g.35gb", "one": "1g.18gb", "another": "1g.18gb"}
    began = time.monotonic()
    for name, profile in mix.items():
        cluster.api.create(claim(name, selectors=of_profile(profile), deviceClassName=MIG))
        cluster.api.create(pod_with(name, name))
    pods = {name: cluster.pods.wait(name) for name in mix}
    print(f"\n3g + 2g + 1g + 1g from claims to running pods: {time.monotonic() - began:.2f} s")

    seen = {name: cluster.pods.execute(pod, LIST).split() for name, pod in pods.items()}
    caps = [path for paths in seen.values() for path in paths if "nvidia-cap" in path]
    assert all(sum(path == "/dev/nvidia0" for path in paths) == 1 and len(paths) == 3 for paths in seen.values()), seen
    assert len(caps) == len(set(caps)) == 8, "each pod has the two capabilities of its own partition"

    def told() -> bool:
        found = [cluster.api.get("ResourceClaim", name)["status"].get("devices") or [{}] for name in mix]
        data = [entries[0].get("data", {}).get("migDevice", {}) for entries in found]
        return [one.get("profile") for one in data] == list(mix.values()) and len({one["uuid"] for one in data}) == 4

    wait_until("each claim's status tells its partition", told)

    uuid = attribute(published["gpu-0"], "uuid")
    whole = claim("whole", selectors=selecting(f'device.attributes["{DRIVER}"].uuid == "{uuid}"'))
    cluster.api.create(whole)
    cluster.api.create(pod_with("whole", "whole"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("whole")
    more = claim("more", selectors=of_profile("1g.18gb"), deviceClassName=MIG)
    cluster.api.create(more)
    cluster.api.create(pod_with("more", "more"))
    assert "cannot allocate all claims" in cluster.pods.why_pending("more"), "seven compute slices are taken"
    for name in ("more", *mix):
        cluster.api.delete("Pod", name)
    for name in ("more", *mix):
        cluster.pods.wait_gone(name)
        cluster.api.delete("ResourceClaim", name)
    pod = cluster.pods.wait("whole")
    assert allocated(cluster, "whole") == ["gpu-0"]
    assert cluster.pods.execute(pod, ["sh", "-c", "ls -d /dev/nvidia[0-9]*"]).split() == ["/dev/nvidia0"]
    assert agent.text().count(" partition removed") == 4


def has_none_to_wipe(node: RealNode) -> None:
    """Have the kubelet wipe the slices of drivers that are gone, which it does at its start or half a minute later."""
    pool = {"name": "gone", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node.name, "pool": pool, "devices": []}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "gone"}, "spec": spec}
    node.api.create(made)
    node.restart_kubelet()
    wait_until("the kubelet has wiped all slices", lambda: not slices(node))


@pytest.mark.parametrize(("profile", "count"), [("h200-8", 208), ("a100-40gb-16", 416)])
def test_the_scheduler_finds_its_way_through_all_devices(cluster: RealNode, profile: str, count: int) -> None:
    """Without an agent: slices as it would publish them if every GPU changed its mode without a reset."""
    node = inventory_of(profile)
    hopper = inventory_of("h200-8").gpus[0].compute_capability
    node = replace(node, gpus=tuple(replace(gpu, compute_capability=hopper) for gpu in node.gpus))
    pool = pool_of(laid_out(node, PoolSettings(on_demand=lambda gpu: True)), lambda device: ())
    assert len(pool.devices) == count
    has_none_to_wipe(cluster)
    for one in pool.slices:
        of_pool = {"name": "pool", "generation": 1, "resourceSliceCount": len(pool.slices)}
        spec = {"driver": DRIVER, "nodeName": cluster.name, "pool": of_pool, **one.content}
        metadata = {"name": f"{cluster.name}-{one.name}"}
        cluster.api.create(
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        )
    names = [profile.name for profile in node.profiles[node.gpus[0].uuid]]
    small = min(names, key=len)
    last = f'device.attributes["{DRIVER}"].uuid == "{attribute(devices(cluster)[node.gpus[-1].name], "uuid")}"'
    for name, selectors, classes in (
        ("first", of_profile(small), MIG),
        ("second", of_profile(small), MIG),
        ("last", selecting(last), DRIVER),
    ):
        cluster.api.create(claim(name, selectors=selectors, deviceClassName=classes))
        began = time.monotonic()
        cluster.api.create(pod_with(name, name))
        wait_until(f"claim {name} is allocated", partial(is_allocated, cluster, name), every=0.01)
        seconds = time.monotonic() - began
        print(f"\n{count} devices: {name} allocated {allocated(cluster, name)} after {seconds:.3f} s")
        assert seconds < 60
        # No driver is there that could unprepare the claim, so the pod would never end by itself.
        cluster.api.delete("Pod", name, grace=0)


def is_allocated(node: RealNode, name: str) -> bool:
    return bool(node.api.get("ResourceClaim", name).get("status", {}).get("allocation"))
