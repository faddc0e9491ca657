"""The chart by the real helm and the overlays by the real kustomize: whatever is chosen, both make the same objects.

They need no node; Go builds both programs from their modules.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node.rig import manifests
from tests.node.rig.api import Object
from tests.node.rig.waiting import RigError

pytestmark = pytest.mark.node

OVERLAYS = manifests.MANIFESTS / "overlays"
COMPONENTS = manifests.MANIFESTS / "components"
CHOICES: list[tuple[Path, dict[str, Any]]] = [
    (manifests.MANIFESTS, {}),
    (OVERLAYS / "dra-only", {"modes": {"limits": False}}),
    (OVERLAYS / "device-plugin-only", {"modes": {"claims": False}}),
    (OVERLAYS / "mig", {"modes": {"mig": True}}),
    (OVERLAYS / "mps", {"modes": {"mps": True}}),
    (OVERLAYS / "compute-domains", {"modes": {"computeDomains": True}}),
    (OVERLAYS / "metrics", {"modes": {"metrics": True}}),
]
# What helm adds, and what nobody but kustomize makes: a chart leaves its namespace to `--create-namespace`.
HELMS = ("app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart")
NAME = "app.kubernetes.io/name"


def plain(objects: list[Object]) -> dict[tuple[str, str], Object]:
    """Objects by kind and name, without helm's labels and without the order of lists whose order means nothing."""
    return {(one["kind"], one["metadata"]["name"]): _plain(one) for one in objects if one["kind"] != "Namespace"}


def _plain(one: Object) -> Object:
    labels = one["metadata"].pop("labels", {})
    kept = {key: value for key, value in labels.items() if key not in (*HELMS, NAME)}
    if kept:
        one["metadata"]["labels"] = kept
    if one["kind"] == "DaemonSet":
        pod = one["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        # Either default of the API server's.
        assert container.pop("imagePullPolicy", "IfNotPresent") == "IfNotPresent"
        for place, lists in ((pod, ("volumes",)), (container, ("env", "volumeMounts"))):
            for name in lists:
                place[name] = sorted(place[name], key=lambda entry: json.dumps(entry, sort_keys=True))
    if one["kind"] == "ConfigMap":
        one["data"] = {name: yaml.safe_load(text) for name, text in one["data"].items()}
    return one


@pytest.mark.parametrize(("folder", "values"), CHOICES, ids=[folder.name for folder, _ in CHOICES])
def test_chart_and_overlay_make_the_same_objects(folder: Path, values: dict[str, Any]) -> None:
    by_helm, by_kustomize = plain(manifests.rendered(**values)), plain(manifests.built(folder))
    assert by_helm.keys() == by_kustomize.keys()
    for key, one in by_kustomize.items():
        assert by_helm[key] == one, key


@pytest.mark.parametrize(
    ("components", "values"),
    [
        (["privileged"], {"privileged": True}),
        (["topology"], {"modes": {"topology": True}}),
        (["mig", "mps", "metrics"], {"modes": {"mig": True, "mps": True, "metrics": True}}),
        (["mig", "privileged"], {"modes": {"mig": True}, "privileged": True}),
    ],
    ids=str,
)
def test_components_and_values_may_be_put_together(
    tmp_path: Path, components: list[str], values: dict[str, Any]
) -> None:
    # Kustomize takes no absolute paths.
    up = Path(*[".."] * (len(tmp_path.resolve().parts) - 1), *manifests.MANIFESTS.parts[1:])
    own = {"resources": [str(up)], "components": [str(up / "components" / name) for name in components]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    assert plain(manifests.rendered(**values)) == plain(manifests.built(tmp_path))


@pytest.mark.parametrize("values", [{}, *(values for _, values in CHOICES[1:])], ids=str)
def test_helm_finds_nothing_to_complain_of(values: dict[str, Any]) -> None:
    said = manifests.helm("lint", "--strict", str(manifests.CHART), **values)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mode": {"mig": True}}, "mode"),
        ({"modes": {"mgi": True}}, "mgi"),
        ({"modes": {"mig": "yes"}}, "/modes/mig"),
        ({"privileged": "no"}, "/privileged"),
        ({"driverRoot": "run/nvidia/driver"}, "/driverRoot"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"config": {"version": "v1"}, "configs": {"a": {"version": "v1"}}}, "/configs"),
        ({"migLayouts": {"version": "v1"}}, "/modes/mig"),
        ({"modes": {"computeDomains": True, "claims": False}}, "/modes/claims"),
    ],
    ids=str,
)
def test_values_that_mean_nothing_are_refused_by_their_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(RigError) as refused:
        manifests.rendered(**values)
    assert "values don't meet the specifications of the schema" in str(refused.value)
    assert words in str(refused.value)


def test_a_configuration_is_mounted_and_named_configurations_bring_the_right_to_see_the_label() -> None:
    one = manifests.rendered(config={"version": "v1"})
    named = manifests.rendered(configs={"default": {"version": "v1"}, "shared": {"version": "v1"}})
    for objects, argument in ((one, "--config=/configs/config.yaml"), (named, "--config-dir=/configs")):
        pod = manifests.only(objects, "DaemonSet")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["args"][-1] == argument
        assert {"name": "configs", "configMap": {"name": "gpu-configs"}} in pod["volumes"]
        assert {"name": "configs", "mountPath": "/configs", "readOnly": True} in container["volumeMounts"]
    assert manifests.only(one, "ConfigMap")["data"] == {"config.yaml": "version: v1\n"}
    assert set(manifests.only(named, "ConfigMap")["data"]) == {"default", "shared"}
    names = [[one["metadata"]["name"] for one in objects if one["kind"] == "ClusterRole"] for objects in (one, named)]
    assert ["gpu-node-agent-configs" in found for found in names] == [False, True]


def test_another_namespace_is_in_all_places_that_name_it() -> None:
    arguments = ("template", "gpu-node-agent", str(manifests.CHART), "--namespace=elsewhere")
    assert "gpu-node-agent:gpu-node-agent" not in manifests.helm(*arguments)
    found = list(yaml.safe_load_all(manifests.helm(*arguments)))
    subjects = [subject["namespace"] for one in found for subject in one.get("subjects", ())]
    assert subjects and set(subjects) == {"elsewhere"}
    conditions = manifests.only(found, "ValidatingAdmissionPolicy")["spec"]["matchConditions"]
    assert 'system:serviceaccount:elsewhere:gpu-node-agent"' in conditions[0]["expression"]


def test_the_package_is_whole_and_has_no_overlay_in_it(tmp_path: Path) -> None:
    manifests.helm("package", str(manifests.CHART), f"--destination={tmp_path}")
    (package,) = tmp_path.glob("*.tgz")
    said = manifests.helm("template", "gpu-node-agent", str(package), f"--namespace={manifests.NAMESPACE}")
    assert plain(list(yaml.safe_load_all(said))) == plain(manifests.rendered())
    assert package.stat().st_size < 40_000
