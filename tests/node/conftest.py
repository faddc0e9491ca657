"""The fixtures of tests on a real Kubernetes node. Such a test has the marker ``node`` and asks for ``node``.

- ``node``: the session's ``RealNode`` (``rig/node.py`` says what it can do). Whatever a test makes through
  ``node.api``, ``node.pods`` and ``node.machine`` is gone when the test has ended, and the kubelet runs again.
- ``real_node``: the same without cleaning up, for fixtures of a wider scope.

The node starts with the first test that asks for it and lives as long as the session, so tests share its history: names
of device plugins' resources and drivers stay known to it. A test that needs settings or a past of its own enters a
``RealNode`` itself, which costs about five seconds. The rig blocks: asynchronous tests use ``asyncio.to_thread``.

`make test-node` shares the tests out among several processes, each with a node of its own: a test touches nothing of
the host that another node's test may touch too.

When a test fails, its report has the ends of the logs of all programs on the node, the agent's among them.
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.node.rig.node import RealNode

NODE = pytest.StashKey["RealNode"]()


@pytest.fixture(scope="session")
def real_node(request: pytest.FixtureRequest) -> "Iterator[RealNode]":
    # Imported here: a run without tests of this kind loads nothing of the rig.
    from tests.node.rig import traces  # noqa: PLC0415
    from tests.node.rig.node import RealNode  # noqa: PLC0415

    with RealNode() as node:
        request.config.stash[NODE] = node
        yield node
        del request.config.stash[NODE]
    assert traces.of(node.machine.name) == []


@pytest.fixture
def node(real_node: "RealNode") -> "Iterator[RealNode]":
    yield real_node
    real_node.clean()


def _pods_of_agents(node: "RealNode") -> Iterator[tuple[str, str]]:
    """The ends of the logs of agents that run as pods, those of pods that have just ended too."""
    for log in sorted(node.machine.path("/var/log/pods").glob("gpu-node-agent_gpu-node-agent-*/agent/*.log")):
        yield log.parent.parent.name, "\n".join(log.read_text(errors="replace").splitlines()[-60:])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    node = item.config.stash.get(NODE, None)
    if report.failed and node is not None:
        report.sections += [(f"{name} on the node", tail) for name, tail in _pods_of_agents(node)]
        # The latest first: what a test has started, then the kubelet, and last what says least of the agent.
        report.sections += [(f"{name} on the node", tail) for name, tail in reversed(node.machine.tails().items())]
    return report
