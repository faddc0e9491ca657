"""The agent's pod at the limit of its memory: the kernel kills it, and nothing that anybody holds is lost.

How much it takes in a long life is measured by ``make life``.
"""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.node import agent as agents
from tests.node import installed
from tests.node.agent import ask, gpu_pod
from tests.node.installed import AgentPod
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import RigError, wait_until
from tests.node.test_claims import cluster, devices, run

__all__ = ["cluster"]

pytestmark = pytest.mark.deaths

LIST = ["sh", "-c", "ls /dev/nvidia[0-9]*"]
SHIPPED = 256 << 20
V2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()


def limit_of(node: RealNode, agent: AgentPod) -> Path:
    """The file with the limit of the agent's container, in either version of cgroups."""
    pod = node.api.get("Pod", agent.name, installed.NAMESPACE)
    below = node.pods.runtime_spec(pod, "agent")["linux"]["cgroupsPath"].lstrip("/")
    return Path("/sys/fs/cgroup", "" if V2 else "memory", below, "memory.max" if V2 else "memory.limit_in_bytes")


def lower(limit: Path) -> None:
    """Bring the limit so near to what the container cannot give back that a little more is too much."""
    stat = dict(line.split() for line in limit.with_name("memory.stat").read_text().splitlines())
    kept = int(stat["anon" if V2 else "total_rss"])
    for more in (16, 8, 4, 2, 1):
        with suppress(OSError):  # the kernel refuses a limit to which it cannot bring the use down
            limit.write_text(str(kept + (more << 20)))


def seen(node: RealNode, pod: Object) -> set[str]:
    return set(node.pods.execute(pod, LIST).split())


def test_an_agent_that_is_killed_for_want_of_memory_loses_nothing(cluster: RealNode) -> None:
    agent = agents.start(cluster)
    wait_until("the slices are there", lambda: len(devices(cluster)) == 8)
    pods = [cluster.pods.run(gpu_pod("by-limit", 2)), run(cluster, "by-claim", 2)[0]]
    containers, held = [cluster.pods.container_id(pod) for pod in pods], [seen(cluster, pod) for pod in pods]
    limit = limit_of(cluster, agent)
    assert int(limit.read_text()) == SHIPPED

    lower(limit)
    wait_until("the kernel has killed it", lambda: killed_by_a_scrape(cluster, agent))

    assert reason(cluster, agent) == "OOMKilled"
    agents.registered(agent)
    assert [cluster.pods.container_id(pod) for pod in pods] == containers
    others = [cluster.pods.run(gpu_pod("next-limit", 2)), run(cluster, "next-claim", 2)[0]]
    everything = [*held, *(seen(cluster, pod) for pod in others)]
    assert [len(paths) for paths in everything] == [2, 2, 2, 2]
    assert len(set().union(*everything)) == 8, "no GPU is given out twice"


def killed_by_a_scrape(node: RealNode, agent: AgentPod) -> bool:
    """Its first scrape has the agent load what writes the answer, which is more than it may take."""
    for path in ("/metrics", "/status", "/"):
        with suppress(RigError, ValueError):
            ask(node, path)
    return agent.restarts > 0


def reason(node: RealNode, agent: AgentPod) -> str:
    """Why the agent's container ended the last time."""
    (container,) = node.api.get("Pod", agent.name, installed.NAMESPACE)["status"]["containerStatuses"]
    return str(container["lastState"]["terminated"]["reason"])
