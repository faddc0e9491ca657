"""Runtimes beside containerd 2: containerd 1.7.35 below Kubernetes 1.34, and Debian's podman: `make test-runtimes`.

Kubernetes 1.34 is here because later ones ask their runtime more than containerd 1.7 knows.
"""

from collections.abc import Iterator

import pytest

from node_agent.cdi.names import qualified
from tests.node import agent as agents
from tests.node.rig import binaries, image, packages
from tests.node.rig.machine import Machine
from tests.node.rig.node import RealNode
from tests.node.rig.program import Program
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import prepare_cluster, run, start_process

pytestmark = pytest.mark.runtimes

GPUS = ["sh", "-c", "ls /dev/nvidia[0-9]* 2>/dev/null || true"]
ENABLED = "enable_cdi = true"
CONTAINERD_1_7 = f"""version = 2
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{pause}}"
  {ENABLED}
  cdi_spec_dirs = ["{{cdi}}"]
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{{plugins}}"
  conf_dir = "{{network}}"
"""


@pytest.fixture(scope="module")
def older() -> Iterator[RealNode]:
    with RealNode(
        kubernetes=binaries.KUBERNETES_1_34, containerd=binaries.CONTAINERD_1_7, containerd_config=CONTAINERD_1_7
    ) as node:
        yield node


@pytest.fixture
def cluster(older: RealNode) -> Iterator[RealNode]:
    yield prepare_cluster(older)
    older.clean()


@pytest.fixture
def agent(cluster: RealNode) -> Program:
    return start_process(cluster)


def test_it_is_the_old_runtime(older: RealNode) -> None:
    assert older.read()["status"]["nodeInfo"]["containerRuntimeVersion"] == "containerd://1.7.35"


def test_containerd_1_7_with_cdi_on_gives_pods_their_gpus_by_limit_and_by_claim(
    cluster: RealNode, agent: Program
) -> None:
    agents.offered(cluster, 8)
    by_limit = cluster.pods.run(agents.gpu_pod("by-limit", 2))
    by_claim, _ = run(cluster, "by-claim", 3)
    one, other = (set(cluster.pods.execute(pod, GPUS).split()) for pod in (by_limit, by_claim))
    assert (len(one), len(other)) == (2, 3)
    assert not one & other
    mounts = {mount["destination"] for mount in cluster.pods.runtime_spec(by_limit)["mounts"]}
    assert "/usr/bin/nvidia-smi" in mounts, "with the driver's files"


def test_containerd_1_7_takes_the_annotations_of_nvidias_plugin_too(cluster: RealNode) -> None:
    agents.start_process(cluster, {"flags": {"plugin": {"deviceListStrategy": "cdi-annotations"}}})
    pod = cluster.pods.run(agents.gpu_pod("annotated", 2))
    assert len(cluster.pods.execute(pod, GPUS).split()) == 2


def test_containerd_1_7_as_it_comes_starts_pods_without_their_gpus(cluster: RealNode) -> None:
    """CDI is off by default there, and names that nobody resolves are no error: `node-agent doctor` is who says so."""
    config = cluster.machine.folder / "etc" / "containerd.toml"
    text = config.read_text()
    assert ENABLED in text
    try:
        restart_containerd(cluster, text.replace(ENABLED, ""))
        agents.start_process(cluster)
        pod = cluster.pods.run(agents.gpu_pod("blind", 2))
        assert cluster.pods.execute(pod, GPUS).split() == []
    finally:
        restart_containerd(cluster, text)


def restart_containerd(node: RealNode, config: str) -> None:
    """Start containerd with another configuration, and await that the kubelet has found it again."""
    path = node.machine.folder / "etc" / "containerd.toml"
    path.write_text(config)
    node.machine.programs["containerd"].stop()
    program = binaries.CONTAINERD_1_7.target / "containerd"
    containerd = node.machine.start("containerd", [str(program), "--config", str(path)])
    containerd.brings_about("containerd answers", lambda: node.machine.run(["ctr", "version"]))
    node.restart_kubelet()


# podman, which has neither a kubelet nor an API server.


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A machine where the agent has written its specs, and busybox is the root file system of a container."""
    packages.ensure({"podman": "podman", "runc": "runc"})
    with Machine("podman") as made:
        made.path("/run/cdi").mkdir()
        image.fill_with_busybox(made.folder / "root")
        made.start("agent", [agents.PROGRAM, "run", "--simulate", "h200-8"], environment={"NODE_NAME": "podman"})
        wait_until("the agent has written its specs", lambda: list(made.path("/run/cdi").glob("*.json")))
        yield made


def podman(machine: Machine, *arguments: str) -> str:
    """What a container prints of the GPUs that it sees."""
    ways = ["--root=/var/lib/containers", "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--runtime=runc"]
    options = ["--rm", "--network=none", f"--cgroup-parent=/{machine.name}", "--log-driver=none"]
    root = str(machine.folder / "root")
    return machine.run(["podman", *ways, "run", *options, *arguments, "--rootfs", root, *GPUS])


def test_podman_gives_a_container_the_gpu_that_it_names(machine: Machine) -> None:
    assert podman(machine).split() == []
    assert podman(machine, f"--device={qualified('gpu-3')}").split() == ["/dev/nvidia3"]
    two = podman(machine, f"--device={qualified('gpu-1')}", f"--device={qualified('gpu-6')}")
    assert two.split() == ["/dev/nvidia1", "/dev/nvidia6"]
    assert len(podman(machine, f"--device={qualified('all')}").split()) == 8
