"""Is this a CDI spec that every runtime takes? Asked of each spec before it is written.

The JSON schema says what can be said field by field, the rest is said here: names that differ, devices that change
something, a declared version that has all that is used. ``cdi/schema/cdi.schema.json`` lies at the top of a clone and
beside this module in an installed package.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from node_agent.cdi.edits import Spec, document
from node_agent.cdi.versions import VERSIONS, required_version
from node_agent.errors import InvalidSpec

_SCHEMA = "cdi.schema.json"


def schema_path() -> Path:
    """Where the schema lies: beside this module, or in the clone that it is run from."""
    installed = Path(__file__).with_name(_SCHEMA)
    return installed if installed.exists() else Path(__file__).parents[2] / "cdi" / "schema" / _SCHEMA


def validate(spec: Spec) -> None:
    """Check a spec before it is written. Raises InvalidSpec, which names the place in the spec and what is wrong."""
    validate_document(document(spec))


def validate_document(content: Any) -> None:
    """Check a spec as it was read from JSON. Raises InvalidSpec as ``validate``."""
    # Imported here: only a process that writes or checks specs pays for it.
    from fastjsonschema import JsonSchemaValueException  # noqa: PLC0415

    try:
        _schema()(content)
    except JsonSchemaValueException as error:
        raise InvalidSpec(error.message.replace("data", "spec", 1)) from error
    for complaint in _complaints(content):
        raise InvalidSpec(complaint)


@cache
def _schema() -> Callable[[Any], object]:
    import fastjsonschema  # noqa: PLC0415

    check: Callable[[Any], object] = fastjsonschema.compile(
        msgspec.json.decode(schema_path().read_bytes()), use_default=False
    )
    return check


def _complaints(content: Mapping[str, Any]) -> Iterator[str]:
    names = [device["name"] for device in content["devices"]]
    yield from _twice("spec.devices", "name", names)
    for index, device in enumerate(content["devices"]):
        if not any(device["containerEdits"].values()):
            yield f"spec.devices[{index}].containerEdits: device {device['name']} changes nothing in a container"
    for path, edits in _edits(content):
        for field in ("name", "hostInterfaceName"):
            yield from _twice(f"{path}.netDevices", field, [net[field] for net in edits.get("netDevices", ())])
    needed = required_version(content)
    if VERSIONS.index(content["cdiVersion"]) < VERSIONS.index(needed):
        yield f"spec.cdiVersion: {content['cdiVersion']} is declared, but what is used came with {needed}"


def _edits(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "spec.containerEdits", content.get("containerEdits", {})
    for index, device in enumerate(content["devices"]):
        yield f"spec.devices[{index}].containerEdits", device["containerEdits"]


def _twice(path: str, field: str, values: list[str]) -> Iterator[str]:
    yield from (f"{path}: {count} have the {field} {value}" for value, count in Counter(values).items() if count > 1)
