"""Beside the real Node Feature Discovery, with its own definitions and rights: `make test-nfd`.

Its programs run on the node as the agent does, outside of pods. What they read of the host and the simulation has
elsewhere is mounted for them alone.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from node_agent.hardware.numa import numa_nodes
from tests.node import agent as agents
from tests.node.rig import binaries
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.program import Program
from tests.node.rig.waiting import wait_until
from tests.node.test_claims import prepare_cluster, start_process
from tests.node.test_labels import OTHERS, STAMP, expected, labels, reported
from tests.node.test_topology_object import found, resources

pytestmark = pytest.mark.nfd

MANIFESTS = (
    "nfd-crds/nfd-api-crds.yaml",
    "noderesourcetopologies-crd/noderesourcetopologies.yaml",
    "rbac/master-serviceaccount.yaml",
    "rbac/master-clusterrole.yaml",
    "rbac/master-clusterrolebinding.yaml",
    "rbac/worker-serviceaccount.yaml",
    "rbac/worker-role.yaml",
    "rbac/worker-rolebinding.yaml",
    "rbac-topologyupdater/topologyupdater-serviceaccount.yaml",
    "rbac-topologyupdater/topologyupdater-clusterrole.yaml",
    "rbac-topologyupdater/topologyupdater-clusterrolebinding.yaml",
)
STATE = "/var/lib/gpu-node-agent-topology"
# A folder in the place of another one, seen by the one program that is started with it.
MOUNTED = ["unshare", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh"]


class Nfd:
    """Node Feature Discovery on a node: its programs are started by name, each with its own service account."""

    def __init__(self, node: RealNode) -> None:
        self._node = node
        self._programs = binaries.build(binaries.NFD)
        self._ports = iter(range(8080, 8180))

    def install(self) -> None:
        """Make its definitions and rights, for as long as the node is there."""
        base = binaries.NFD.source / "deployment" / "base"
        for file in MANIFESTS:
            for manifest in yaml.safe_load_all((base / file).read_text()):
                self._node.api.create(manifest)
        self._node.api.created.clear()

    def start(self, name: str, *arguments: str, mount: tuple[Path, str] | None = None) -> Program:
        kubeconfig = self._node.service_account_kubeconfig(name)
        command = [str(self._programs[name]), f"--kubeconfig={kubeconfig}", f"--port={next(self._ports)}", *arguments]
        if mount is not None:
            command = [*MOUNTED, *map(str, mount), *command]
        environment = {"NODE_NAME": self._node.name, "KUBERNETES_NAMESPACE": "default"}
        return self._node.machine.start(name, command, environment=environment)


@pytest.fixture(scope="module")
def nfd_node() -> Iterator[RealNode]:
    alignment = {"topologyManagerPolicy": "best-effort", "topologyManagerScope": "pod"}
    with RealNode(kubelet_settings=alignment) as node:
        Nfd(node).install()
        yield node


@pytest.fixture
def cluster(nfd_node: RealNode) -> Iterator[RealNode]:
    yield prepare_cluster(nfd_node)
    nfd_node.clean()
    for feature in nfd_node.api.list("NodeFeature"):
        nfd_node.api.delete("NodeFeature", feature["metadata"]["name"], feature["metadata"]["namespace"])
    mine = {key: None for key in [*labels(nfd_node), STAMP, OTHERS]}
    nfd_node.api.patch("Node", nfd_node.name, {"metadata": {"labels": mine}}, "")


@pytest.fixture
def nfd(cluster: RealNode) -> Nfd:
    return Nfd(cluster)


def seconds_to(node: RealNode, wanted: dict[str, str], since: float) -> float:
    took = agents.seconds_until(lambda: labels(node) == wanted, since, timeout=10)
    print(f"the node had the labels after {took:.1f} s")
    return took


def remove_labels(node: RealNode) -> None:
    command = [agents.PROGRAM, "labels", "--remove", "--config", str(node.machine.folder / "agent.yaml")]
    node.machine.run(["env", f"NODE_NAME={node.name}", *command])


def test_the_master_puts_the_labels_of_the_agents_object_on_the_node_within_seconds_and_takes_them_away(
    cluster: RealNode, nfd: Nfd
) -> None:
    node = cluster
    node.api.patch("Node", node.name, {"metadata": {"labels": {OTHERS: "7"}}}, "")
    before = node.read()["metadata"]["labels"]
    nfd.start("nfd-master")
    agent = start_process(node, labels={"writer": "auto"})
    wait_until("the labels are there", lambda: labels(node) == expected(), timeout=30)
    assert "left alone" not in reported(node, "labels")

    began = time.monotonic()
    agents.simulate(node, "xid", "--gpu", "gpu-3", "--code", "79")
    assert seconds_to(node, expected(7, "withdrawn"), began) < 5
    agents.simulate(node, "restore-gpu", "--gpu", "gpu-3")
    wait_until("the labels are those of before", lambda: labels(node) == expected())

    agents.simulate(node, "driver", "not-loaded")
    wait_until("the agent knows", lambda: "driver unavailable" in agent.text(), timeout=40)
    agent.stop()
    assert labels(node) == expected()

    remove_labels(node)
    assert seconds_to(node, {}, time.monotonic()) < 5
    assert node.read()["metadata"]["labels"] == before


def test_the_worker_makes_labels_of_the_agents_file_and_takes_them_away_with_it(cluster: RealNode, nfd: Nfd) -> None:
    node = cluster
    etc = Path("/var/lib/host-etc")
    folder = etc / "kubernetes" / "node-feature-discovery" / "features.d"
    node.machine.path(folder).mkdir(parents=True)
    nfd.start("nfd-master")
    nfd.start("nfd-worker", "--feature-sources=local", "--label-sources=local", "--owner-refs=", mount=(etc, "/etc"))
    file = {"gfd": {"outputFile": str(folder / "gpu-node-agent")}}
    agent = agents.launch_process(
        node, {"flags": file, "agent": {"labels": {"writer": "nfd-file"}, "kubeconfig": str(node.kubeconfig)}}
    )
    wait_until("the labels are there", lambda: labels(node) == expected(), timeout=20)
    began = time.monotonic()
    agents.simulate(node, "xid", "--gpu", "gpu-3", "--code", "79")
    assert seconds_to(node, expected(7, "withdrawn"), began) < 5
    agent.stop()
    remove_labels(node)
    assert seconds_to(node, {}, time.monotonic()) < 5


def test_the_agents_topology_object_says_what_the_updaters_says_and_gives_way_to_it(
    cluster: RealNode, nfd: Nfd
) -> None:
    node = cluster
    reports = {"topology": True, "kubeletConfig": str(node.machine.folder / "etc" / "kubelet.yaml")}
    node.machine.run(["rm", "-rf", STATE])
    start_process(node, nodeReports=reports, state_dir=STATE)
    agents.offered(node, 8)
    node.pods.run(agents.gpu_pod("three", 3))
    wait_until("three are taken", lambda: free(node) == ["1", "4"])
    ours = found(node)

    kubelet = f"--kubelet-config-uri=file://{node.machine.folder}/etc/kubelet.yaml"
    updater = nfd.start("nfd-topology-updater", kubelet, "--sleep-interval=1s", mount=(host_sys(node), "/sys"))
    wait_until("it writes", lambda: "nfd-topology-updater" in writers(node), timeout=30)
    node.api.delete("NodeResourceTopology", node.name)
    wait_until("it makes an object of its own", lambda: writers(node) == {"nfd-topology-updater"}, timeout=20)
    theirs = found(node)
    assert attributes(ours) == attributes(theirs) | {"nodeTopologyPodsFingerprintMethod": "all"}
    assert attributes(ours)["topologyManagerPolicy"] == "best-effort"
    assert [zone(one) for one in ours["zones"]] == [zone(one) for one in by_name(theirs["zones"])]

    node.pods.run(agents.gpu_pod("one", 1))
    wait_until("the agent stands back", lambda: "nfd-topology-updater" in reported(node, "topology"), timeout=20)
    wait_until("the updater has seen it", lambda: "0" in free(node) or "3" in free(node), timeout=20)
    assert writers(node) == {"nfd-topology-updater"}

    updater.stop()
    node.api.delete("NodeResourceTopology", node.name)
    node.pods.run(agents.gpu_pod("another", 1))
    wait_until("the agent writes again", lambda: writers(node) == {"gpu-node-agent"})


def attributes(made: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in made["attributes"]}


def by_name(entries: list[Object]) -> list[Object]:
    return sorted(entries, key=lambda entry: str(entry["name"]))


def zone(made: Object) -> Object:
    """A zone without CPUs and memory: where the kubelet gives these out to all pods alike, the updater omits them."""
    kept = [one for one in by_name(made["resources"]) if one["name"] not in ("cpu", "memory")]
    return made | {"costs": by_name(made["costs"]), "resources": kept}


def free(node: RealNode) -> list[str]:
    """How many GPUs are available on each NUMA node, fewest first."""
    return sorted(of[agents.GPU][2] for of in resources(node).values() if agents.GPU in of)


def writers(node: RealNode) -> set[str]:
    return {entry["manager"] for entry in found(node).get("metadata", {}).get("managedFields", ())}


def host_sys(node: RealNode) -> Path:
    """A /sys with the simulated NUMA nodes, and what of a real one the updater will not do without."""
    tree, devices = Path("/var/lib/host-sys"), "devices/system/node"
    simulated = agents.driver_root(node) / "sys" / devices
    made = node.machine.path(tree)
    shutil.copytree(node.machine.path(simulated), made / devices)
    (made / "bus" / "node" / "devices").mkdir(parents=True)
    nodes = numa_nodes(made)
    for folder in sorted((made / devices).glob("node[0-9]*")):
        (folder / "hugepages").mkdir()
        for cpu in nodes[int(folder.name.removeprefix("node"))].cpus:
            (folder / f"cpu{cpu}" / "topology").mkdir(parents=True)
            (folder / f"cpu{cpu}" / "topology" / "core_id").write_text(f"{cpu}\n")
        (made / "bus" / "node" / "devices" / folder.name).symlink_to(f"../../../{devices}/{folder.name}")
    return tree
