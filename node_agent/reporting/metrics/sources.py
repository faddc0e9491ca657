"""What metrics are made from: values that the agent has anyway."""

from collections.abc import Callable, Collection, Mapping

from msgspec import Struct

from node_agent.allocation.grants import Grant
from node_agent.health.looks import LastLooks
from node_agent.kit.latest import Latest
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.reporting.health import Counts
from node_agent.reporting.holders import Holders
from node_agent.reporting.status import Status


class Sources(Struct, frozen=True, kw_only=True):
    """``counts`` are those of Xids, ``last_xids`` the last of each GPU that had one since the agent started."""

    inventory: Latest[Inventory]
    looks: LastLooks
    holders: Holders
    grants: Latest[Mapping[str, Grant]]
    report: Latest[HealthReport]
    counts: Callable[[], Counts]
    last_xids: Callable[[], Mapping[GpuUuid, int]]
    status: Callable[[], Status]
    mps_phases: Callable[[], Collection[str]]
    time_slice_troubles: Callable[[], int]
