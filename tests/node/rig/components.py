"""What each program of a node is started with: its command line and its configuration file. Nothing here acts.

``node.py`` starts them in order. Folders and ports are the programs' own defaults wherever they have one, because
the machine is theirs alone (``machine.py``).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.node.rig.credentials import Credentials
from tests.node.rig.image import PAUSE
from tests.node.rig.packages import CNI_PLUGINS

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CDI_FOLDER = "/run/cdi"
PODS = "10.88.0.0/24"
SERVICES = "10.96.0.0/16"
# The API server listens on the service's own address and port too, so that pods reach it as in-cluster clients do
# although no kube-proxy runs.
API_SERVICE = "10.96.0.1"
API_PORT = 443
ETCD = "http://127.0.0.1:2379"
PEERS = "http://127.0.0.1:2380"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that the command lines and configuration files depend on."""

    folder: Path
    """Holds the configuration files; the same path on the machine and outside."""
    programs: Mapping[str, Path]
    hostname: str
    address: str
    cgroup: str
    credentials: Credentials
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    runtime_config: Mapping[str, bool] = field(default_factory=dict)
    kubelet_settings: Mapping[str, Any] = field(default_factory=dict)
    containerd_config: str = ""
    """What is configured of containerd; empty for what 2.x takes."""


# Where the rig itself runs with a raised oom_score_adj, lowering it is not allowed.
CONTAINERD_CONFIG = """version = 3
[plugins.'io.containerd.internal.v1.opt']
  path = "/var/lib/containerd/opt"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  cdi_spec_dirs = ["{cdi}"]
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{network}"
"""


def containerd(setup: Setup) -> list[str]:
    config = setup.folder / "containerd.toml"
    text = setup.containerd_config or CONTAINERD_CONFIG
    config.write_text(text.format(pause=PAUSE, cdi=CDI_FOLDER, plugins=CNI_PLUGINS, network=_network(setup)))
    return [str(setup.programs["containerd"]), "--config", str(config)]


def etcd(setup: Setup) -> list[str]:
    return [
        str(setup.programs["etcd"]),
        "--data-dir=/var/lib/etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={PEERS}",
    ]


def api_server(setup: Setup) -> list[str]:
    credentials = setup.credentials
    return [
        str(setup.programs["kube-apiserver"]),
        f"--etcd-servers={ETCD}",
        f"--advertise-address={setup.address}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICES}",
        f"--tls-cert-file={credentials.certificate}",
        f"--tls-private-key-file={credentials.key}",
        f"--token-auth-file={credentials.tokens}",
        "--authorization-mode=Node,RBAC",
        # Webhooks are reached at their pods, since no kube-proxy forwards what goes to their services.
        "--enable-aggregator-routing",
        # For `kubectl logs` and `exec`: nobody knows the node by its name.
        "--kubelet-preferred-address-types=InternalIP",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={credentials.certificate}",
        f"--service-account-signing-key-file={credentials.key}",
        f"--feature-gates={_pairs(setup.feature_gates)}",
        f"--runtime-config={_pairs(setup.runtime_config)}",
    ]


def controllers(setup: Setup) -> list[str]:
    return [
        str(setup.programs["kube-controller-manager"]),
        f"--kubeconfig={setup.credentials.kubeconfig('controllers')}",
        "--leader-elect=false",
        "--use-service-account-credentials",
        # The default of 20 a second makes its start take five seconds.
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        f"--service-account-private-key-file={setup.credentials.key}",
        f"--root-ca-file={setup.credentials.authority}",
        "--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
        f"--feature-gates={_pairs(setup.feature_gates)}",
    ]


def scheduler(setup: Setup) -> list[str]:
    return [
        str(setup.programs["kube-scheduler"]),
        f"--kubeconfig={setup.credentials.kubeconfig('scheduler')}",
        "--leader-elect=false",
        f"--feature-gates={_pairs(setup.feature_gates)}",
    ]


def kubelet(setup: Setup) -> list[str]:
    config = setup.folder / "kubelet.yaml"
    config.write_text(yaml.safe_dump(_kubelet_configuration(setup)))
    return [
        str(setup.programs["kubelet"]),
        f"--config={config}",
        f"--kubeconfig={setup.credentials.kubeconfig('kubelet')}",
        f"--hostname-override={setup.hostname}",
        f"--node-ip={setup.address}",
        "--v=2",
    ]


def _kubelet_configuration(setup: Setup) -> dict[str, Any]:
    defaults = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{setup.cgroup}",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "tlsCertFile": str(setup.credentials.certificate),
        "tlsPrivateKeyFile": str(setup.credentials.key),
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        # The host's disk may be full to any degree; that is not what is tested.
        "evictionHard": {"memory.available": "10Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        # Seconds instead of minutes until a change of the node is reported and a failed Prepare is tried again.
        "nodeStatusUpdateFrequency": "1s",
        "syncFrequency": "5s",
        "featureGates": dict(setup.feature_gates),
    }
    return defaults | dict(setup.kubelet_settings)


def _network(setup: Setup) -> Path:
    """The folder with the CNI configuration, without which no node becomes Ready."""
    folder = setup.folder / "cni"
    folder.mkdir(exist_ok=True)
    addresses = {"type": "host-local", "subnet": PODS, "routes": [{"dst": "0.0.0.0/0"}]}
    network = {"cniVersion": "1.0.0", "name": "rig", "plugins": [{"type": "ptp", "ipam": addresses}]}
    (folder / "10-rig.conflist").write_text(json.dumps(network))
    return folder


def _pairs(values: Mapping[str, bool]) -> str:
    return ",".join(f"{key}={str(value).lower()}" for key, value in values.items())
