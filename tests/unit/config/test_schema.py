"""The JSON schema says of a file what the agent would say, as far as single keys go."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.check import problems
from node_agent.config.schema import schema
from node_agent.config.sources import nested

GOOD = [
    {},
    {"version": "v1", "agent": {"rescanInterval": "30s"}},
    {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4, "devices": [0, "0:1"]}]}}},
    {"agent": {"sharing": {"placement": "distinct", "rules": [{"replicas": 2, "memoryPerShare": "20Gi"}]}}},
]
WRONG = [
    {"flags": {"migStrategy": "x"}},
    {"unknown": 1},
    {"agent": {"paths": {"cdiDir": "relative"}}},
    {"agent": {"sharing": {"rules": [{}]}}},
    {"sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 1}]}}},
]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("document", GOOD)
def test_what_the_agent_takes_is_valid(document: dict[str, object]) -> None:
    assert list(problems(document)) == []
    jsonschema.validate(document, schema())


@pytest.mark.parametrize("document", WRONG)
def test_what_the_agent_refuses_is_not(document: dict[str, object]) -> None:
    assert list(problems(document))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())


VALIDATOR = jsonschema.Draft202012Validator(schema())


@given(
    st.sampled_from(["agent.rescanInterval", "flags.mpsRoot", "agent.devices.exclude", "agent.sharing.placement"]),
    st.one_of(st.text(max_size=5), st.integers(-2, 5), st.lists(st.integers(-1, 3), max_size=2), st.booleans()),
)
def test_any_value_of_a_key_is_judged_alike(path: str, value: object) -> None:
    document = nested({path: value})
    assert VALIDATOR.is_valid(document) == (list(problems(document)) == [])


def test_sections_are_described_for_people() -> None:
    described = [name for name, section in schema()["$defs"].items() if section.get("description")]
    assert len(described) > 10
    assert "``" not in str(schema())
