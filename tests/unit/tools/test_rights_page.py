"""What the manifests grant is what the code asks for, mode by mode, and each right has its reason beside it."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from node_agent.computedomain import domains
from node_agent.config.resolve import resolve
from node_agent.config.settings import Settings
from node_agent.doctor.cluster import rights_of
from node_agent.kube import resources
from node_agent.kube.resources import Resource
from tools.rights_page import MANIFESTS, MODES, beside, page, reasons, rights

CODE = Path(resources.__file__).parents[1]
KINDS = {name: kind for one in (resources, domains) for name, kind in vars(one).items() if isinstance(kind, Resource)}
VERBS = {"get": "get", "find": "get"} | {verb: verb for verb in ("list", "create", "update", "patch", "delete")}
"""The client's methods, and the right that each takes."""
# What the API server asks for besides: who writes a claim's status has to say that it is for devices of its own node.
BESIDES = ("resource.k8s.io", "resourceclaims/driver", "associated-node:patch")
# Asked for where it is found out whose pod the agent is, and by nothing that the doctor could miss.
OWN_POD = ("", "pods", "get")

Granted = set[tuple[str, str, str]]


def granted(*folders: str) -> Granted:
    return {(right.group, right.resource, right.verb) for folder in folders for right in rights(folder)}


def variables(*modes: str) -> dict[str, str]:
    """The agent's variables in these modes, as kustomize lays them over each other."""
    found: dict[str, str] = {}
    for folder in ("base", *(f"components/{mode}" for mode in modes)):
        for one in container(folder).get("env", ()):
            found[one["name"]] = "" if one.get("$patch") == "delete" else one.get("value", "here")
    return found


def container(folder: str) -> dict[str, Any]:
    file = MANIFESTS / folder / "daemonset.yaml"
    if not file.exists():
        return {}
    (found,) = yaml.safe_load(file.read_text())["spec"]["template"]["spec"]["containers"]
    return dict(found)


def in_modes(*modes: str) -> Settings:
    return resolve(None, variables(*modes), {}).settings


@pytest.mark.parametrize(
    "modes", [[], ["limits"], ["claims"], ["labels"], ["mig"], ["topology"], ["limits", "claims", "labels"]], ids=str
)
def test_each_mode_has_the_rights_that_it_asks_for_and_no_others(modes: Sequence[str]) -> None:
    asked = {
        (right.group, f"{right.resource}/{right.subresource}" if right.subresource else right.resource, verb)
        for right in rights_of(in_modes(*modes))
        for verb in right.verbs
    }
    assert granted("base", *(f"components/{mode}" for mode in modes)) - {BESIDES, OWN_POD} == asked


def test_a_mode_that_is_off_is_off_in_the_agent_too() -> None:
    off, on = in_modes(), in_modes("limits", "claims", "labels", "mig", "topology")
    assert (off.dra, off.device_plugin, off.labels.writer, off.mig_layouts) == (False, False, "none", "never")
    assert (on.dra, on.device_plugin, on.labels.writer, on.mig_layouts) == ("auto", True, "auto", "auto")
    assert (off.node_topology, on.node_topology) == (False, True)


def asked_by_the_code() -> Iterator[tuple[str, str, str]]:
    """What is asked for anywhere in the code: each call of the client that names a kind of object."""
    for file in CODE.rglob("*.py"):
        if "kube" in file.parent.name or "doctor" in file.parent.name:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield from _asked(node, file)


def _asked(call: ast.Call, file: Path) -> Iterator[tuple[str, str, str]]:
    match call.func, call.args:
        case ast.Attribute(attr=verb), [ast.Name(id=name), *_] if verb in VERBS and name in KINDS:
            verbs, kind = {VERBS[verb]}, KINDS[name]
        case ast.Attribute(attr=verb), [ast.Attribute(attr="_resource"), *_] if verb in VERBS:
            verbs, kind = {VERBS[verb]}, resources.RESOURCE_SLICES
        case ast.Name(id="Mirror"), [_, ast.Name(id=name)]:
            verbs, kind = {"list", "watch"}, KINDS[name]
        case ast.Name(id="Mirror"), [_, ast.Attribute(attr="_resource")]:
            verbs, kind = {"list", "watch"}, resources.RESOURCE_SLICES
        case ast.Name(id="Mirror"), _:
            raise AssertionError(f"{file}: this test does not know what is followed there")
        case _:
            return
    said = {word.arg: ast.unparse(word.value) for word in call.keywords}
    if said.get("how") == "Patch.APPLY" and kind in (resources.NODE_FEATURES, resources.NODE_TOPOLOGIES):
        verbs |= {"create"}  # an object that is applied and not there is made
    below = f"/{said['subresource'].strip(chr(39))}" if "subresource" in said else ""
    yield from ((kind.group, kind.plural + below, verb) for verb in verbs)


def test_every_right_is_used_by_the_code_and_every_call_of_the_code_is_granted() -> None:
    assert granted(*MODES) - {BESIDES} == set(asked_by_the_code())


def test_every_right_has_its_reason_beside_it() -> None:
    said = [reason for file in MANIFESTS.rglob("rbac.yaml") for reason in reasons(file)]
    assert len(said) > len(MODES)
    assert all(len(reason) > 20 for reason in said)


def test_every_mount_has_its_reason_beside_it() -> None:
    lines = [line for file in MANIFESTS.rglob("daemonset.yaml") for line in file.read_text().splitlines()]
    mounts = [number for number, line in enumerate(lines) if "mountPath: " in line]
    assert len(mounts) > 10
    assert [lines[one] for one in mounts if "} # " not in lines[one] and "#" not in lines[one - 1]] == []


def test_every_line_of_the_page_has_its_reason() -> None:
    rows = [line for line in page().splitlines() if line.startswith(("| API", "| host", "| container"))]
    assert len(rows) > 30
    assert [row for row in rows if len(row.split(" | ")[-1]) < 15] == []


@pytest.mark.parametrize(
    ("word", "said"),
    [("a: ", "at the end"), ("b: ", "above it in two lines"), ("c: ", ""), ("d: ", ""), ("e: ", "")],
)
def test_a_reason_stands_at_the_end_of_the_line_or_above_it(word: str, said: str) -> None:
    text = "# of nothing\na: 1 # at the end\n# above it\n# in two lines\nb: 1\nc: 1 #\nd: 1\n# c: 1, d: 1, e: 1\n"
    assert beside(text, word) == said


def test_the_page_has_every_folder_that_gives_rights() -> None:
    folders = {str(file.parent.relative_to(MANIFESTS)) for file in MANIFESTS.rglob("rbac.yaml")}
    assert folders <= set(MODES)
    assert "`/var/lib/kubelet/device-plugins`, written" in page()
    assert "`resourceslices.resource.k8s.io`: list, watch, create, update, delete" in page()


def test_no_mode_but_mps_and_the_one_called_so_is_privileged() -> None:
    context = {folder: container(folder).get("securityContext", {}) for folder in MODES}
    assert [folder for folder in MODES if context[folder].get("privileged")] == ["components/privileged"]
    added = {folder: (found.get("capabilities") or {}).get("add") for folder, found in context.items()}
    assert {folder: names for folder, names in added.items() if names} == {"components/mig": ["SYS_ADMIN"]}
    assert context["base"]["capabilities"] == {"drop": ["ALL"]}
