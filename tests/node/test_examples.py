"""The shipped examples on a real node, each held to the outcome that it states itself.

Those without a configuration of their own share one agent.
"""

from collections.abc import Iterator

import pytest

from tests.node import agent as agents
from tests.node import examples, installed
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.test_claims import serves_claims

pytestmark = pytest.mark.node

MANIFESTS = {
    **dict.fromkeys(("mps", "claim-mps", "shares"), installed.MPS),
    **dict.fromkeys(("mig", "claim-mig"), installed.MIG),
}
"""Of those that need rights for which the usual modes do not ask."""
CONFIGURED = [name for name in examples.names() if examples.example(name).settings or name in MANIFESTS]
PLAIN = [name for name in examples.names() if name not in CONFIGURED]


@pytest.fixture(scope="module")
def shared(real_node: RealNode) -> Iterator[RealNode]:
    serves_claims(real_node, agents.start(real_node))
    yield real_node
    real_node.clean()


@pytest.mark.parametrize("name", PLAIN)
def test_an_example_comes_out_as_it_says(shared: RealNode, name: str) -> None:
    shown = examples.example(name)
    try:
        examples.shown(shared, shown)
    finally:
        gone(shared, shown)


@pytest.mark.parametrize("name", CONFIGURED)
def test_an_example_with_a_configuration_comes_out_as_it_says(node: RealNode, name: str) -> None:
    shown = examples.example(name)
    agent = agents.start(node, shown.settings, manifest=MANIFESTS.get(name, installed.BASE), offers={})
    if not shown.settings.get("agent", {}).get("frontDoors", {}).get("devicePlugin", True):
        agents.offered(node, 0)
    serves_claims(node, agent)
    try:
        examples.shown(node, shown)
    finally:
        gone(node, shown)


def gone(node: RealNode, shown: examples.Example) -> None:
    """Take an example away. The shell in its pods does not heed SIGTERM, which would take half a minute each."""
    for one in reversed(shown.objects):
        metadata: Object = one["metadata"]
        node.api.delete(one["kind"], metadata["name"], grace=1 if one["kind"] == "Pod" else None)
        node.api.created.remove(next(made for made in node.api.created if made["metadata"]["name"] == metadata["name"]))
    for pod in examples.pods(shown):
        node.pods.wait_gone(pod["metadata"]["name"])
