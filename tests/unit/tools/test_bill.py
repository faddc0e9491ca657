"""The bill of materials follows its format, names what the lock names, and is the same for the same lock."""

import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from referencing import Registry
from referencing.jsonschema import DRAFT7

from node_agent import __version__
from tools.bill import bill
from tools.release import ROOT

SCHEMAS = files("cyclonedx.schema") / "_res"
LATER = 1_800_000_000
CLICK = re.findall(r"click-[\d.]+-py3-none-any\.whl\", hash = \"sha256:(\w+)", (ROOT / "uv.lock").read_text())[0]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bill(ROOT, LATER))
    return found


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{name}.SNAPSHOT.schema.json").read_text())
    return found


def test_it_follows_cyclonedx(document: dict[str, Any]) -> None:
    others = ((f"{name}.schema.json", DRAFT7.create_resource(schema(name))) for name in ("spdx", "jsf-0.82"))
    registry: Registry[Any] = Registry().with_resources(
        [(f"http://cyclonedx.org/schema/{name.replace('.schema', '.SNAPSHOT.schema')}", one) for name, one in others]
    )
    validator = Draft7Validator(schema("bom-1.5"), registry=registry)
    assert [error.message for error in validator.iter_errors(document)] == []
    assert list(validator.iter_errors({**document, "components": [{"type": "nonsense"}]})) != []


def test_it_has_what_the_lock_says_that_the_wheel_needs_and_nothing_for_development(document: dict[str, Any]) -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    versions = {package["name"]: package.get("version") for package in lock["package"]}
    listed = {one["name"]: one["version"] for one in document["components"]}
    assert listed.items() <= versions.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name.partition(">")[0] for name in project["dependencies"]} <= listed.keys()
    assert not {"pytest", "mypy", "mkdocs-material", "hatchling"} & listed.keys()


def test_each_component_has_its_licence_and_checksums(document: dict[str, Any]) -> None:
    licences = {one["name"]: one.get("licenses") for one in document["components"]}
    assert licences["click"] == [{"expression": "BSD-3-Clause"}]
    assert licences["mdurl"] == [{"license": {"name": "MIT License"}}]
    assert [name for name, licence in licences.items() if not licence] == []
    hashes = [one["hashes"][0] for part in document["components"] for one in part["externalReferences"]]
    assert {one["alg"] for one in hashes} == {"SHA-256"}


def test_it_is_of_this_version_and_dated_by_the_commit(document: dict[str, Any]) -> None:
    component = document["metadata"]["component"]
    assert (component["version"], component["purl"]) == (__version__, f"pkg:pypi/gpu-node-agent@{__version__}")
    assert document["metadata"]["timestamp"] == "2027-01-15T08:00:00Z"


def test_the_same_lock_has_the_same_bill_and_number_and_another_one_does_not(
    document: dict[str, Any], tmp_path: Path
) -> None:
    assert json.loads(bill(ROOT, LATER)) == document
    (tmp_path / "node_agent").mkdir()
    for name in ("pyproject.toml", "uv.lock", "node_agent/__init__.py"):
        (tmp_path / name).write_text((ROOT / name).read_text().replace(CLICK, "0" * 64))
    other = json.loads(bill(tmp_path, LATER))
    assert other["serialNumber"] != document["serialNumber"]
