"""The software bill of materials: what the lock says that the wheel needs, as CycloneDX 1.5.

uv writes it from the lock, with the checksums of all files that there are of a package. What it makes up for each run
is replaced here, and what it does not know is added: the version of the project, and the licences.
"""

import json
import subprocess
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from node_agent import __version__

NAME = "gpu-node-agent"
UV = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "uv"
# What stands for no particular software: the root of the numbers that are made of contents.
SPACE = uuid.uuid5(uuid.NAMESPACE_URL, f"pkg:pypi/{NAME}")


def bill(source: Path, epoch: int) -> str:
    """The bill of the lock in a folder, dated ``epoch`` (seconds since 1970): the same lock has the same bill."""
    command = [str(UV), "export", "--quiet", "--frozen", "--no-dev", "--format=cyclonedx1.5"]
    document = json.loads(subprocess.run(command, cwd=source, check=True, capture_output=True).stdout)
    del document["serialNumber"], document["metadata"]["timestamp"]
    document["metadata"]["component"] |= {"version": __version__, "purl": f"pkg:pypi/{NAME}@{__version__}"}
    for component in (document["metadata"]["component"], *document["components"]):
        if licences := list(_licences(component["name"])):
            component["licenses"] = licences
    document["serialNumber"] = uuid.uuid5(SPACE, json.dumps(document, sort_keys=True)).urn
    document["metadata"]["timestamp"] = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _licences(name: str) -> Iterator[dict[str, Any]]:
    """The licence of an installed package in its own words; nothing for one that this platform does not need."""
    try:
        known = metadata(name)
    except PackageNotFoundError:
        return
    assert isinstance(known, Message)
    if expression := known["License-Expression"]:
        yield {"expression": expression}
    elif words := known["License"] or _classified(known):
        yield {"license": {"name": words}}


def _classified(known: Message) -> str:
    classifiers = known.get_all("Classifier") or []
    return next((one.rpartition(" :: ")[2] for one in classifiers if one.startswith("License :: ")), "")
