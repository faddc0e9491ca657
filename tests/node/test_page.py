"""The agent's page, its readiness and its doctor on a real node; the page in a real browser."""

import re
import subprocess
from tempfile import TemporaryDirectory

import msgspec
import pytest

from node_agent.doctor.finding import Examination, Result
from node_agent.reporting.overview import Overview
from tests.node import agent as agents
from tests.node.agent import ask, gpu_pod, offered, registered
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import await_held, cluster, run, start

__all__ = ["cluster"]

pytestmark = pytest.mark.node


def parts(node: RealNode) -> dict[str, str]:
    """How each part of the agent stands."""
    _, text = ask(node, "/readyz?verbose")
    return dict(re.findall(r"^\[[+-]\](\S+) (.*)$", text, flags=re.M))


def pods(node: RealNode) -> dict[str, int]:
    """Of how many devices each pod is shown as the holder."""
    found = msgspec.json.decode(ask(node, "/overview")[1], type=Overview)
    names = [pod.pod for one in found.holdings for pod in one.pods]
    return {name: names.count(name) for name in names}


def browse(node: RealNode, url: str) -> tuple[str, str]:
    """The page as a real browser has it once it is loaded, and what the browser had to complain of."""
    with TemporaryDirectory(prefix="browser-") as profile:
        done = subprocess.run(
            [
                *node.machine.entry,
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                f"--user-data-dir={profile}",
                "--enable-logging=stderr",
                "--dump-dom",
                url,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def test_pods_by_limit_and_by_claim_are_on_the_page_and_readiness_names_what_is_missing(cluster: RealNode) -> None:
    # Else the scheduler makes a claim of the limits as well.
    registered(start(cluster))
    offered(cluster, 8)
    cluster.pods.run(gpu_pod("by-limit", 2))
    await_held(cluster, 2)
    run(cluster, "by-claim")
    wait_until("both pods are shown", lambda: pods(cluster) == {"by-limit": 2, "by-claim": 1})

    page, complaints = browse(cluster, agents.url(cluster, "/?refresh=0"))
    assert complaints == ""
    assert "default/by-limit (main)" in page
    assert "default/by-claim (main)" in page
    assert len(re.findall("<circle", page)) == 8
    assert "<script" not in page

    wait_until("all parts are ready", lambda: "waiting" not in str(parts(cluster)))
    standing = parts(cluster)
    assert ask(cluster, "/readyz")[0] == 200
    assert standing["registration"] == "ready: Registered"
    assert (standing["claims"], standing["slices"]) == ("ready: Registered", "ready: Published")

    said = agents.command(cluster, "doctor", "-o", "json")
    found = {one.check: one for one in msgspec.json.decode(said, type=Examination).findings}
    expected = ("running.agent", "kubelet.registration", "cluster.rights", "owners.slices", "kubelet.pod-resources")
    assert {check: found[check].result for check in expected} == dict.fromkeys(expected, Result.OK)

    for pod in ("by-limit", "by-claim"):
        cluster.api.delete("Pod", pod)
        cluster.pods.wait_gone(pod)
    wait_until("neither pod is shown", lambda: not pods(cluster))

    cluster.stop_kubelet()
    wait_until("the kubelet is missed", lambda: parts(cluster)["registration"] != "ready: Registered")
    assert ask(cluster, "/readyz")[0] == 503
    cluster.start_kubelet()
    wait_until("it is ready again", lambda: ask(cluster, "/readyz")[0] == 200)
    wait_until("the kubelet knows all GPUs", lambda: agents.knows(cluster))
