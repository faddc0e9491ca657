"""The shipped manifests, put together as an operator does it: by kustomize, and by helm."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.node.rig import binaries
from tests.node.rig.api import Object
from tests.node.rig.command import run

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
MANIFESTS = DEPLOY / "daemonset"
CHART = DEPLOY / "helm" / "gpu-node-agent"
NAMESPACE = "gpu-node-agent"


def built(folder: Path = MANIFESTS) -> list[Object]:
    """The objects of a folder of kustomize's, the usual modes' if none is named."""
    kustomize = binaries.build(binaries.KUSTOMIZE)["kustomize"]
    return list(yaml.safe_load_all(run([str(kustomize), "build", str(folder)])))


def rendered(**values: Any) -> list[Object]:
    """The objects of the chart with such values over its own."""
    return list(
        yaml.safe_load_all(helm("template", "gpu-node-agent", str(CHART), f"--namespace={NAMESPACE}", **values))
    )


def helm(*arguments: str, **values: Any) -> str:
    """What helm answers; values by their first key. Raises RigError with what it says when it refuses."""
    given = [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]
    return run([str(binaries.build(binaries.HELM)["helm"]), *arguments, *given], timeout=60)


def only(objects: list[Object], kind: str) -> Object:
    """The only one of its kind."""
    (found,) = (one for one in objects if one["kind"] == kind)
    return found
