"""What the shares of a GPU under MPS may take, by the rules of the configuration. Pure."""

from node_agent.config.quantities import MIB
from node_agent.errors import MpsImpossible
from node_agent.model.gpu import Gpu
from node_agent.sharing.mps.plan import Limits, Wanted, check_possible, client_limit
from node_agent.sharing.shares import Shared

_WHOLE = 100


def wanted_for(gpu: Gpu, shared: Shared, cuda: str | None) -> Wanted:
    """The daemon that serves the shares of a GPU. Raises MpsImpossible where it cannot serve them as they are ruled."""
    most = client_limit(gpu.compute_capability, cuda)
    if shared.replicas > most:
        raise MpsImpossible(f"{shared.replicas} shares of {gpu.name} are too many: it takes {most} MPS clients at once")
    limits = _limits(gpu, shared)
    check_possible(gpu.name, gpu.compute_capability, limits, shared.multi_user)
    return Wanted(devices=(gpu.uuid,), limits=limits, multi_user=shared.multi_user)


def _limits(gpu: Gpu, shared: Shared) -> Limits:
    """Even parts where nothing else is ruled; a single share is not limited."""
    memory = shared.memory or (gpu.memory // shared.replicas if gpu.memory and shared.replicas > 1 else None)
    if memory and gpu.memory and not shared.overcommit and memory * shared.replicas > gpu.memory:
        raise MpsImpossible(
            f"{shared.replicas} shares of {memory // MIB} MiB are more than the {gpu.memory // MIB} MiB "
            f"that {gpu.name} has: give less as memoryPerShare, or set overcommit"
        )
    threads = shared.threads or (max(1, _WHOLE // shared.replicas) if shared.replicas > 1 else None)
    return Limits(memory={gpu.uuid: memory} if memory else {}, threads=threads)
