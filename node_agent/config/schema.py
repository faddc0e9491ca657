"""The form of the file as a JSON schema, for editors and for whoever checks files without the agent."""

import json
from typing import Any

import msgspec

from node_agent.config.file import File


def schema() -> dict[str, Any]:
    """The schema, draft 2020-12; ``rules`` of several keys are beyond it."""
    (reference,), sections = msgspec.json.schema_components([File], ref_template="#/$defs/{name}")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Configuration of node-agent"}
    return _plain({**head, **reference, "$defs": sections})


def _plain(document: object) -> dict[str, Any]:
    """Plain JSON values, with the marks of our docstrings as Markdown has them."""
    found: dict[str, Any] = json.loads(json.dumps(document).replace("``", "`"))
    return found
