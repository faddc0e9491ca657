"""etcd, API server and scheduler: a cluster without kubelets, whose Nodes are objects alone."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import yaml

from node_agent.kube.client import KubeClient
from node_agent.kube.find import find_access
from node_agent.kube.resources import NODES
from tests.node.rig import binaries, components, credentials
from tests.node.rig.api import Api, ApiError, Object
from tests.node.rig.machine import SEARCH_PATH, Machine
from tests.node.rig.node import SERVER_NAMES
from tests.node.rig.waiting import NotYet, wait_until

MANIFESTS = Path(__file__).parents[2] / "deploy" / "daemonset" / "components" / "claims"
SIZES: Mapping[str, str] = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What a program has taken so far: seconds of processor time, and bytes of memory now."""

    cpu_seconds: float
    memory: int


class ControlPlane:
    """A context manager; after entering, the API server answers and has the agent's device classes."""

    machine: Machine
    api: Api

    def __init__(self) -> None:
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

    def usage(self, program: str) -> Usage:
        pid = self.machine.programs[program].pid
        # Behind the name, which may have blanks in it; user and system time are the 14th and 15th field of all.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return Usage(cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"), memory=pages * os.sysconf("SC_PAGE_SIZE"))

    async def make_nodes(self, names: Sequence[str]) -> None:
        """Nodes that are Ready and take pods."""
        async with KubeClient(find_access(self.kubeconfig)) as client:
            await each(partial(_make_node, client), names)

    def _set_up(self, programs: Mapping[str, Path]) -> components.Setup:
        address, folder = self.machine.address, self.machine.folder / "etc"
        folder.mkdir()
        made = credentials.Credentials(folder=folder / "pki", server=f"https://{address}:{components.API_PORT}")
        names = [*SERVER_NAMES, f"IP:{components.API_SERVICE}", f"IP:{address}"]
        credentials.issue(made, hostname="scale", names=names)
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
        server = self.machine.start("api-server", components.api_server(self._setup))
        server.brings_about("the API server is ready", lambda: self.api.request("GET", "/readyz"), timeout=120)
        limits = ["--kube-api-qps=1000", "--kube-api-burst=1000"]
        self.machine.start("scheduler", [*components.scheduler(self._setup), *limits])
        for manifest in yaml.safe_load_all((MANIFESTS / "deviceclasses.yaml").read_text()):
            wait_until(f"{manifest['metadata']['name']} is taken", partial(_taken, self.api, manifest))


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


def _taken(api: Api, manifest: Object) -> bool:
    try:
        api.create(manifest)
    except ApiError as error:
        if error.code == 409:
            return True
        raise NotYet(str(error)) from error
    return True
