"""Which writes make the stored slices equal to those that are wanted: as few as the pool's protocol allows. Pure.

A pool may be used when there are as many slices of its highest generation as each of them says. So a change of more
than one slice is a new generation, with which all of them are written; until the last one is there, the scheduler
leaves the pool alone. A change of one slice alone, and the repair of what was already published, keep the generation.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct, field

from node_agent.dra.features import alike
from node_agent.dra.slices import SliceSpec
from node_agent.kube.resources import Object

LONGEST_NAME = 253

Objects: TypeAlias = Mapping[str, Object]
"""Slices by the name of their object."""

TaintKey: TypeAlias = tuple[str, str, str, str]
Times: TypeAlias = Mapping[TaintKey, str]
"""When each taint was added, by device, key, value and effect: a taint that stays keeps its time."""


class Attempt(Struct, frozen=True, kw_only=True):
    """What was written last or at least begun: all slices of ``generation``."""

    generation: int = 0
    wanted: Objects = field(default_factory=dict)


class Writes(Struct, frozen=True, kw_only=True):
    """First ``obsolete`` objects are deleted, then ``changed`` ones are updated or made, in this order."""

    attempt: Attempt
    obsolete: tuple[Object, ...] = ()
    changed: tuple[Object, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.obsolete or self.changed)


def object_name(node: str, name: str, driver: str) -> str:
    """The same for the same node and slice; in the order of the slices' own names, which the scheduler follows."""
    head, tail = node, f"-{driver}-{name}"
    # A node's name may be as long as any name.
    if len(head) + len(tail) > LONGEST_NAME:
        digest = hashlib.sha256(node.encode()).hexdigest()[:12]
        head = f"{node[: LONGEST_NAME - len(tail) - len(digest) - 1].rstrip('.-')}-{digest}"
    return head + tail


def wanted_objects(slices: Iterable[SliceSpec], node: str, node_uid: str, driver: str) -> Objects:
    """The objects, as far as they do not depend on what is stored. They end with the node, which owns them."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return {
        (name := object_name(node, one.name, driver)): {
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"driver": driver, "nodeName": node, "pool": {"name": node}, **one.content},
        }
        for one in slices
    }


def same(one: Object, other: Object) -> bool:
    """Whether two slices are the same in all that is ours to decide, whatever their pool's numbers."""
    return alike(_ours(one), _ours(other))


def _ours(item: Object) -> Any:
    spec = {**item["spec"], "pool": {"name": item["spec"]["pool"]["name"]}}
    return {"owners": item["metadata"].get("ownerReferences"), "spec": spec}


def generation_of(item: Object) -> int:
    return int(item["spec"]["pool"].get("generation", 0))


def times_of(items: Iterable[Object]) -> Times:
    return {key: taint["timeAdded"] for item in items for key, taint in _taints(item) if taint.get("timeAdded")}


def with_times(item: Object, times: Times) -> Object:
    """The slice with the times of those of its taints that have one; a new taint gets its time from the server."""
    if "devices" not in item["spec"]:
        return item
    devices = [
        {**device, "taints": _timed(device, times)} if "taints" in device else device
        for device in item["spec"]["devices"]
    ]
    return {**item, "spec": {**item["spec"], "devices": devices}}


def plan(wanted: Objects, stored: Objects, last: Attempt, equal: Mapping[str, bool], times: Times) -> Writes:
    """The writes. ``equal`` says which of the stored objects are the same as the wanted ones."""
    highest = max([last.generation, *map(generation_of, stored.values())])
    obsolete = tuple(item for name, item in stored.items() if name not in wanted or not _may_become(item, wanted[name]))
    stored = {name: item for name, item in stored.items() if item not in obsolete}
    differing = [name for name in wanted if not equal.get(name)]
    behind = [name for name in wanted if name in stored and _numbers(stored[name]) != (highest, len(wanted))]
    generation = highest
    if (wanted, highest) == (last.wanted, last.generation):
        # This generation was begun with just these slices: whoever has seen some of them has seen nothing else.
        names = [name for name in wanted if name in {*differing, *behind}]
    elif not obsolete and not behind and len(differing) <= 1 and all(name in stored for name in differing):
        # One write is seen whole or not at all.
        names = differing
    else:
        generation, names = highest + 1, list(wanted)
    numbers = {"generation": generation, "resourceSliceCount": len(wanted)}
    bodies = (_body(with_times(wanted[name], times), stored.get(name), numbers) for name in names)
    attempt = Attempt(generation=generation, wanted=wanted)
    return Writes(attempt=attempt, obsolete=obsolete, changed=tuple(bodies))


def _body(wanted: Object, stored: Object | None, numbers: Mapping[str, int]) -> Object:
    """What to send; labels and annotations that others have put on the object stay."""
    metadata = {**(stored["metadata"] if stored else {}), **wanted["metadata"]}
    metadata.pop("managedFields", None)
    return {"metadata": metadata, "spec": {**wanted["spec"], "pool": {**wanted["spec"]["pool"], **numbers}}}


def _may_become(stored: Object, wanted: Object) -> bool:
    """A slice cannot be moved to another pool."""
    return bool(stored["spec"]["pool"]["name"] == wanted["spec"]["pool"]["name"])


def _numbers(item: Object) -> tuple[int, int]:
    return generation_of(item), int(item["spec"]["pool"].get("resourceSliceCount", 0))


def _taints(item: Object) -> Iterator[tuple[TaintKey, Mapping[str, str]]]:
    for device in item["spec"].get("devices") or ():
        for taint in device.get("taints") or ():
            yield _key(device, taint), taint


def _timed(device: Mapping[str, Any], times: Times) -> list[Mapping[str, str]]:
    known = [(taint, times.get(_key(device, taint))) for taint in device["taints"]]
    return [{**taint, "timeAdded": time} if time else taint for taint, time in known]


def _key(device: Mapping[str, Any], taint: Mapping[str, str]) -> TaintKey:
    return device["name"], taint["key"], taint.get("value", ""), taint["effect"]
