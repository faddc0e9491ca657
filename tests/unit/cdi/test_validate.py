import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import jsonschema
import pytest

from node_agent.cdi.edits import ContainerEdits, Device, DeviceNode, Spec
from node_agent.cdi.validate import validate, validate_document
from node_agent.cdi.versions import VERSIONS
from node_agent.errors import InvalidSpec
from tests.fakes.names import KIND
from tests.unit.cdi.documents import BAD, GOOD, spec

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "cdi/schema/cdi.schema.json").read_text())
CHECK = "node_agent/wire/cdi_schema.py"


@pytest.mark.parametrize("name", GOOD)
def test_a_good_spec_is_accepted(name: str) -> None:
    validate_document(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_a_bad_spec_is_refused_and_the_place_named(name: str) -> None:
    document, said = BAD[name]
    with pytest.raises(InvalidSpec) as refusal:
        validate_document(document)
    assert said in str(refusal.value)


@pytest.mark.parametrize("content", [None, [], "spec", 1])
def test_what_is_no_object_is_no_spec(content: object) -> None:
    with pytest.raises(InvalidSpec, match="spec must be object"):
        validate_document(content)


def test_validation_changes_nothing() -> None:
    document = spec()
    before = deepcopy(document)
    validate_document(document)
    assert document == before


def test_a_spec_value_is_checked_as_it_will_be_written() -> None:
    edits = ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidia0"),))
    good = Spec(cdi_version="0.5.0", kind=KIND, devices=(Device(name="0", container_edits=edits),))
    validate(good)
    with pytest.raises(InvalidSpec, match=r"spec\.devices"):
        validate(Spec(cdi_version="0.5.0", kind=KIND, devices=()))
    with pytest.raises(InvalidSpec, match=r"came with 0\.5\.0"):
        validate(Spec(cdi_version="0.3.0", kind=KIND, devices=good.devices))


def test_the_committed_check_is_what_the_schema_generates(tmp_path: Path) -> None:
    generated = tmp_path / CHECK
    generated.parent.mkdir(parents=True)
    subprocess.run([sys.executable, ROOT / "cdi/schema/generate.py", tmp_path], check=True)
    assert generated.read_text() == (ROOT / CHECK).read_text(), "generate it anew with `make protos`"


def test_the_schema_is_a_valid_one() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", GOOD)
def test_the_schema_means_the_same_to_another_validator(name: str) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(GOOD[name])


def test_the_schema_and_the_history_know_the_same_versions() -> None:
    assert tuple(SCHEMA["properties"]["cdiVersion"]["enum"]) == VERSIONS


def test_every_object_of_the_schema_is_closed() -> None:
    objects = [SCHEMA, *SCHEMA["definitions"].values()]
    assert all("additionalProperties" in part for part in objects if part["type"] == "object")


def test_importing_the_package_does_not_load_the_validator() -> None:
    code = "import sys, node_agent.cdi.writer, node_agent.cdi.build; sys.exit('fastjsonschema' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
