"""The CDI format as ``cdi/schema`` states it is the CDI project's, and runtimes take the specs of ``cdi/examples``.

The originals are the Go modules that ``modules/cdi`` locks: the structs that runtimes decode a spec into, and the
library that reads it. The program there gives the library's verdict, on the examples and on the documents, good and
bad, that the unit tests give to the agent's own check.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from node_agent.cdi.names import parse_qualified
from node_agent.cdi.versions import VERSIONS, required_version
from tests.node.rig.binaries import MODULES
from tests.unit.cdi.documents import BAD, GOOD

pytestmark = pytest.mark.node

MODULE = MODULES / "cdi"
SPECS = "tags.cncf.io/container-device-interface/specs-go"
CDI = Path(__file__).parents[2] / "cdi"
EXAMPLES = sorted((CDI / "examples").glob("*.json"))
SCHEMA = json.loads((CDI / "schema" / "cdi.schema.json").read_text())
OF_GO = {"bool": "boolean"} | dict.fromkeys(("int", "int64", "uint32", "os.FileMode"), "integer")

Verdict = dict[str, Any]
Fields = dict[str, tuple[str, bool]]
"""Fields by their key in JSON: what each holds, and whether it must be there."""


@pytest.fixture(scope="module")
def sources() -> Mapping[str, str]:
    """The Go files of the locked module, downloaded unless Go has it already."""
    answer = subprocess.run(["go", "mod", "download", "-json", SPECS], cwd=MODULE, check=True, stdout=subprocess.PIPE)
    folder = Path(json.loads(answer.stdout)["Dir"])
    return {path.name: path.read_text() for path in folder.glob("*.go")}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that asks the CDI library."""
    path = tmp_path_factory.mktemp("cdi") / "verdict"
    subprocess.run(["go", "build", "-o", path, "."], cwd=MODULE, check=True)
    return path


def verdicts(program: Path, *specs: Path) -> list[Verdict]:
    answer = subprocess.run([program, *specs], check=True, stdout=subprocess.PIPE).stdout
    return [json.loads(line) for line in answer.splitlines()]


def verdict(program: Path, folder: Path, document: object) -> Verdict:
    path = folder / "spec.json"
    path.write_text(json.dumps(document))
    (only,) = verdicts(program, path)
    return only


def their_fields(source: str) -> dict[str, Fields]:
    """The structs of a Go file, with their fields as they are in JSON."""
    structs = re.findall(r"^type (\w+) struct \{\n(.*?)^\}", source, re.MULTILINE | re.DOTALL)
    field = re.compile(r'^\s+\w+\s+(\S+)\s+`json:"(\w+)(,omitempty)?"', re.MULTILINE)
    return {
        name: {key: (of_go(go_type), not optional) for go_type, key, optional in field.findall(body)}
        for name, body in structs
    }


def of_go(go_type: str) -> str:
    go_type = go_type.removeprefix("*")
    if go_type.startswith("[]"):
        return f"array of {of_go(go_type[2:])}"
    return "object of string" if go_type == "map[string]string" else OF_GO.get(go_type, go_type)


def our_fields() -> dict[str, Fields]:
    """The objects of the schema in the same form, under the names that Go gives them."""
    objects = {"Spec": SCHEMA} | {struct_name(key): part for key, part in SCHEMA["definitions"].items()}
    return {
        name: {key: (of_schema(field), key in part.get("required", ())) for key, field in part["properties"].items()}
        for name, part in objects.items()
        if "properties" in part
    }


def of_schema(part: Mapping[str, Any]) -> str:
    if "$ref" in part:
        key = part["$ref"].removeprefix("#/definitions/")
        definition = SCHEMA["definitions"][key]
        return struct_name(key) if "properties" in definition else of_schema(definition)
    if "enum" in part:
        return "string" if all(isinstance(value, str) for value in part["enum"]) else "mixed"
    if part["type"] == "array":
        return f"array of {of_schema(part['items'])}"
    return f"object of {of_schema(part['additionalProperties'])}" if part["type"] == "object" else str(part["type"])


def struct_name(key: str) -> str:
    return key[0].upper() + key[1:]


def test_the_schema_has_every_field_of_the_format_and_no_other(sources: Mapping[str, str]) -> None:
    theirs = their_fields(sources["config.go"])
    assert len(theirs["DeviceNode"]) == 9
    assert our_fields() == theirs


def test_the_versions_are_those_that_were_released(sources: Mapping[str, str]) -> None:
    source = sources["version.go"]
    known = re.findall(r'^\tv\d+ version = "([\d.]+)"$', source, re.MULTILINE)
    earliest = re.search(r"vEarliest version = v(\d)(\d)(\d)$", source, re.MULTILINE)
    current = re.search(r'CurrentVersion = "([\d.]+)"', source)
    assert earliest is not None and current is not None
    assert tuple(known[known.index(".".join(earliest.groups())) :]) == VERSIONS
    assert VERSIONS[-1] == current.group(1)


@pytest.mark.parametrize("name", GOOD)
def test_the_library_accepts_a_good_spec_and_needs_the_same_version(name: str, program: Path, tmp_path: Path) -> None:
    found = verdict(program, tmp_path, GOOD[name])
    assert found["error"] == ""
    assert found["minimum"] == required_version(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_the_library_refuses_a_bad_spec(name: str, program: Path, tmp_path: Path) -> None:
    document, _ = BAD[name]
    assert verdict(program, tmp_path, document)["error"]


def test_the_library_takes_every_example_and_needs_no_lower_version(program: Path) -> None:
    found = {Path(each["path"]).name: each for each in verdicts(program, *EXAMPLES)}
    assert len(found) == len(EXAMPLES) > 0
    for path in EXAMPLES:
        assert found[path.name]["error"] == ""
        assert found[path.name]["minimum"] == json.loads(path.read_bytes())["cdiVersion"]


def test_every_name_of_every_example_is_resolved_and_its_edits_can_be_made(program: Path) -> None:
    for path, found in zip(EXAMPLES, verdicts(program, *EXAMPLES), strict=True):
        spec = json.loads(path.read_bytes())
        assert found["unusable"] == ""
        assert {parse_qualified(name).device for name in found["devices"]} == {one["name"] for one in spec["devices"]}
        everything = next(one for one in spec["devices"] if one["name"] == "all")["containerEdits"]
        assert found["nodes"] == len(everything["deviceNodes"]) + len(spec["containerEdits"]["deviceNodes"])
        assert found["mounts"] == len(spec["containerEdits"]["mounts"])
