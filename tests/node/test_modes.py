"""Ways to install the agent that no other file has: each does its work with the rights that it ships.

The usual way is that of most tests, and of the others ``test_pods_with_limits``, ``test_claims``, ``test_sharing_mps``
and ``test_metrics`` have one each; what is installed has the rights of its manifest everywhere, and no more.
"""

from typing import Any

import pytest

from node_agent.computedomain.names import LABEL
from tests.node import agent as agents
from tests.node import installed
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import NotYet, RigError, wait_until
from tests.node.test_claims import claim, pod_with
from tests.node.test_mig_layouts import of_profile, publishes, relabel, says

pytestmark = pytest.mark.node

DOMAINS, GROUP = "compute-domain.nvidia.com", "resource.nvidia.com"


def see_a_claim(node: RealNode, name: str, **more: Any) -> None:
    """A pod with a claim runs, and the claim's status says of what."""
    node.api.create(claim(name, **more))
    node.api.create(pod_with(name, name))
    node.pods.wait(name)
    wait_until("its status tells", lambda: node.api.get("ResourceClaim", name)["status"].get("devices"))


def test_gpus_that_are_cut_by_mig(node: RealNode) -> None:
    agent = agents.start(node, manifest=installed.MIG, offers={})
    try:
        relabel(node, "all-balanced")
        says(node, "success")
        see_a_claim(node, "part", selectors=of_profile("1g.18gb"), deviceClassName="mig.nvidia.com")
        assert agent.refused == []
        node.api.delete("Pod", "part", grace=1)
        node.pods.wait_gone("part")
        relabel(node, "all-disabled")
        publishes(node, gpu=8)
    finally:
        relabel(node, None)
    says(node, None)


def definition(group: str, version: str, kind: str) -> Object:
    """A kind whose objects may be anything."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [served],
        },
    }


def serve(node: RealNode, group: str, version: str, *names: str) -> None:
    """Have the cluster know kinds that other programs bring."""
    for name in names:
        node.api.create(definition(group, version, name))

    def served() -> bool:
        try:
            return all(node.api.list(name) == [] for name in names)
        except RigError as error:
            raise NotYet(str(error)) from error

    wait_until(f"{names} are served", served)


def test_a_compute_domain(node: RealNode) -> None:
    """What NVIDIA's controller and daemon say is the test's; scheduler, kubelet and containerd are real."""
    serve(node, GROUP, "v1beta1", "ComputeDomain", "ComputeDomainClique")
    agent = agents.start(node, manifest=installed.DOMAINS, offers={}, profile="gb200-4")
    body = {"apiVersion": f"{GROUP}/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "training"}}
    domain = node.api.create(body | {"spec": {"numNodes": 0}})["metadata"]["uid"]
    selector = {
        "cel": {"expression": f'device.driver == "{DOMAINS}" && device.attributes["{DOMAINS}"].type == "channel"'}
    }
    classes = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DOMAINS}}
    node.api.create(classes | {"spec": {"selectors": [selector]}})
    parameters = {"apiVersion": f"{GROUP}/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": domain}
    wanted = claim("channel", deviceClassName=DOMAINS)
    wanted["spec"]["devices"]["config"] = [{"opaque": {"driver": DOMAINS, "parameters": parameters}}]
    node.api.create(wanted)
    node.api.create(pod_with("member", "channel"))

    wait_until("the node is labelled", lambda: label(node) == domain)
    ready = {"status": {"nodes": [{"name": node.name, "status": "Ready"}]}}
    node.api.patch("ComputeDomain", "training", ready)
    pod = node.pods.wait("member")
    assert node.pods.execute(pod, ["ls", "/dev/nvidia-caps-imex-channels"]).split() == ["channel0"]
    node.api.delete("Pod", "member", grace=1)
    node.pods.wait_gone("member")
    wait_until("the label is gone", lambda: label(node) is None)
    assert agent.refused == []


def label(node: RealNode) -> str | None:
    found: str | None = node.read()["metadata"]["labels"].get(LABEL)
    return found
