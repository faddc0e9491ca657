"""The programs of a Kubernetes node, built from their Go modules into a cache outside the clone.

Each folder of ``tests/node/modules`` is a Go module whose ``go.mod`` and ``go.sum`` lock one project. A program is
built when the cache has none of its version; ``python -m tests.node.rig build`` builds all of them.
"""

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).resolve().parent.parent / "modules"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-node-agent" / "bin"

KUBE_VERSION = "k8s.io/component-base/version"


@dataclass(frozen=True, kw_only=True)
class Module:
    """One Go module of ``modules/``: the project that it locks and the programs wanted from it."""

    folder: str
    project: str
    programs: dict[str, str]
    version_flags: str = ""

    @property
    def version(self) -> str:
        """The locked version of the project, such as ``v1.37.2``."""
        locked = re.search(rf"{re.escape(self.project)} (v\S+)", (MODULES / self.folder / "go.mod").read_text())
        if locked is None:
            raise LookupError(f"{MODULES / self.folder}/go.mod does not require {self.project}")
        return locked.group(1)

    @property
    def target(self) -> Path:
        return CACHE / f"{self.folder}-{self.version}"

    @property
    def source(self) -> Path:
        """Where Go has unpacked the project: its manifests are there."""
        command = ["go", "list", "-m", "-f", "{{.Dir}}", self.project]
        return Path(subprocess.check_output(command, cwd=MODULES / self.folder, text=True).strip())

    @property
    def is_built(self) -> bool:
        return all((self.target / program).exists() for program in self.programs)

    def build(self) -> None:
        """Build what the cache lacks."""
        for program, package in self.programs.items():
            if not (self.target / program).exists():
                started = time.monotonic()
                self._build(self.target / program, package)
                took = time.monotonic() - started
                print(f"built {program} {self.version} in {took:.0f} s", file=sys.stderr, flush=True)

    def _build(self, path: Path, package: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        bare = self.version.removeprefix("v")
        major, minor, _ = bare.split(".", 2)
        flags = f"-s -w {self.version_flags.format(version=self.version, bare=bare, major=major, minor=minor)}"
        command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(partial), package]
        subprocess.run(command, cwd=MODULES / self.folder, env=os.environ | {"CGO_ENABLED": "0"}, check=True)
        # Under its name only when it is whole: a build that was broken off leaves nothing that looks built.
        partial.rename(path)


NODE = ("kube-scheduler", "kubelet", "kube-controller-manager", "kube-apiserver")


def _kubernetes(folder: str, programs: Sequence[str] = NODE) -> Module:
    return Module(
        folder=folder,
        project="k8s.io/kubernetes",
        programs={name: f"k8s.io/kubernetes/cmd/{name}" for name in programs},
        version_flags=f"-X {KUBE_VERSION}.gitVersion={{version}} -X {KUBE_VERSION}.gitMajor={{major}} "
        f"-X {KUBE_VERSION}.gitMinor={{minor}} -X {KUBE_VERSION}.gitTreeState=clean",
    )


KUBERNETES = _kubernetes("kubernetes")
# Not part of a node: what an operator has in hand.
KUBECTL = _kubernetes("kubernetes", ["kubectl"])
# The oldest that the agent serves claims on; built by its own tests only.
KUBERNETES_1_34 = _kubernetes("kubernetes-1.34")
ETCD = Module(folder="etcd", project="go.etcd.io/etcd/server/v3", programs={"etcd": "go.etcd.io/etcd/server/v3"})


def _containerd(folder: str, project: str) -> Module:
    return Module(
        folder=folder,
        project=project,
        programs={name: f"{project}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        version_flags=f"-X {project}/version.Version={{bare}}",
    )


CONTAINERD = _containerd("containerd", "github.com/containerd/containerd/v2")
# The oldest that takes CDI names; built by its own tests only.
CONTAINERD_1_7 = _containerd("containerd-1.7", "github.com/containerd/containerd")
# Not part of a node; built by their own tests only.
NFD_PROJECT = "sigs.k8s.io/node-feature-discovery"
NFD = Module(
    folder="nfd",
    project=NFD_PROJECT,
    programs={name: f"{NFD_PROJECT}/cmd/{name}" for name in ("nfd-master", "nfd-worker", "nfd-topology-updater")},
    version_flags=f"-X {NFD_PROJECT}/pkg/version.version={{version}}",
)
KUEUE_PROJECT = "sigs.k8s.io/kueue"
KUEUE = Module(
    folder="kueue",
    project=KUEUE_PROJECT,
    programs={"kueue": f"{KUEUE_PROJECT}/cmd/kueue"},
    version_flags=f"-X {KUEUE_PROJECT}/pkg/version.GitVersion={{version}}",
)
SCHEDULER_PLUGINS_PROJECT = "sigs.k8s.io/scheduler-plugins"
SCHEDULER_PLUGINS = Module(
    folder="scheduler-plugins",
    project=SCHEDULER_PLUGINS_PROJECT,
    programs={"topology-scheduler": f"{SCHEDULER_PLUGINS_PROJECT}/cmd/scheduler"},
)
KAI_PROJECT = "github.com/NVIDIA/KAI-scheduler"
KAI = Module(
    folder="kai",
    project=KAI_PROJECT,
    programs={f"kai-{name}": f"{KAI_PROJECT}/cmd/{name}" for name in ("scheduler", "binder", "podgrouper")},
)
# Not part of a node either: what puts the manifests together, in an operator's hand.
HELM = Module(folder="helm", project="helm.sh/helm/v4", programs={"helm": "helm.sh/helm/v4/cmd/helm"})
KUSTOMIZE = Module(
    folder="kustomize",
    project="sigs.k8s.io/kustomize/kustomize/v5",
    programs={"kustomize": "sigs.k8s.io/kustomize/kustomize/v5"},
)


def build_all(kubernetes: Module = KUBERNETES, containerd: Module = CONTAINERD) -> dict[str, Path]:
    """Build what is missing of a node; returns each program's path by its name."""
    return build(kubernetes, ETCD, containerd)


def build(*modules: Module) -> dict[str, Path]:
    """Build what is missing of some modules, one process at a time; returns each program's path by its name."""
    # Who lacks nothing waits for nobody: another process may be building something else for minutes.
    if not all(module.is_built for module in modules):
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for module in modules:
                module.build()
    return {program: module.target / program for module in modules for program in module.programs}
