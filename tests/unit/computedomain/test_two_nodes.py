"""Two nodes of one rack: agents, their kubelets' calls, and in two network namespaces the daemons of a ComputeDomain.

The test does what NVIDIA's controller and daemon do (driver 0.5.0-dev): it makes the claims, starts a stand-in for
nvidia-imex with what the agent gives the daemon's container, and writes the daemon's word into the clique's object. The
API server is the tests' own, so this needs root for the namespaces and no real kubelet."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from node_agent.computedomain.edits import KIND
from node_agent.computedomain.names import CLIQUES, DOMAINS, DRIVER, LABEL
from node_agent.kube.resources import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Object
from node_agent.wire import dra_v1_pb2 as v1
from tests.fakes.api_server import ApiServer
from tests.fakes.dra_kubelet import DRA, DraKubelet
from tests.unit.computedomain.world import CLIQUE, SYSTEM, TEAM, config

# By `make test-fabric` alone: root and minutes on a busy machine are more than the other tests ask for.
pytestmark = pytest.mark.node

PROGRAM = str(Path(sys.executable).with_name("node-agent"))
STAND_IN = ["-m", "tests.fakes.imex_daemon"]
REPOSITORY = Path(__file__).resolve().parents[3]


async def until(condition: Callable[[], Any], seconds: float = 120) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


@dataclass
class Tray:
    """A node: its folder, its daemon's address in its network namespace, and its kubelet."""

    name: str
    address: str
    namespace: str
    folder: Path
    kubelet: DraKubelet

    def inside(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, sys.executable, *STAND_IN, *command]

    def answers(self) -> str:
        """What nvidia-imex-ctl -q would say in the daemon's container."""
        asked = subprocess.run(
            self.inside("query", self.address, "50005"), cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        return asked.stdout.strip()

    async def call(self, method: str, claim: Object) -> Any:
        """The kubelet's call for one claim, and the driver's answer."""
        _, stub = self.kubelet.newest.stub({"v1.DRAPlugin": DRA["v1.DRAPlugin"]}, "DRAPlugin")
        metadata = claim["metadata"]
        named = [v1.Claim(uid=metadata["uid"], namespace=metadata["namespace"], name=metadata["name"])]
        request = getattr(v1, f"{method}Request")(claims=named)
        return (await getattr(stub, method)(request)).claims[metadata["uid"]]

    def edits(self, name: str) -> Object:
        """What the container runtime does for a CDI name of a claim's."""
        for file in (self.folder / "cdi").glob("*compute-domain*.json"):
            for device in json.loads(file.read_text())["devices"]:
                if f"{KIND}={device['name']}" == name:
                    return dict(device["containerEdits"])
        raise AssertionError(f"no spec has {name}")


@contextmanager
def namespaces(*addresses: str) -> Iterator[list[str]]:
    """A network namespace for each address, all of them joined as the pods of a cluster are."""
    tag = f"i{os.getpid() % 100000}"
    with ExitStack() as opened:

        def ip(*words: str, undo: str = "") -> None:
            subprocess.run(["ip", *words], check=True)
            if undo:
                opened.callback(subprocess.run, ["ip", *undo.split()], check=False)

        ip("netns", "add", f"{tag}-hub", undo=f"netns del {tag}-hub")
        ip("-n", f"{tag}-hub", "link", "add", "br0", "type", "bridge")
        ip("-n", f"{tag}-hub", "link", "set", "br0", "up")
        made = []
        for number, address in enumerate(addresses):
            name = f"{tag}-{number}"
            ip("netns", "add", name, undo=f"netns del {name}")
            hub = ["netns", f"{tag}-hub"]
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{number}", *hub)
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
            ip("-n", f"{tag}-hub", "link", "set", f"p{number}", "master", "br0", "up")
            made.append(name)
        yield made


@contextmanager
def agent(folder: Path) -> Iterator[None]:
    command = [PROGRAM, "run", "--simulate", "gb200-4", "--config", str(folder / "agent.yaml")]
    with open(folder / "log", "wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()


@asynccontextmanager
async def tray(server: ApiServer, name: str, address: str, namespace: str) -> AsyncIterator[Tray]:
    """A node with a running agent over a simulated GB200 tray."""
    server.put(NODES, {"metadata": {"name": name}})
    with TemporaryDirectory(prefix="tray-", dir="/tmp") as made, ExitStack() as opened:
        folder = Path(made)
        for needed in ("kubelet/plugins", "kubelet/plugins_registry", "cdi"):
            (folder / needed).mkdir(parents=True)
        (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(server)))
        (folder / "agent.yaml").write_text(yaml.safe_dump(settings(folder, name)))
        opened.enter_context(agent(folder))
        kubelet = DraKubelet(folder / "kubelet/plugins_registry")
        async with kubelet.running():
            here = Tray(name=name, address=address, namespace=namespace, folder=folder, kubelet=kubelet)
            await until(lambda: [one.name for one in kubelet.instances.value if one.name == DRIVER])
            yield here


def kubeconfig(server: ApiServer) -> Object:
    return {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": server.url}}],
        "users": [{"name": "it", "user": {"token": "t"}}],
    }


def settings(folder: Path, name: str) -> Object:
    paths = {key: str(folder / place) for key, place in (("kubeletDir", "kubelet"), ("cdiDir", "cdi"))}
    paths |= {"stateDir": str(folder / "state"), "runDir": str(folder / "run")}
    doors = {"devicePlugin": False, "dra": False, "computeDomains": True}
    section = {"nodeName": name, "kubeconfig": str(folder / "kubeconfig"), "paths": paths, "frontDoors": doors}
    return {"version": "v1", "agent": {**section, "labels": {"writer": "node"}}}


class Cluster:
    """What NVIDIA's controller and its daemons do."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        body = {"metadata": {"name": "training", "namespace": TEAM}, "spec": {"numNodes": 0}}
        self.domain = str(server.put(DOMAINS, body)["metadata"]["uid"])

    def claim(self, tray: Tray, kind: str) -> Object:
        """An allocated claim of one of the controller's templates."""
        parameters = config(f"ComputeDomain{kind.capitalize()}Config", self.domain)
        devices = {
            "results": [{"request": "r", "driver": DRIVER, "pool": tray.name, "device": f"{kind}-0"}],
            "config": [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}],
        }
        metadata = {"name": f"{tray.name}-{kind}", "namespace": TEAM if kind == "channel" else SYSTEM}
        return self.server.put(RESOURCE_CLAIMS, {"metadata": metadata, "status": {"allocation": {"devices": devices}}})

    def label(self, tray: Tray) -> str | None:
        (node,) = (one for one in self.server.objects(NODES) if one["metadata"]["name"] == tray.name)
        return (node["metadata"].get("labels") or {}).get(LABEL)

    def started(self, tray: Tray, name: str, peers: list[str]) -> "subprocess.Popen[bytes]":
        """Start the daemon in its container: with the environment and the folder that the agent gives it."""
        edits = tray.edits(name)
        environment = dict(word.split("=", 1) for word in edits["env"])
        assert environment["CLIQUE_ID"] == CLIQUE
        assert environment["COMPUTE_DOMAIN_UUID"] == self.domain
        (mount,) = edits["mounts"]
        folder = Path(mount["hostPath"])
        (folder / "nodes.cfg").write_text("\n".join(peers))
        text = (folder / "imexd.cfg.tmpl").read_text()
        text = text.replace("{{.IMEXCmdBindInterfaceIP}}", tray.address)
        (folder / "imexd.cfg").write_text(text.replace("{{.IMEXDaemonNodesConfigPath}}", str(folder / "nodes.cfg")))
        return subprocess.Popen(tray.inside("serve", str(folder / "imexd.cfg")), cwd=REPOSITORY)

    def tell(self, *trays: Tray) -> None:
        """Each daemon says in the clique's object what it is."""
        words = {tray.name: "Ready" if tray.answers() == "READY" else "NotReady" for tray in trays}
        daemons = [{"nodeName": name, "cliqueID": CLIQUE, "status": word} for name, word in words.items()]
        metadata = {"name": f"{self.domain}.{CLIQUE}", "namespace": SYSTEM}
        self.server.put(CLIQUES, {"metadata": metadata, "daemons": daemons})


async def test_workloads_start_when_the_daemons_of_both_nodes_have_met_and_leave_nothing_behind() -> None:
    addresses = ["10.199.7.1", "10.199.7.2"]
    with namespaces(*addresses) as joined, ExitStack() as daemons:
        async with (
            ApiServer() as server,
            tray(server, "tray-1", addresses[0], joined[0]) as first,
            tray(server, "tray-2", addresses[1], joined[1]) as second,
        ):
            trays, cluster = (first, second), Cluster(server)
            published = [one for one in server.objects(RESOURCE_SLICES) if one["spec"]["driver"] == DRIVER]
            assert sorted(one["spec"]["nodeName"] for one in published) == ["tray-1", "tray-2"]

            workloads = {one.name: cluster.claim(one, "channel") for one in trays}
            waiting = {
                one.name: asyncio.create_task(one.call("NodePrepareResources", workloads[one.name])) for one in trays
            }
            await until(lambda: all(cluster.label(one) == cluster.domain for one in trays))

            claims = {one.name: cluster.claim(one, "daemon") for one in trays}
            names = {}
            for one in trays:
                answer = await one.call("NodePrepareResources", claims[one.name])
                assert answer.error == ""
                names[one.name] = answer.devices[0].cdi_device_ids[0]

            def start(one: Tray) -> None:
                daemon = cluster.started(one, names[one.name], addresses)
                daemons.callback(daemon.wait)
                daemons.callback(daemon.terminate)

            start(first)
            await until(lambda: first.answers() == "INITIALIZING")
            cluster.tell(first)
            early = [task for task in waiting.values() if task.done() and not task.result().error]
            assert not early, "one daemon alone makes no domain"
            start(second)
            await until(lambda: all(one.answers() == "READY" for one in trays))
            cluster.tell(*trays)
            for one in trays:
                answer = await until_prepared(one, workloads[one.name], waiting[one.name])
                (node,) = one.edits(answer.devices[0].cdi_device_ids[0])["deviceNodes"]
                assert node["path"] == "/dev/nvidia-caps-imex-channels/channel0"

            for one in trays:
                assert (await one.call("NodeUnprepareResources", workloads[one.name])).error == ""
                assert cluster.label(one) is None
                assert (await one.call("NodeUnprepareResources", claims[one.name])).error == ""
                assert not list((one.folder / "cdi").glob("*compute-domain*"))
                assert not list((one.folder / "kubelet/plugins" / DRIVER / "domains").iterdir())


async def until_prepared(one: Tray, claim: Object, first: "asyncio.Task[Any]") -> Any:
    """As the kubelet does, call again while the answer is an error: a call waits for forty seconds at most."""
    answer = await first
    async with asyncio.timeout(120):
        while answer.error:
            answer = await one.call("NodePrepareResources", claim)
    return answer
