"""The file of named layouts that people know from mig-parted (version v1), read strictly. Pure: bytes in, values out.

What one of its layouts comes to on a GPU is worked out in ``static``. Where there is no file, ``usual`` makes the usual
layouts from what the hardware offers: ``all-disabled``, ``all-enabled``, ``all-balanced`` and ``all-<profile>``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from node_agent.config.check import Problem, problems
from node_agent.config.document import read
from node_agent.errors import ConfigError, LayoutRefused
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.partition.layout import Rules
from node_agent.partition.names import profile_name
from node_agent.partition.static import layout_for

_NVIDIA = 0x10DE
_FILTER = r"^0x[0-9A-Fa-f]{8}(:0x[0-9A-Fa-f]{8})?$"

Filter = Annotated[str, Meta(pattern=_FILTER, description="PCI ids such as 0x233510DE or 0x233510DE:0x18BE10DE")]
Counts = Annotated[dict[str, Any], Meta(description="a section that says how many of each profile")]


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """What some GPUs of a layout are to be. ``device_filter`` are PCI ids as ``0xDDDDVVVV``, device before vendor."""

    devices: Annotated[
        Literal["all"] | tuple[Annotated[int, Meta(ge=0, description="the index of a GPU")], ...],
        Meta(description="all, or a list of indices of GPUs"),
    ]
    mig_enabled: bool
    mig_devices: Counts | None = None
    device_filter: Annotated[Filter | tuple[Filter, ...], Meta(description="PCI ids, or a list of them")] = ()

    def concerns(self, gpu: Gpu) -> bool:
        filters = (self.device_filter,) if isinstance(self.device_filter, str) else self.device_filter
        return (self.devices == "all" or gpu.index in self.devices) and (
            not filters or any(_matches(one, gpu) for one in filters)
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """How many of each profile; those of which there shall be none are left out."""
        return {name: count for name, count in (self.mig_devices or {}).items() if count}


Layouts = Mapping[str, tuple[Entry, ...]]
"""Named layouts of a node, each a list of entries of which a GPU follows the last that concerns it."""


def parse(data: bytes) -> Layouts:
    """The layouts of a file.

    Raises:
        ConfigError: names every problem with its path and what would be valid.
    """
    document = read(data)
    found = list(_problems(document))
    if found:
        raise ConfigError("; ".join(map(str, found)))
    assert isinstance(document, Mapping)
    # A key without a value says nothing, as in NVIDIA's programs.
    said = {
        name: [{key: value for key, value in entry.items() if value is not None} for entry in entries]
        for name, entries in document["mig-configs"].items()
    }
    return msgspec.convert(said, dict[str, tuple[Entry, ...]])


def named(layouts: Layouts, name: str) -> tuple[Entry, ...]:
    """The layout of that name. Raises ConfigError, with the nearest names, where there is none."""
    if name in layouts:
        return layouts[name]
    near = get_close_matches(name, layouts, n=3, cutoff=0.5) or sorted(layouts)
    raise ConfigError(f"no MIG layout is named {name!r}; there is {', '.join(near)}")


def wanted(entries: Sequence[Entry], gpus: Iterable[Gpu]) -> dict[GpuUuid, Entry]:
    """What each GPU is to be; those that nothing concerns are left as they are, and out."""
    return {gpu.uuid: entry for gpu in gpus for entry in entries if entry.concerns(gpu)}


def usual(gpus: Iterable[tuple[Gpu, Rules]]) -> Layouts:
    """The usual layouts for the GPUs that can be cut, with the rules of each."""
    models: dict[Rules, list[Gpu]] = {}
    for gpu, rules in gpus:
        models.setdefault(rules, []).append(gpu)
    layouts: dict[str, list[Entry]] = {"all-disabled": [Entry(devices="all", mig_enabled=False)]}
    for rules, cut in models.items():
        for name, counts in _usual(rules):
            # By index, since the layout is made for the GPUs of this moment only.
            devices = tuple(sorted(gpu.index for gpu in cut))
            layouts.setdefault(name, []).append(Entry(devices=devices, mig_enabled=True, mig_devices=counts))
    return {name: tuple(entries) for name, entries in layouts.items()}


def _usual(rules: Rules) -> Iterator[tuple[str, dict[str, int]]]:
    yield "all-enabled", {}
    for profile in rules.profiles:
        yield f"all-{profile.name.replace('+', '.')}", {profile.name: profile.limit}
    plain = [one for one in rules.profiles if not re.search(r"[+-]", one.name)]
    smallest = {one.slices: one.name for one in sorted(plain, key=lambda one: one.memory, reverse=True)}
    balanced = {
        smallest.get(slices, ""): count for slices, count in ((1, 2), (2, 1), (3, int(rules.slices > 4))) if count
    }
    try:
        layout_for(rules, balanced)
    except LayoutRefused:
        return
    yield "all-balanced", balanced


def _matches(text: str, gpu: Gpu) -> bool:
    device, _, subsystem = text.partition(":")
    own = None if gpu.device_id is None else gpu.device_id << 16 | _NVIDIA
    return int(device, 16) == own and (not subsystem or int(subsystem, 16) == gpu.subsystem_id)


def _problems(document: object) -> Iterator[Problem]:
    if not isinstance(document, Mapping):
        yield Problem(path="", message="expected a section with version and mig-configs")
        return
    for key in document.keys() - {"version", "mig-configs"}:
        yield Problem(path=key, message="unknown key; there is version, mig-configs")
    if document.get("version") != "v1":
        yield Problem(path="version", message="expected v1")
    layouts = document.get("mig-configs")
    if not isinstance(layouts, Mapping) or not layouts:
        yield Problem(path="mig-configs", message="expected a section with the layouts by their names")
        return
    for name, entries in layouts.items():
        yield from _layout_problems(f"mig-configs.{name}", entries)


def _layout_problems(path: str, entries: object) -> Iterator[Problem]:
    if not isinstance(entries, list):
        yield Problem(path=path, message="expected a list of entries")
        return
    for number, entry in enumerate(entries):
        here = f"{path}[{number}]"
        found = list(problems(entry, Entry, here))
        yield from found or _entry_problems(here, entry)


def _entry_problems(path: str, entry: Mapping[str, Any]) -> Iterator[Problem]:
    counts, here = entry.get("mig-devices"), f"{path}.mig-devices"
    if entry["mig-enabled"] and counts is None:
        yield Problem(path=here, message="is missing; with mig-enabled expected a section of counts, {} for none")
    elif not entry["mig-enabled"] and counts:
        yield Problem(path=here, message="has no meaning while mig-enabled is false; leave it out")
    for profile, count in (counts or {}).items():
        try:
            profile_name(profile)
        except ValueError as error:
            yield Problem(path=f"{here}.{profile}", message=str(error))
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            yield Problem(path=f"{here}.{profile}", message=f"expected a count; got {str(count)[:60]}")
