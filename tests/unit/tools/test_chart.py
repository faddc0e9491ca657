"""The chart's values as they are written; `tests/node/test_manifests.py` shows what the real helm makes of them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[3] / "deploy" / "helm" / "gpu-node-agent"
VALUES = (CHART / "values.yaml").read_text()
# Helm gives every chart this one.
HELMS = {"global"}


def declared(
    schema: dict[str, Any], values: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, set[str], set[str]]]:
    """Each part whose keys are closed: its path, the keys of the schema, the keys of the values."""
    if schema.get("additionalProperties") is False:
        yield path, set(schema["properties"]) - HELMS, set(values)
        for key, below in schema["properties"].items():
            yield from declared(below, values.get(key, {}), f"{path}/{key}")


def test_schema_and_values_have_the_same_keys() -> None:
    parts = list(declared(json.loads((CHART / "values.schema.json").read_text()), yaml.safe_load(VALUES)))
    assert {"", "/image", "/modes"} <= {path for path, _, _ in parts}
    assert [path for path, schema, values in parts if schema != values] == []


def test_each_paragraph_of_values_says_what_it_is_for() -> None:
    paragraphs = [one for one in re.split(r"\n\n", VALUES) if re.search(r"^\w", one, flags=re.M)]
    assert len(paragraphs) > 12
    assert [one for one in paragraphs if not re.search(r"^ *# \w", one, flags=re.M)] == []


def test_each_mode_says_what_it_is_for() -> None:
    lines = VALUES.split("\nmodes:\n")[1].split("\n\n")[0].splitlines()
    modes = [number for number, line in enumerate(lines) if re.match(r"  \w", line)]
    assert len(modes) > 6
    assert [lines[one] for one in modes if not lines[one - 1].startswith("  # ")] == []
