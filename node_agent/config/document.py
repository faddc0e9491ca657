"""A YAML (or JSON) document as plain values. No document is too deep, too large or too clever to get a plain error.

It is read as NVIDIA's programs read it, which is nearly YAML 1.2: ``1:30`` and ``2026-01-31`` are text, no number and
no date. A key that stands twice in one section is an error, since one of the two would be ignored in silence.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct

from node_agent.errors import ConfigError

try:
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML was built without libyaml: slower, the same otherwise
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]

# Far beyond any configuration; an alias counts as all that it stands for.
VALUES_LIMIT = 20_000
DEPTH_LIMIT = 32

_TAG = "tag:yaml.org,2002:"
_FORMS = {
    "bool": "yes|no|on|off|true|false|Yes|No|On|Off|True|False|YES|NO|ON|OFF|TRUE|FALSE",
    "null": "~|null|Null|NULL|",
    "int": "[-+]?(0|[1-9][0-9]{0,17}|0o?[0-7]{1,20}|0x[0-9a-fA-F]{1,15})",
    "float": r"[-+]?([0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18}|[0-9]{1,18}(?=[eE]))([eE][-+]?[0-9]{1,2})?",
    "merge": "<<",
}


class _Loader(_SafeLoader):
    """Knows a few plain types and no other."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the form are PyYAML's
        None: [(f"{_TAG}{name}", re.compile(f"(?:{form})$")) for name, form in _FORMS.items()]
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Keys are text, whatever they look like: as values, ``1`` and ``true`` would be one key."""
        node.value = [(_as_text(key), value) for key, value in node.value]
        return super().construct_mapping(node, deep)


def _as_text(key: yaml.Node) -> yaml.Node:
    if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
        return yaml.ScalarNode(f"{_TAG}str", key.value, key.start_mark, key.end_mark)
    return key


def read(data: bytes) -> object:
    """The values of the one document in ``data``; None where it is empty.

    Raises:
        ConfigError: the data is no YAML, or makes use of what a configuration has no need of.
    """
    try:
        _look_through(data)
        return yaml.load(data, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"no valid YAML: {' '.join(str(error).split())}") from error


class _Open(Struct):
    """A list or section that has not ended yet: how many values it holds so far, and a section's keys."""

    anchor: str | None = None
    size: int = 1
    keys: set[str] | None = None
    at_key: bool = True

    def add(self, size: int, text: str | None = None) -> bool:
        """Take in one more value; False where it is a key that is there already."""
        self.size += size
        if self.keys is None:
            return True
        fresh = not self.at_key or text not in self.keys
        if self.at_key and text is not None:
            self.keys.add(text)
        self.at_key = not self.at_key
        return fresh


def _look_through(data: bytes) -> None:
    """Refuse a document before anything is made of it: an alias may stand for more than memory holds, or for itself."""
    sizes: dict[str | None, int] = {}
    opened = [_Open()]
    events: Iterator[Any] = yaml.parse(data, Loader=_Loader)
    for event in events:
        complaint = _count(event, opened, sizes)
        if len(opened) > DEPTH_LIMIT or opened[-1].size > VALUES_LIMIT:
            complaint = "too deep or too large for a configuration"
        if complaint:
            raise ConfigError(f"line {event.start_mark.line + 1}: {complaint}")


def _count(event: Any, opened: list[_Open], sizes: dict[str | None, int]) -> str | None:
    """Add an event of the parser to what is open, and to the sizes of what has an anchor; answers what is wrong."""
    if getattr(event, "tag", None):
        return f"the tag {event.tag} has no meaning here"
    if isinstance(event, yaml.AliasEvent):
        if event.anchor not in sizes:
            return f"*{event.anchor} stands for nothing that has ended before"
        opened[-1].add(sizes[event.anchor])
    elif isinstance(event, yaml.ScalarEvent):
        sizes[event.anchor] = 1
        if not opened[-1].add(1, event.value):
            return f"the key {event.value[:60]} is there twice"
    elif isinstance(event, yaml.CollectionStartEvent):
        sizes.pop(event.anchor, None)
        opened.append(_Open(event.anchor, keys=set() if isinstance(event, yaml.MappingStartEvent) else None))
    elif isinstance(event, yaml.CollectionEndEvent):
        ended = opened.pop()
        sizes[ended.anchor] = ended.size
        opened[-1].add(ended.size)
    return None
