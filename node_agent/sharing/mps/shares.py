"""What the shares of a GPU under MPS may take, by the rules of the configuration. Pure."""

from node_agent.config.quantities import MIB
from node_agent.errors import MpsImpossible
from node_agent.model.unit import Unit
from node_agent.sharing.mps.plan import Limits, Wanted, check_possible, client_limit
from node_agent.sharing.shares import Shared

_WHOLE = 100


def wanted_for(unit: Unit, shared: Shared, cuda: str | None) -> Wanted:
    """The daemon that serves the shares of a GPU or partition.

    Raises MpsImpossible where it cannot serve them as they are ruled.
    """
    capability = unit.gpu.compute_capability
    most = client_limit(capability, cuda, _part(unit))
    if shared.replicas > most:
        raise MpsImpossible(
            f"{shared.replicas} shares of {unit.name} are too many: it takes {most} MPS clients at once"
        )
    limits = _limits(unit, shared)
    check_possible(unit.name, capability, limits, shared.multi_user)
    return Wanted(devices=(unit.uuid,), limits=limits, multi_user=shared.multi_user)


def _part(unit: Unit) -> float:
    """The share of its GPU's multiprocessors that it has."""
    own, all_of_them = unit.partition and unit.partition.multiprocessors, unit.gpu.multiprocessors
    return own / all_of_them if own and all_of_them else 1.0


def _limits(unit: Unit, shared: Shared) -> Limits:
    """Even parts where nothing else is ruled; a single share is not limited."""
    memory = shared.memory or (unit.memory // shared.replicas if unit.memory and shared.replicas > 1 else None)
    if memory and unit.memory and not shared.overcommit and memory * shared.replicas > unit.memory:
        raise MpsImpossible(
            f"{shared.replicas} shares of {memory // MIB} MiB are more than the {unit.memory // MIB} MiB "
            f"that {unit.name} has: give less as memoryPerShare, or set overcommit"
        )
    threads = shared.threads or (max(1, _WHOLE // shared.replicas) if shared.replicas > 1 else None)
    return Limits(memory={unit.uuid: memory} if memory else {}, threads=threads)
