"""What the scheduler may allocate from a pool: its arithmetic with counters, as far as slices have to do with it.

The limits of the API are here too. Both are written down from Kubernetes, not shared with the code under test.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from node_agent.dra.slices import SliceSpec

Content = Mapping[str, Any]
CounterName = tuple[str, str]
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
UNITS = {"": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(1000)}


def amount(text: str) -> Fraction:
    found = re.fullmatch(r"(\d+)([a-zA-Z]*)", text)
    assert found is not None, text
    return int(found[1]) * UNITS[found[2]]


class Scheduler:
    """Allocates from the slices that are published now; what is allocated is the caller's to remember."""

    def __init__(self, contents: Iterable[Content]) -> None:
        contents = list(contents)
        self.devices: dict[str, Content] = {}
        self.totals: dict[CounterName, Fraction] = {}
        for content in contents:
            for device in content.get("devices", ()):
                assert device["name"] not in self.devices, "the pool is invalid: a name twice"
                self.devices[device["name"]] = device
            for one in content.get("sharedCounters", ()):
                for name, counter in one["counters"].items():
                    assert (one["name"], name) not in self.totals, "the pool is invalid: a counter twice"
                    self.totals[one["name"], name] = amount(counter["value"])
        self.drawn = {name: _drawn(device) for name, device in self.devices.items()}
        for drawn in self.drawn.values():
            assert drawn.keys() <= self.totals.keys(), "the pool is invalid: an unknown counter"

    def left(self, allocated: Collection[str]) -> dict[CounterName, Fraction]:
        """What is left of each counter; allocated devices that are not published any more do not count."""
        left = dict(self.totals)
        for name in allocated:
            for counter, drawn in self.drawn.get(name, {}).items():
                left[counter] -= drawn
        return left

    def may_allocate(self, name: str, allocated: Collection[str]) -> bool:
        """Whether a claim without tolerations may get the device."""
        device, drawn, left = self.devices[name], self.drawn[name], self.left(allocated)
        if name in allocated or any(taint["effect"] != "None" for taint in device.get("taints", ())):
            return False
        if drawn and min(left.values()) < 0:
            return False
        return all(left[counter] >= taken for counter, taken in drawn.items())

    def allocations(self, allocated: tuple[str, ...] = (), after: int = 0) -> Iterator[tuple[str, ...]]:
        """Every set of devices that may be allocated together."""
        yield allocated
        for position, name in enumerate(list(self.devices)[after:], start=after):
            if self.may_allocate(name, allocated):
                yield from self.allocations((*allocated, name), position + 1)


def _drawn(device: Content) -> dict[CounterName, Fraction]:
    return {
        (one["counterSet"], name): amount(counter["value"])
        for one in device.get("consumesCounters", ())
        for name, counter in one["counters"].items()
    }


def of(slices: Iterable[SliceSpec]) -> Scheduler:
    return Scheduler(one.content for one in slices)


def check_limits(content: Content) -> None:
    """What the API server refuses."""
    devices, sets = content.get("devices", ()), content.get("sharedCounters", ())
    assert not (devices and sets)
    assert len(sets) <= 8
    restricted = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    assert len(devices) <= (64 if restricted else 128)
    for one in sets:
        assert LABEL.fullmatch(one["name"])
        assert 1 <= len(one["counters"]) <= 32
        assert all(LABEL.fullmatch(name) for name in one["counters"])
    for device in devices:
        assert LABEL.fullmatch(device["name"])
        assert len(device["attributes"]) + len(device.get("capacity", ())) <= 32
        assert len(device.get("taints", ())) <= 16
        assert len(device.get("consumesCounters", ())) <= 2
