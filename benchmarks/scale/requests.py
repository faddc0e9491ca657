"""What was asked of the API server, and when, from its audit log."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

WRITES = frozenset({"create", "update", "patch", "delete"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request; ``at`` is when it came, in wall-clock seconds."""

    at: float
    verb: str
    resource: str
    code: int

    @property
    def name(self) -> str:
        return f"{self.verb} {self.resource}"


def requests(log: Path, since: float = 0.0) -> list[Request]:
    """All requests of the agents that came at ``since`` or later."""
    return [one for one in _read(log) if one.at >= since]


def peak(found: Iterable[Request], seconds: float = 1.0) -> int:
    """The most requests that came within so many seconds; several windows that overlap are tried."""
    times = sorted(one.at for one in found)
    most, begin = 0, 0
    for number, at in enumerate(times):
        while at - times[begin] > seconds:
            begin += 1
        most = max(most, number - begin + 1)
    return most


def by_name(found: Iterable[Request]) -> Counter[str]:
    return Counter(one.name for one in found)


def writes(found: Iterable[Request]) -> list[Request]:
    return [one for one in found if one.verb in WRITES]


def watches(found: Iterable[Request]) -> int:
    """How many watches on slices have begun."""
    return sum(one.name == "watch resourceslices" and one.code == 200 for one in found)


def _read(log: Path) -> Iterator[Request]:
    with log.open("rb") as lines:
        for line in lines:
            try:
                event = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue  # the last line may be half-written, and one is cut where the server was killed
            # A watch is answered when it begins, and audited again when it ends.
            if event["verb"] == "watch" and event["stage"] != "ResponseStarted":
                continue
            about = event.get("objectRef", {})
            yield Request(
                at=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
                verb=event["verb"],
                resource="/".join(filter(None, (about.get("resource", ""), about.get("subresource", "")))),
                code=event.get("responseStatus", {}).get("code", 0),
            )
