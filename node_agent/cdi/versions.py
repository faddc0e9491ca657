"""Which version of the CDI format a spec needs: runtimes refuse one that uses more than its version had.

Declaring the lowest keeps specs readable for older runtimes. The table follows the list of released versions in the CDI
project's SPEC.md; its 0.8.0 and 1.0.0 added nothing to the format. Works on documents (a spec as JSON), so that it
covers the whole format and not only what ``edits`` can say.
"""

from collections.abc import Mapping
from typing import Any

# All versions that a spec may declare, oldest first; earlier ones were never released.
VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

# The fields that each version added, to a spec as a whole and to each of its devices.
_ADDED = {
    "0.4.0": ("containerEdits.mounts.type",),
    "0.5.0": ("containerEdits.deviceNodes.hostPath",),
    "0.6.0": ("annotations",),
    "0.7.0": ("containerEdits.intelRdt", "containerEdits.additionalGids"),
    "1.1.0": (
        "containerEdits.netDevices",
        "containerEdits.intelRdt.schemata",
        "containerEdits.intelRdt.enableMonitoring",
    ),
}


def required_version(document: Mapping[str, Any]) -> str:
    """The lowest version that has all that the document uses. The document must follow the schema."""
    needed = [VERSIONS[0]]
    parts = [document, *document["devices"]]
    for version, fields in _ADDED.items():
        if any(_uses(part, field.split(".")) for field in fields for part in parts):
            needed.append(version)
    if any(device["name"][0].isdigit() for device in document["devices"]):
        needed.append("0.5.0")
    if "." in document["kind"].partition("/")[2]:
        needed.append("0.6.0")
    return max(needed, key=VERSIONS.index)


def _uses(value: Any, path: list[str]) -> bool:
    """True where something that is not empty stands at the path, in any item of a list on the way."""
    if isinstance(value, list):
        return any(_uses(item, path) for item in value) if path else bool(value)
    if not path:
        return bool(value)
    return path[0] in value and _uses(value[path[0]], path[1:])
