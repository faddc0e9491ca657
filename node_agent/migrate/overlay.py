"""A migration as an overlay for kustomize: the shipped DaemonSet with the configurations mounted, file by file."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from node_agent.migrate.compose import LAYOUTS_FILE, Migration

CONFIGS, LAYOUTS = "gpu-configs", "mig-layouts"
_NAMESPACE = _NAME = "gpu-node-agent"


def files(migration: Migration, deploy: str) -> Mapping[str, str]:
    """The overlay's files by their relative path. ``deploy`` is where this project's manifests are, seen from there."""
    found = {
        "kustomization.yaml": _dumped(kustomization(migration, deploy)),
        "daemonset.yaml": _dumped(daemonset(migration)),
        **{f"configs/{name}": text for name, text in migration.configurations.items()},
    }
    return found if migration.layouts is None else {**found, "layouts/config.yaml": migration.layouts}


def kustomization(migration: Migration, deploy: str) -> Mapping[str, Any]:
    """Names of ConfigMaps stay the same, so that an edited one comes into force without a restart."""
    maps = [{"name": CONFIGS, "files": [f"configs/{name}" for name in migration.configurations]}]
    if migration.layouts is not None:
        maps.append({"name": LAYOUTS, "files": ["layouts/config.yaml"]})
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": _NAMESPACE,
        "resources": [f"{deploy}/daemonset"],
        "components": [f"{deploy}/daemonset/components/{name}" for name in _components(migration)],
        "configMapGenerator": maps,
        "generatorOptions": {"disableNameSuffixHash": True},
        "patches": [{"path": "daemonset.yaml"}],
    }


def _components(migration: Migration) -> Iterator[str]:
    """What is needed beyond the usual modes; without a runtime class nobody else would let the agent at the GPUs."""
    wanted = {
        "configs": True,
        "mig": migration.mig,
        "mps": migration.mps,
        "privileged": not migration.mps and "spec.runtimeClassName" not in migration.template,
        "metrics": migration.monitoring,
    }
    return (name for name, is_wanted in wanted.items() if is_wanted)


def daemonset(migration: Migration) -> Mapping[str, Any]:
    """What is laid over the shipped DaemonSet."""
    mounted = {CONFIGS: "/configs"} | ({} if migration.layouts is None else {LAYOUTS: LAYOUTS_FILE.rpartition("/")[0]})
    given = dict(migration.template)
    env = given.pop("spec.containers.agent.env", [])
    container = {
        "name": "agent",
        "args": ["run", "--http-address=:9400", "--config-dir=/configs"],
        **({"env": env} if env else {}),
        "volumeMounts": [
            *({"name": name, "mountPath": path, "readOnly": True} for name, path in mounted.items()),
            *given.pop("spec.containers.agent.volumeMounts", []),
        ],
    }
    volumes = [{"name": name, "configMap": {"name": name}} for name in mounted] + given.pop("spec.volumes", [])
    template: dict[str, Any] = {"metadata": {}, "spec": {"containers": [container], "volumes": volumes}}
    for path, value in given.items():
        section, _, key = path.partition(".")
        template[section][key] = value
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": _NAME, "namespace": _NAMESPACE},
        "spec": {"template": {part: below for part, below in template.items() if below}},
    }


def _dumped(value: Mapping[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=120)
