"""The image as the Dockerfile makes it, and the shipped manifests with it on a real node.

The manifests are taken as they are. What is added is what a node without GPUs needs to have simulated ones.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from node_agent.allocation.checkpoint import decode
from tests.node import agent as agents
from tests.node.rig import agent_image, manifests
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import NAMESPACE, cluster, devices, run
from tests.node.test_daemonset import available, gpu_node
from tests.node.test_sharing_mps import FOUR, daemon_pids, mps_pod, records, runs, shared_memory

__all__ = ["cluster", "gpu_node"]

pytestmark = pytest.mark.node

LARGEST = 250 * 1024 * 1024
UNWANTED = ("usr/bin/gcc", "usr/bin/cc", "usr/bin/pip", "opt/node-agent/bin/pip", "usr/bin/git")
LEFT_OVERS = ("var/lib/apt/lists/", "var/cache/apt/archives/", "root/.cache/", "tmp/")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "agent.tar"
    agent_image.write_archive(path)
    return path


@pytest.fixture
def imported(gpu_node: RealNode, archive: Path) -> RealNode:
    """A GPU node that has the image."""
    gpu_node.machine.run(["ctr", "--namespace=k8s.io", "images", "import", str(archive)], timeout=120)
    return gpu_node


def read(archive: tarfile.TarFile, descriptor: Object) -> bytes:
    blob = archive.extractfile(f"blobs/{descriptor['digest'].replace(':', '/')}")
    assert blob is not None
    return blob.read()


def files(archive: tarfile.TarFile, manifest: Object) -> Iterator[tarfile.TarInfo]:
    for layer in manifest["layers"]:
        blob = archive.extractfile(f"blobs/{layer['digest'].replace(':', '/')}")
        with tarfile.open(fileobj=blob) as content:
            yield from content


def test_the_image_is_small_and_has_no_compiler_installer_or_cache_in_it(archive: Path) -> None:
    with tarfile.open(archive) as opened:
        index = opened.extractfile("index.json")
        assert index is not None
        manifest = json.loads(read(opened, json.load(index)["manifests"][0]))
        config = json.loads(read(opened, manifest["config"]))["config"]
        content = list(files(opened, manifest))
    assert (config["Entrypoint"], config["Cmd"]) == (["node-agent"], ["run"])
    assert config["Labels"]["org.opencontainers.image.title"] == "gpu-node-agent"

    named = [file.name.removeprefix("./") for file in content if not file.isdir()]
    assert "opt/node-agent/bin/node-agent" in named
    assert not set(UNWANTED) & set(named)
    assert [name for name in named if name.startswith(LEFT_OVERS)] == []
    size = sum(file.size for file in content)
    print(f"the image has {size / 1e6:.0f} MB")
    assert size < LARGEST


def simulated(*arguments: str, folder: Path = manifests.MANIFESTS) -> Object:
    """The shipped DaemonSet over a simulated node, whose files and driver are below the host's /tmp."""
    manifest = manifests.only(manifests.built(folder), "DaemonSet")
    spec = manifest["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container["args"] += ["--simulate=h200-8", *arguments]
    # The rig has the node's own folders there, with what the agent mounts in them.
    container["volumeMounts"].append({"name": "simulated", "mountPath": "/tmp", "mountPropagation": "HostToContainer"})
    spec["volumes"].append({"name": "simulated", "hostPath": {"path": "/tmp"}})
    return manifest


def test_the_shipped_daemonset_serves_limits_and_claims_from_the_image(imported: RealNode) -> None:
    imported.api.create(simulated())
    name = wait_until("the agent is there", lambda: available(imported, 1), timeout=90)
    agents.offered(imported, 8)
    wait_until("the slices are there", lambda: len(devices(imported)) == 8, timeout=20)

    limited = imported.pods.run(agents.gpu_pod("limited", 2))
    claiming, claimed = run(imported, "claiming", 3)
    seen = [imported.pods.execute(pod, ["sh", "-c", "ls /dev/nvidia[0-9]*"]).split() for pod in (limited, claiming)]
    assert [len(nodes) for nodes in seen] == [2, 3]
    assert sorted(seen[1]) == sorted(f"/dev/nvidia{one.removeprefix('gpu-')}" for one in claimed)
    assert not set(seen[0]) & set(seen[1])

    agent = imported.api.get("Pod", name, NAMESPACE)
    for health in ("live", "ready"):
        imported.pods.execute(agent, ["node-agent", "status", "--check", health], "agent")
    assert "8" in imported.pods.execute(agent, ["node-agent", "status"], "agent")

    # While there is an agent to unprepare it.
    imported.api.delete("Pod", "claiming")
    imported.pods.wait_gone("claiming")


def holders_known(node: RealNode) -> bool:
    """Whether the agent has heard of all claims of the node, without which nobody new gets a device."""
    ledger = node.machine.path("/var/lib/gpu-node-agent/ledger.json")
    return ledger.exists() and not decode(ledger.read_bytes()).unreconciled


def test_daemons_of_mps_and_their_clients_outlive_the_agents_pod(imported: RealNode) -> None:
    config = imported.machine.folder / "mps.yaml"
    config.write_text(yaml.safe_dump({"version": "v1", **FOUR}))
    imported.api.create(simulated(f"--config={config}", folder=manifests.MANIFESTS / "overlays" / "mps"))
    first = wait_until("the agent is there", lambda: available(imported, 1), timeout=90)
    agents.offered(imported, 32)
    wait_until("all holders are known", lambda: holders_known(imported))
    pod = imported.pods.run(mps_pod("stays"))
    imported.pods.execute(pod, ["touch", "/dev/shm/kept"])
    before, pids = imported.pods.container_id(pod), sorted(daemon_pids(imported))

    imported.api.delete("Pod", first, NAMESPACE)
    imported.pods.wait_gone(first, NAMESPACE, timeout=60)
    assert all(runs(imported, pid) for pid in pids)
    assert wait_until("another agent is there", lambda: available(imported, 1), timeout=90) != first
    agents.offered(imported, 32)
    assert sorted(daemon_pids(imported)) == pids
    assert imported.pods.container_id(pod) == before
    assert "kept" in shared_memory(imported, pod)
    assert imported.pods.execute(pod, ["sh", "-c", "test -S /run/nvidia-mps/control && echo there"]).strip() == "there"

    imported.api.delete("Pod", "stays")
    imported.pods.wait_gone("stays")
    config.write_text("version: v1")
    wait_until("all daemons are gone", lambda: not records(imported), timeout=60)
    assert not any(runs(imported, pid) for pid in pids)
    assert "/run/nvidia/mps" not in imported.machine.run(["cat", "/proc/mounts"])
