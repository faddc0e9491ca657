"""A real Kubernetes node: kubelet, containerd, scheduler, controllers, API server and etcd on a machine of their own.

    with RealNode() as node:
        pod = node.pods.run(busybox_pod("hello", "echo hello; sleep 1000"))
        assert node.pods.log(pod) == "hello\\n"

The node is set up as a production one is: RBAC and the Node authorizer with NodeRestriction, service accounts with
tokens in their pods, all default admission and controllers, pod cgroups, pods with an address. What is missing is
kube-proxy and DNS: of all services, pods reach the API server's only, so in-cluster configuration works.

A program under test runs on the node (``node.machine.start``) and then finds everything at its default path; or in the
test's own process, with the folders below given to it, since it sees the same files and sockets at the paths that
``machine.path`` gives, and the node sees those paths too.

All of it blocks; an asyncio test uses ``asyncio.to_thread``. ``machine.py`` says what it runs on and how it ends.
"""

import contextlib
import http
import signal
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.node.rig import binaries, components, credentials, image, packages
from tests.node.rig.api import Api, ApiError, Object
from tests.node.rig.machine import SEARCH_PATH, Machine
from tests.node.rig.pods import Pods
from tests.node.rig.program import Program
from tests.node.rig.waiting import NotYet, wait_until

HOSTNAME = "rig-node"
IMAGES = {image.BUSYBOX: ["sh"], image.PUBLIC_BUSYBOX: ["sh"], image.PAUSE: ["sleep", "1000000"]}
COMPONENTS = {"containerd", "etcd", "api-server", "controllers", "scheduler", "kubelet"}
SERVER_NAMES = ("DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc", "IP:127.0.0.1")


class RealNode:
    """See the module. A context manager; after entering, the node is Ready and takes pods.

    ``feature_gates`` go to every component, ``runtime_config`` to the API server (``resource.k8s.io/v1beta1: True``),
    ``kubelet_settings`` into the KubeletConfiguration, over the rig's own, again at each start of the kubelet.
    ``kubernetes`` is the release to run, and ``containerd`` that of containerd, with its configuration where that is
    another one than 2.x has. ``started_in`` is how many seconds it took.

    ``machine`` runs programs on the node, ``api`` talks to the API server as an administrator, ``pods`` does what tests
    do with pods. The folders are where a test finds them, and valid on the node too.
    """

    machine: Machine
    api: Api
    pods: Pods
    started_in: float

    def __init__(
        self,
        *,
        feature_gates: Mapping[str, bool] | None = None,
        runtime_config: Mapping[str, bool] | None = None,
        kubelet_settings: Mapping[str, Any] | None = None,
        kubernetes: binaries.Module = binaries.KUBERNETES,
        containerd: binaries.Module = binaries.CONTAINERD,
        containerd_config: str = "",
    ) -> None:
        self.name = HOSTNAME
        self._modules = (kubernetes, containerd)
        self.kubelet_settings = dict(kubelet_settings or {})
        self._options: dict[str, Any] = {
            "feature_gates": feature_gates or {},
            "runtime_config": runtime_config or {},
            "kubelet_settings": self.kubelet_settings,
            "containerd_config": containerd_config,
        }
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        packages.ensure()
        programs = binaries.build_all(*self._modules)
        started = time.monotonic()
        folders = {str(path.parent) for path in programs.values()}
        with contextlib.ExitStack() as opened:
            self.machine = opened.enter_context(Machine(HOSTNAME, search_path=":".join([*folders, SEARCH_PATH])))
            self._setup = self._set_up(programs)
            self._start()
            self._opened = opened.pop_all()
        self.started_in = time.monotonic() - started
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    @property
    def kubeconfig(self) -> Path:
        """An administrator's kubeconfig, valid on the node and outside."""
        return self._setup.credentials.kubeconfig("admin")

    def service_account_kubeconfig(self, name: str, namespace: str = "default", *, pod: Object | None = None) -> Path:
        """A kubeconfig with a service account's token, bound to a pod where one is given."""
        token = self.api.token(name, namespace, pod=pod)
        return self._setup.credentials.write_kubeconfig(f"{namespace}.{name}", token)

    @property
    def device_plugins(self) -> Path:
        """Where the kubelet's registration socket for device plugins is, and theirs."""
        return self.machine.path("/var/lib/kubelet/device-plugins")

    @property
    def plugins_registry(self) -> Path:
        """Where DRA drivers, and device plugins of the newer way, put the socket that announces them."""
        return self.machine.path("/var/lib/kubelet/plugins_registry")

    @property
    def plugins(self) -> Path:
        return self.machine.path("/var/lib/kubelet/plugins")

    @property
    def pod_resources_socket(self) -> Path:
        return self.machine.path("/var/lib/kubelet/pod-resources/kubelet.sock")

    @property
    def cdi_folder(self) -> Path:
        """The one folder from which containerd takes CDI specs: ``/run/cdi`` on the node, alias ``/var/run/cdi``."""
        return self.machine.path(components.CDI_FOLDER)

    def stop_kubelet(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the kubelet; containers stay. SIGKILL for a crash."""
        self.machine.programs["kubelet"].stop(number)

    def launch_kubelet(self) -> Program:
        """Start the kubelet and wait for nothing."""
        return self.machine.start("kubelet", components.kubelet(self._setup))

    def start_kubelet(self) -> None:
        """Start the kubelet and await its word that the node is Ready."""
        began = datetime.now(UTC)
        kubelet = self.launch_kubelet()
        kubelet.brings_about("the node is Ready and takes pods", lambda: self._takes_pods(began))

    def restart_kubelet(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.stop_kubelet(number)
        self.start_kubelet()

    def stop_api_server(self) -> None:
        """Kill the API server; etcd keeps what it has."""
        self.machine.programs["api-server"].stop(signal.SIGKILL)

    def launch_api_server(self) -> Program:
        """Start the API server and wait for nothing."""
        return self.machine.start("api-server", components.api_server(self._setup))

    def await_api_server(self, server: Program) -> None:
        server.brings_about("the API server is ready", lambda: self.api.request("GET", "/readyz"))

    def clean(self) -> None:
        """Bring the node back to what it was, as far as the rig has to do with it.

        No programs but its own run, the kubelet does; what was made through ``api`` and ``machine.make_device`` is
        gone, and so are all CDI specs and pods. A resource that a device plugin has registered stays known, with 0
        allocatable, and what a program has written into the API remains.
        """
        if not self.machine.programs["kubelet"].running:
            self.start_kubelet()
        elif not (self.device_plugins / "kubelet.sock").exists():
            self.restart_kubelet()
        # A pod with a claim ends only when its driver has unprepared it: programs and DaemonSets are there until then.
        daemons = [made for made in self.api.created if made["kind"] == "DaemonSet"]
        self._delete([made for made in self.api.created if made not in daemons])
        wait_until("all pods but daemons are gone", lambda: all(map(_of_daemon, self.api.list("Pod"))))
        self._delete(daemons)
        self.api.created.clear()
        wait_until("all pods are gone", lambda: not self.api.list("Pod"))
        for name in set(self.machine.programs) - COMPONENTS:
            self.machine.programs.pop(name).stop(signal.SIGKILL)
        for file in [*self.cdi_folder.iterdir(), *self.machine.devices]:
            file.unlink()
        self.machine.devices.clear()

    def _delete(self, made: Sequence[Object]) -> None:
        for one in reversed(made):
            with _unless_gone():
                self.api.delete(one["kind"], one["metadata"]["name"], one["metadata"].get("namespace", ""))

    def create(self, manifests: str) -> list[Object]:
        """Make the objects of a YAML text, in its order."""
        return [self.api.create(manifest) for manifest in yaml.safe_load_all(textwrap.dedent(manifests)) if manifest]

    def read(self) -> Object:
        """The Node object, as the API server has it now."""
        return self.api.get("Node", self.name)

    def capacity(self, resource: str) -> int:
        """How many of a resource the node has, 0 for one that it does not know."""
        return int(self.read()["status"]["capacity"].get(resource, 0))

    def allocatable(self, resource: str) -> int:
        """How many of a resource pods can get, 0 for one that the node does not know."""
        return int(self.read()["status"]["allocatable"].get(resource, 0))

    def _set_up(self, programs: Mapping[str, Path]) -> components.Setup:
        """Write what the programs need before the first of them starts."""
        address, folder = self.machine.address, self.machine.folder / "etc"
        folder.mkdir()
        self.cdi_folder.mkdir()
        made = credentials.Credentials(folder=folder / "pki", server=f"https://{address}:{components.API_PORT}")
        names = [*SERVER_NAMES, f"IP:{components.API_SERVICE}", f"IP:{address}"]
        credentials.issue(made, hostname=self.name, names=names)
        return components.Setup(
            folder=folder,
            programs=programs,
            hostname=self.name,
            address=address,
            cgroup=self.machine.name,
            credentials=made,
            **self._options,
        )

    def _start(self) -> None:
        start, setup = self.machine.start, self._setup
        self.machine.run(["ip", "address", "add", f"{components.API_SERVICE}/32", "dev", "lo"])
        containerd = start("containerd", components.containerd(setup))
        start("etcd", components.etcd(setup))
        self.api = Api(self.kubeconfig)
        self.pods = Pods(self.api, self.machine)
        api_server = self.launch_api_server()
        containerd.brings_about("containerd answers", lambda: self.machine.run(["ctr", "version"]))
        self._import_images()
        self.await_api_server(api_server)
        start("controllers", components.controllers(setup))
        start("scheduler", components.scheduler(setup))
        self.start_kubelet()

    def _import_images(self) -> None:
        content, archive = self.machine.folder / "image", self.machine.folder / "image.tar"
        image.fill_with_busybox(content)
        for name, command in IMAGES.items():
            image.write_archive(archive, name=name, content=content, command=command)
            self.machine.run(["ctr", "--namespace=k8s.io", "images", "import", str(archive)])

    def _takes_pods(self, since: datetime) -> bool:
        """Whether the node's Ready condition was confirmed after ``since`` and all is there that a pod needs."""
        node = self.read()
        ready = next(it for it in node["status"]["conditions"] if it["type"] == "Ready")
        if datetime.fromisoformat(ready["lastHeartbeatTime"]) <= since:
            raise NotYet("the kubelet has not reported since")
        if ready["status"] != "True" or "taints" in node["spec"]:
            raise NotYet(f"Ready is {ready}, taints are {node['spec'].get('taints')}")
        self.api.get("ServiceAccount", "default")
        return bool(self.api.get("ConfigMap", "kube-root-ca.crt"))


def _of_daemon(pod: Object) -> bool:
    return any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", []))


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Passes over the API server's not knowing an object: a test, or a controller, has deleted it already."""
    try:
        yield
    except ApiError as error:
        if error.code != http.HTTPStatus.NOT_FOUND:
            raise
