"""When pods saw which devices, by their own word: the node's uptime before they looked and before they ended.

The kubelet's times are no witness: they are whole seconds, and of a wall clock that may be set.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# One clock for all pods of the node, in hundredths of a second.
_UPTIME = "cut -d' ' -f1 /proc/uptime"
SCRIPT = f"{_UPTIME}; ls -d /dev/nvidia[0-9]* /dev/nvidia-caps/* 2>/dev/null; sleep {{seconds}}; {_UPTIME}"
"""What a pod runs that sees its devices for so many seconds."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """From when to when a pod saw a device file, in seconds of uptime; ``part`` where it has a part of the GPU."""

    pod: str
    path: str
    began: float
    ended: float
    part: bool

    def clashes(self, other: "Span") -> bool:
        together = self.began < other.ended and other.began < self.ended
        return self.path == other.path and together and not (self.part and other.part)

    def __str__(self) -> str:
        return f"{self.pod} from {self.began} to {self.ended}"


def spans(pod: str, written: str) -> Sequence[Span]:
    """What a pod saw, from what it wrote to its end."""
    began, *paths, ended = written.split()
    part = any("caps" in path for path in paths)
    return [
        Span(pod=pod, path=path, began=float(began), ended=float(ended), part=part and "caps" not in path)
        for path in paths
    ]
