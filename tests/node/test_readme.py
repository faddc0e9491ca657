"""What the README tells a newcomer to type on a real node, typed word for word.

But for the commands that bring the node up and down: the session has one.
"""

import os
import re

import pytest

from tests.node.rig import agent_image, binaries
from tests.node.rig.command import run
from tests.node.rig.kustomized import PROJECT
from tests.node.rig.node import RealNode

pytestmark = pytest.mark.node

HEADING = "## Try it on a real one-node Kubernetes"
BROUGHT = ("make rig", "export KUBECONFIG=", "make rig-down")


def commands() -> list[str]:
    section = (PROJECT / "README.md").read_text().split(HEADING)[1].split("\n## ")[0]
    (block,) = re.findall(r"```console\n(.*?)```", section, flags=re.S)
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def test_from_the_readme_to_a_pod_with_gpus_by_copying_commands(node: RealNode) -> None:
    agent_image.bring(node.machine)
    assert [one for one in commands() if one.startswith(BROUGHT)] == [commands()[0], commands()[1], commands()[-1]]
    binaries.build(binaries.KUBECTL)
    environment = {
        "KUBECONFIG": str(node.kubeconfig),
        "PATH": f"{binaries.KUBECTL.target}:{os.environ['PATH']}",
    }
    try:
        said = [typed(command, environment) for command in commands()[2:-1]]
        assert re.fullmatch(r"(/dev/nvidia\d\n){2}", said[-1])
    finally:
        typed("kubectl delete --filename deploy/examples/limit.yaml --grace-period=1", environment)
        typed("kubectl label node --all nvidia.com/gpu.present-", environment)
        typed("kubectl delete --kustomize deploy/daemonset/overlays/simulated", environment)


def typed(command: str, environment: dict[str, str]) -> str:
    # Half a minute, which is what it waits for by itself, may be little on a busy machine.
    patient = command.replace("kubectl wait ", "kubectl wait --timeout=180s ")
    return run(["bash", "-c", f"cd {PROJECT} && {patient}"], environment=environment, timeout=200)
