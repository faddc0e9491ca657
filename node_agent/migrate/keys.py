"""What can become of a key of NVIDIA's values, and the pieces of ours that are made of it. ``tables`` has the keys."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct

Fate = Literal["configuration", "manifest", "stays", "not needed", "no equal", "to decide"]
"""Becomes a key of the configuration; becomes a part of the manifests; goes on to be somebody else's; is there without
being asked for; cannot be had; is for a person to decide."""


class Finding(Struct, frozen=True, kw_only=True):
    """What became of what stands at ``path``, and why. The path of a list's item has its name in brackets."""

    path: str
    fate: Fate | Literal["unknown"]
    why: str


class Setting(Struct, frozen=True, kw_only=True):
    """A value of our configuration by the dotted path of its key: of all named configurations, as a flag would be."""

    path: str
    value: object


class Named(Struct, frozen=True, kw_only=True):
    """A named configuration in the form of NVIDIA's device plugin."""

    name: str
    text: str


class Layouts(Struct, frozen=True, kw_only=True):
    """A file of named MIG layouts, in the form of mig-parted."""

    text: str


class PodPart(Struct, frozen=True, kw_only=True):
    """What is laid over the DaemonSet's pod template at this dotted path; the agent's container goes by its name."""

    path: str
    value: Any


class Monitoring(Struct, frozen=True, kw_only=True):
    """PodMonitor, alerts and dashboard are wanted."""


Piece = Finding | Setting | Named | Layouts | PodPart | Monitoring
Reader = Callable[[str, Any], Iterator[Piece]]
"""Makes the pieces of a key's path and its value. Raises ConfigError where the value cannot be what it should."""


class Key(Struct, frozen=True, kw_only=True):
    """A key of a chart and all below it. ``what`` is the key of ours or the part of a manifest, else the reason."""

    path: str
    fate: Fate
    what: str
    read: Reader | None = None


class Chart(Struct, frozen=True, kw_only=True, dict=True):
    """A chart's keys by their paths. A section that its key ``enabled`` switches off says nothing else."""

    name: str
    title: str
    keys: Mapping[str, Key]

    @cached_property
    def sections(self) -> frozenset[str]:
        return frozenset(path[:end] for path in self.keys for end, sign in enumerate(path) if sign == ".")

    def knows(self, top: str) -> bool:
        """Whether a key of this name may stand at the top."""
        return top in self.keys or top in self.sections
