"""What is known of the health of one GPU: its open causes, how its troubles came and went, and the Xids it reported.

Values only: ``verdicts`` says how one chart follows from another, ``board`` holds them, ``record`` keeps them.
"""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.model.health import Cause, CauseKey, Reason

# What is found out anew by every agent that starts, and would only be in the way if it were remembered.
PASSING = frozenset(
    {Reason.NOT_PROBED, Reason.EVENTS_FAILED, Reason.NOT_MONITORED, Reason.DEVICE_NODE, Reason.MPS},
)


class Course(Struct, frozen=True, kw_only=True):
    """How one trouble comes and goes; times are wall-clock seconds, newest last.

    ``seen`` are the times that a rule may have to count, ``opened`` those at which it took the GPU out. ``boot`` is the
    boot in which it was seen last, None once the GPU was reset since. ``over`` is the word of who found it.
    """

    seen: tuple[float, ...] = ()
    opened: tuple[float, ...] = ()
    boot: str | None = None
    over: bool = False

    @property
    def last(self) -> float:
        """When it was seen last, as far as that is remembered."""
        return max((*self.seen[-1:], *self.opened[-1:]), default=0.0)


NEVER = Course()


class Chart(Struct, frozen=True, kw_only=True):
    """One GPU's; ``counts`` says how often it reported each Xid, ``gone`` since when it is away."""

    causes: tuple[Cause, ...] = ()
    courses: Mapping[CauseKey, Course] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    gone: float | None = None

    def without(self, instance: int) -> "Chart":
        """The chart once an instance is no more: the next one of its number is another."""

        def is_left(key: CauseKey) -> bool:
            return key[2] is None or key[2].id != instance

        causes = tuple(cause for cause in self.causes if is_left(cause.key))
        return replace(self, causes=causes, courses={key: one for key, one in self.courses.items() if is_left(key)})

    def course(self, key: CauseKey) -> Course:
        return self.courses.get(key, NEVER)

    @property
    def lasting(self) -> "Chart":
        """The part that a later agent has to know of."""
        causes = tuple(cause for cause in self.causes if cause.reason not in PASSING)
        still_open = {cause.key for cause in causes}
        courses = {
            key: Course(opened=course.opened, boot=course.boot)
            for key, course in self.courses.items()
            if key[0] not in PASSING and (course.opened or key in still_open)
        }
        return Chart(causes=causes, courses=courses, counts=self.counts, gone=self.gone)

    @property
    def outline(self) -> "Chart":
        """The chart without words, which may change with every look."""
        return replace(self, causes=tuple(replace(cause, message="", clears="") for cause in self.causes))
