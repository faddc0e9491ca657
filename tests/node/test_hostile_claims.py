"""What a user of any namespace may put into a claim of his own, on a real API server: at worst it fails that claim."""

import sys
from collections.abc import Iterator

import pytest

from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import DRIVER, claim, cluster, pod_with, run, start_process

__all__ = ["cluster"]

pytestmark = pytest.mark.node


@pytest.fixture
def deep_json() -> Iterator[None]:
    """Lets the test itself write and read JSON that is nested as deep as the API server takes it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


def configured(name: str, parameters: Object) -> Object:
    wanted = claim(name)
    wanted["spec"]["devices"]["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    return wanted


def nested(times: int) -> Object:
    inner: object = []
    for _ in range(times):
        inner = [inner]
    return {"a": inner}


@pytest.mark.usefixtures("deep_json")
def test_a_claim_that_is_nested_without_end_fails_by_itself(cluster: RealNode) -> None:
    agent = start_process(cluster)
    cluster.api.create(configured("deep", nested(5000)))
    cluster.api.create(pod_with("deep", "deep"))
    run(cluster, "beside")
    wait_until(
        "the pod is told what is wrong",
        lambda: any("claim config[0].opaque.parameters" in one for one in cluster.pods.events("deep")),
    )
    # One that starts with the claim there has it in its list.
    agent.stop()
    again = start_process(cluster, name="agent-2")
    run(cluster, "after")
    assert "Traceback" not in agent.text() + again.text()
    cluster.api.delete("Pod", "deep")
    cluster.pods.wait_gone("deep")
