"""etcd, API server and, where asked for, the scheduler: a cluster without kubelets, whose Nodes are objects alone."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from node_agent.kube.client import KubeClient
from node_agent.kube.find import find_access
from node_agent.kube.resources import NODES, PODS
from tests.node.rig import binaries, components, credentials, manifests, traces
from tests.node.rig.api import Api, ApiError, Object
from tests.node.rig.machine import SEARCH_PATH, Machine
from tests.node.rig.node import SERVER_NAMES
from tests.node.rig.waiting import NotYet, wait_until

AGENT = "gpu-node-agent"
# All that the service account of the agent asks for, once, when it is answered.
AUDIT: Object = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {"level": "Metadata", "users": [f"system:serviceaccount:{manifests.NAMESPACE}:{AGENT}"]},
        {"level": "None"},
    ],
}
SIZES: Mapping[str, str] = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What a program has taken so far: seconds of processor time, and bytes of memory now."""

    cpu_seconds: float
    memory: int


class ControlPlane:
    """A context manager; after entering, the API server answers, and what the agent needs of the cluster is in it."""

    machine: Machine
    api: Api
    api_server_started: float

    def __init__(self, *, scheduler: bool = False, audit: bool = True) -> None:
        self._with_scheduler = scheduler
        self._audit = audit
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        programs = binaries.build_all()
        with contextlib.ExitStack() as opened:
            self.machine = opened.enter_context(Machine("scale", search_path=SEARCH_PATH))
            self._setup = self._set_up(programs)
            self._start()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    @property
    def kubeconfig(self) -> Path:
        return self._setup.credentials.kubeconfig("admin")

    @property
    def audit_log(self) -> Path:
        return self.machine.logs / "audit.log"

    def restart_api_server(self) -> None:
        """Kill the API server and start it again."""
        self.machine.programs["api-server"].stop(signal.SIGKILL, within=90)
        self._start_api_server()

    @property
    def sent(self) -> int:
        """All bytes that have left the machine so far, as its host counts them."""
        counters = Path("/sys/class/net") / traces.link(self.machine.name) / "statistics"
        return int((counters / "rx_bytes").read_text())

    def usage(self, program: str) -> Usage:
        pid = self.machine.programs[program].pid
        # Behind the name, which may have blanks in it; user and system time are the 14th and 15th field of all.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Usage(cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"), memory=pages * os.sysconf("SC_PAGE_SIZE"))

    def etcd(self, command: str, body: Object) -> Any:
        """What etcd's JSON gateway answers; it listens on the machine's own loopback only."""
        asked = ["curl", "-sS", "-X", "POST", f"{components.ETCD}/v3/{command}", "-d", json.dumps(body)]
        return json.loads(self.machine.run(asked, timeout=120))

    async def make_nodes(self, names: Sequence[str]) -> None:
        """Nodes that are Ready and take pods."""
        async with KubeClient(find_access(self.kubeconfig), agent="benchmark") as client:
            await each(partial(_make_node, client), names)

    async def tokens(self, names: Sequence[str]) -> Mapping[str, str]:
        """For each node a token of the agent's service account as its pod there has it: it names the node."""
        async with KubeClient(find_access(self.kubeconfig), agent="benchmark") as client:
            pods = await each(partial(_pod_of_agent, client), names)
        return dict(zip(names, await each(self._token, pods), strict=True))

    async def _token(self, pod: Object) -> str:
        return await asyncio.to_thread(self.api.token, AGENT, manifests.NAMESPACE, pod=pod)

    def _set_up(self, programs: Mapping[str, Path]) -> components.Setup:
        address, folder = self.machine.address, self.machine.folder / "etc"
        folder.mkdir()
        made = credentials.Credentials(folder=folder / "pki", server=f"https://{address}:{components.API_PORT}")
        names = [*SERVER_NAMES, f"IP:{components.API_SERVICE}", f"IP:{address}"]
        credentials.issue(made, hostname="scale", names=names)
        (folder / "audit.yaml").write_text(json.dumps(AUDIT))
        return components.Setup(
            folder=folder,
            programs=programs,
            hostname="scale",
            address=address,
            cgroup=self.machine.name,
            credentials=made,
        )

    def _start(self) -> None:
        self.machine.run(["ip", "address", "add", f"{components.API_SERVICE}/32", "dev", "lo"])
        self.machine.start("etcd", components.etcd(self._setup))
        self.api = Api(self.kubeconfig)
        self._start_api_server()
        if self._with_scheduler:
            limits = ["--kube-api-qps=1000", "--kube-api-burst=1000"]
            self.machine.start("scheduler", [*components.scheduler(self._setup), *limits])
        for manifest in manifests.built():
            if manifest["kind"] != "DaemonSet":
                wait_until(f"{manifest['kind']} is taken", partial(_taken, self.api, manifest))

    def _start_api_server(self) -> None:
        audit = [f"--audit-policy-file={self._setup.folder / 'audit.yaml'}", f"--audit-log-path={self.audit_log}"]
        command = [*components.api_server(self._setup), *(audit if self._audit else [])]
        self.api_server_started = time.time()
        server = self.machine.start("api-server", command)
        server.brings_about("the API server is ready", lambda: self.api.request("GET", "/readyz"), timeout=120)


T = TypeVar("T")
R = TypeVar("R")


async def each(work: Callable[[T], Awaitable[R]], items: Iterable[T], at_once: int = 8) -> list[R]:
    """What ``work`` makes of each of the items, several at a time."""
    turn = asyncio.Semaphore(at_once)

    async def one(item: T) -> R:
        async with turn:
            return await work(item)

    return await asyncio.gather(*map(one, items))


async def _make_node(client: KubeClient, name: str) -> None:
    await client.create(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    # Admission has tainted it, as a node that is new.
    await client.patch(NODES, name, {"spec": {"taints": None}})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "as an object"}
    status = {"capacity": SIZES, "allocatable": SIZES, "conditions": [ready]}
    await client.patch(NODES, name, {"status": status}, subresource="status")


async def _pod_of_agent(client: KubeClient, node: str) -> Object:
    name = f"agent-{node}"
    spec = {
        "nodeName": node,
        "serviceAccountName": AGENT,
        "automountServiceAccountToken": False,
        "containers": [{"name": "agent", "image": "agent"}],
    }
    return await client.create(PODS, {"metadata": {"name": name, "namespace": manifests.NAMESPACE}, "spec": spec})


def _taken(api: Api, manifest: Object) -> bool:
    try:
        api.create(manifest)
    except ApiError as error:
        if error.code == 409:
            return True
        raise NotYet(str(error)) from error
    return True
