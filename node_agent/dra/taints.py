"""Taints of published devices: why one should not be given out, or what to know of it. Pure; ``slices`` attaches them.

A device that is out of service stays in its slice under a taint: a claim may hold it, and a device that vanished would
no longer be counted against those that share its hardware.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from node_agent.dra.device_health import health_of
from node_agent.model.device import PublishedDevice
from node_agent.model.health import HealthReport, Reason, Severity
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Place

MOST_TAINTS = 16
"""Of one device; the API takes no more."""

HELD = "held"
"""Why a sound device is not to be given out: somebody has its hardware whom the scheduler cannot see."""


class Effect(StrEnum):
    """NO_EXECUTE also ends pods that hold the device, NO_SCHEDULE keeps new claims away, NONE only tells."""

    NO_EXECUTE = "NoExecute"
    NO_SCHEDULE = "NoSchedule"
    NONE = "None"


_EFFECTS = {Severity.EVICTED: Effect.NO_EXECUTE, Severity.WITHDRAWN: Effect.NO_SCHEDULE, Severity.DEGRADED: Effect.NONE}


class Taint(Struct, frozen=True, kw_only=True):
    """One taint; ``value`` is a number of the driver's, such as that of an Xid, or nothing."""

    key: str
    effect: Effect
    value: str = ""

    @property
    def content(self) -> Mapping[str, str]:
        """The taint as the API has it, without the time at which it was added: the server sets that."""
        named = {"value": self.value} if self.value else {}
        return {"key": self.key, **named, "effect": self.effect.value}


def taints_of(
    device: PublishedDevice, health: HealthReport, inventory: Inventory, withheld: Collection[Place]
) -> tuple[Taint, ...]:
    """The taints of a device, in a fixed order; too many are cut to those that matter.

    ``withheld`` are places that must not be given out although they are sound.
    """
    driver = inventory.vendor.driver
    found = [
        _taint(driver, cause.reason, _EFFECTS[cause.severity], cause.code)
        for cause in health_of(device, health, inventory).causes
        if cause.severity in _EFFECTS
    ]
    if any(missing.uuid in device.gpus for missing in inventory.missing):
        away = Reason.LOST if inventory.problem is None else Reason.QUERY_FAILED
        found.append(_taint(driver, away, Effect.NO_SCHEDULE))
    if any(place.overlaps(other) for place in device.places for other in withheld):
        found.append(_taint(driver, HELD, Effect.NO_SCHEDULE))
    # That nobody has looked yet is worth a word only where nothing else keeps claims away.
    not_probed = _taint(driver, Reason.NOT_PROBED, Effect.NO_SCHEDULE)
    known = [taint for taint in found if taint != not_probed]
    return together(known if any(taint.effect is not Effect.NONE for taint in known) else found)


def together(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    """Each taint once, with its worst effect; where there are too many, those that only tell go."""
    weight = list(Effect)
    ordered = sorted(set(taints), key=lambda taint: (weight.index(taint.effect), taint.key, taint.value))
    worst: dict[tuple[str, str], Taint] = {}
    for taint in ordered:
        worst.setdefault((taint.key, taint.value), taint)
    return tuple(worst.values())[:MOST_TAINTS]


def _taint(driver: str, reason: str, effect: Effect, code: int | None = None) -> Taint:
    return Taint(key=f"{driver}/{reason}", effect=effect, value="" if code is None else str(code))
