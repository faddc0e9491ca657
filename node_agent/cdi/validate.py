"""Is this a CDI spec that every runtime takes? Asked of each spec before it is written.

The JSON schema says what can be said field by field, by way of ``wire/cdi_schema``, which is generated from it; the
rest is said here: names that differ, devices that change something, a declared version that has all that is used.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from node_agent.cdi.edits import Spec, document
from node_agent.cdi.versions import VERSIONS, required_version
from node_agent.errors import InvalidSpec


def validate(spec: Spec) -> None:
    """Check a spec before it is written. Raises InvalidSpec, which names the place in the spec and what is wrong."""
    validate_document(document(spec))


def validate_document(content: Any) -> None:
    """Check a spec as it was read from JSON. Raises InvalidSpec as ``validate``."""
    # Imported here: only a process that writes or checks specs pays for it.
    from fastjsonschema import JsonSchemaValueException  # noqa: PLC0415

    from node_agent.wire import cdi_schema  # noqa: PLC0415

    check: Callable[[Any], object] = cdi_schema.validate
    try:
        check(content)
    except JsonSchemaValueException as error:
        raise InvalidSpec(error.message.replace("data", "spec", 1)) from error
    for complaint in _complaints(content):
        raise InvalidSpec(complaint)


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
