"""The shipped manifests as `kubectl` puts them together for an operator, with what a test lays over them."""

import copy
import functools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.node.rig import binaries
from tests.node.rig.api import Object
from tests.node.rig.command import run

PROJECT = Path(__file__).resolve().parents[3]
DEPLOY = PROJECT / "deploy"


def rendered(*parts: str, patches: Sequence[Object] = ()) -> list[Object]:
    """The objects of a kustomization and of the components over it, named by their folders below ``deploy``."""
    return copy.deepcopy(_rendered(parts, yaml.safe_dump_all(patches)))


@functools.cache
def _rendered(parts: tuple[str, ...], patches: str) -> list[Object]:
    with tempfile.TemporaryDirectory() as folder:
        base, *components = (os.path.relpath(DEPLOY / part, folder) for part in parts)
        content = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [base],
            "components": components,
            "patches": [{"patch": yaml.safe_dump(one)} for one in yaml.safe_load_all(patches)],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(content))
        kubectl = binaries.build(binaries.KUBECTL)["kubectl"]
        return [one for one in yaml.safe_load_all(run([str(kubectl), "kustomize", folder])) if one]
