"""The generated page of all settings, from the schema of the configuration file and the variables that set its keys."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from node_agent.agent.reload import AFTER_RESTART
from node_agent.config.notices import UNSERVED
from node_agent.config.schema import schema
from node_agent.config.sources import VARIABLES

HEAD = """# Settings

Generated from `node_agent/config` by `python -m tools.documents --write`: every key of the configuration file.
[configuration.md](configuration.md) says where values come from, and what happens when one changes. *live* is in force
within seconds of a change, *restart* when the agent is started again. In a list, `[]` stands for each of its items.
"""
WORDS = {"boolean": "true, false", "string": "text", "integer": "whole number", "number": "number", "object": "keys"}
TABLE = "| key | values | default | variable | changes |\n| --- | --- | --- | --- | --- |\n"

# What only a new start puts in force: where labels go is by NVIDIA's keys as well.
LATE = (*AFTER_RESTART.values(), "flags.gfd", "flags.useNodeFeatureAPI")

Schema = Mapping[str, Any]


def page() -> str:
    whole = schema()
    parts = [part for path, section in _sections("", "File", whole["$defs"]) for part in _section(path, section)]
    return "\n".join([HEAD, *parts])


def _sections(path: str, name: str, known: Schema) -> Iterator[tuple[str, Schema]]:
    """Each section of the file with its path, those above first."""
    section = known[name]
    yield path, section
    for key, value in section.get("properties", {}).items():
        inner = f"{path}.{key}".lstrip(".")
        for reference, listed in _references(value):
            yield from _sections(f"{inner}[]" if listed else inner, reference, known)


def _references(value: Schema) -> Iterator[tuple[str, bool]]:
    """The sections that a key's value consists of, and whether it is a list of them."""
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2], False
    for choice in value.get("anyOf", ()):
        yield from _references(choice)
    items = value.get("items")
    if isinstance(items, dict):
        yield from ((reference, True) for reference, _ in _references(items))


def _section(path: str, section: Schema) -> Iterator[str]:
    keys = {key: value for key, value in section["properties"].items() if not list(_references(value))}
    if not keys:
        return
    yield f"## {path or 'The file'}\n"
    if about := section.get("description"):
        said = about.removeprefix(f"`{path}`: ")  # for who reads it in the code
        yield f"{said[0].upper()}{said[1:]}\n"
    rows = (_row(f"{path}.{key}".lstrip("."), key, value, section) for key, value in keys.items())
    yield TABLE + "".join(rows)


def _row(path: str, key: str, value: Schema, section: Schema) -> str:
    default = "needed" if key in section.get("required", ()) else _default(value)
    variables = ", ".join(f"`{name}`" for name in VARIABLES.get(path, (str, ()))[1])
    return f"| `{key}` | {_values(value)} | {default} | {variables} | {_changes(path)} |\n"


def _values(value: Schema) -> str:
    """What may stand there: its description, the words, or the type."""
    if "description" in value:
        said = str(value["description"])
    elif "enum" in value:
        said = ", ".join(f"`{word}`" for word in value["enum"])
    elif "anyOf" in value:
        said = " or ".join(_values(choice) for choice in value["anyOf"] if choice.get("type") != "null")
    elif value.get("type") == "array":
        said = f"list of {_values(value['items'])}" if isinstance(value.get("items"), dict) else "list"
    else:
        said = WORDS[value["type"]]
    return said.replace("|", "\\|")


def _default(value: Schema) -> str:
    default = value.get("default")
    return "" if default in (None, "") else f"`{json.dumps(default, ensure_ascii=False)}`".replace("|", "\\|")


def _changes(path: str) -> str:
    for key, instead in UNSERVED.items():
        if _within(path, key):
            return f"does nothing: {instead}"
    return "restart" if any(_within(path, late) for late in LATE) else "live"


def _within(path: str, key: str) -> bool:
    return f"{path}.".startswith(f"{key}.")
