"""What a fault costs, and what ends it: the words in which the policy on health is said."""

from enum import StrEnum


class Action(StrEnum):
    """What a fault costs, mildest first.

    An ignored fault is not even looked at, one that is only counted is shown and costs nothing. A degraded device is
    still given out, a withdrawn one is not, and work that has an evicted one is to be ended, where Kubernetes can.
    """

    IGNORE = "ignore"
    COUNT = "count"
    DEGRADE = "degrade"
    WITHDRAW = "withdraw"
    EVICT = "evict"


class ClearedBy(StrEnum):
    """What must be seen before a fault counts as over.

    PROBE: it is not found any more. RECOVERY: the driver asks for no recovery. RESET: the GPU was reset or the node
    rebooted since. OPERATOR: someone says so.
    """

    PROBE = "probe"
    RECOVERY = "recovery"
    RESET = "reset"
    OPERATOR = "operator"
