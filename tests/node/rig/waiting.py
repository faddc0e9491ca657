"""Waiting with a time limit, and the one error that the rig raises.

Every wait of the rig and of the tests on top of it goes through ``wait_until``, so that a limit that has run out says
what was awaited and what was seen last. Blocking on purpose: an asyncio test calls it in ``asyncio.to_thread``.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 180.0
"""Seconds that anything may take on a busy machine; how long it takes on an idle one is what a test measures."""


class RigError(Exception):
    """The rig could not do what a test asked of it; the message says what, and shows what the machine said."""


class TimedOut(RigError):
    """A condition has not come to hold in its time."""


class NotYet(Exception):
    """Raised by a condition that does not hold yet; its message says what is still missing."""


def wait_until(what: str, condition: Callable[[], T], *, timeout: float = PATIENCE, every: float = 0.1) -> T:
    """Ask ``condition`` until it returns something true and return that; TimedOut after ``timeout`` seconds.

    A condition that can say why it does not hold raises NotYet, and the error repeats its last words. Any other
    exception of the condition passes through at once.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            if answer := condition():
                return answer
            seen = f"the last answer was {answer!r}"
        except NotYet as reason:
            seen = str(reason)
        if time.monotonic() >= deadline:
            raise TimedOut(f"waited {timeout:g} s in vain for this: {what}; {seen}")
        time.sleep(every)
