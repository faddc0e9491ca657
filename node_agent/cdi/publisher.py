"""Keeps the node's CDI spec true: written before a GPU is offered, again when GPUs, nodes or driver files change.

A spec that is good is never replaced because something could not be read: until the trouble is over the GPUs are not
offered, and containers that run keep what they have. Only a driver that answers and lists no GPU removes the spec.
"""

from functools import partial

from msgspec import Struct

from node_agent.cdi.build import Built, partition_edits
from node_agent.cdi.edits import ContainerEdits, NodeEdits
from node_agent.cdi.host import Host
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.writer import SpecWriter
from node_agent.errors import CdiError
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest, changes
from node_agent.kit.logs import Log
from node_agent.model.gpu import GpuUuid
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition, PartitionUuid

# How often what the spec names is looked at again: soon while something is missing, seldom while all is well.
SOON_SECONDS, SELDOM_SECONDS = 2.0, 60.0

log = Log(__name__)


class Published(Struct, frozen=True, kw_only=True):
    """What containers can be given by now: the GPUs and partitions that the spec on disk names, and what stands in the
    way of more."""

    gpus: frozenset[GpuUuid] = frozenset()
    partitions: frozenset[PartitionUuid] = frozenset()
    left_out: tuple[LeftOut, ...] = ()
    trouble: str | None = None


class SpecPublisher:
    """Publishes the spec of the inventory's GPUs; file work is done on ``lane``, since disks may hang.

    ``host`` finds what the spec is made of; ``edits`` has it, for the specs of claims.
    """

    def __init__(self, *, inventory: Latest[Inventory], host: Host, writer: SpecWriter, lane: Lane) -> None:
        self._inventory = inventory
        self._host = host
        self._writer = writer
        self._lane = lane
        self.published = Latest(Published())
        self.edits: Latest[NodeEdits | None] = Latest(None)

    async def run(self) -> None:
        """Publish until cancelled: at each change of the inventory, and now and then in between."""
        async for _ in changes(self._inventory, every=self._pause):
            await self._publish(self._inventory.value)

    def _pause(self) -> float:
        return SOON_SECONDS if self.published.value.trouble else SELDOM_SECONDS

    async def _publish(self, inventory: Inventory) -> None:
        if inventory.generation == 0 or inventory.problem is not None:
            self._announce(Published(left_out=self.published.value.left_out))
            return
        try:
            built = await self._lane.run("write the CDI spec", lambda: self._write(inventory))
        except CdiError as error:
            self._announce(Published(trouble=str(error)))
            return
        blocked = (str(one) for one in built.left_out if one.gpu is not None or one.partition is not None)
        trouble = "; ".join(dict.fromkeys(blocked)) or None
        if built.edits is None:
            self._announce(Published(left_out=built.left_out, trouble=trouble))
            return
        self.edits.set(built.edits)
        gpus, partitions = frozenset(built.edits.gpus), frozenset(built.edits.partitions)
        self._announce(Published(gpus=gpus, partitions=partitions, left_out=built.left_out, trouble=trouble))

    async def edits_of(self, partition: Partition) -> ContainerEdits:
        """What a container needs for a partition that may be newer than the spec.

        Raises CdiError where its GPU cannot be given to containers, or the kernel does not show the partition.
        """
        edits, gpu = self.edits.value, self._inventory.value.by_uuid.get(partition.parent)
        if edits is None or gpu is None or gpu.uuid not in edits.gpus:
            raise CdiError(f"{partition.parent} cannot be given to containers now, nor can its {partition.profile}")
        look = partial(self._host.capabilities, gpu, partition)
        capabilities = await self._lane.run("look at the capabilities of a partition", look)
        return partition_edits(partition, edits.gpus[gpu.uuid], capabilities)

    def _write(self, inventory: Inventory) -> Built:
        if not inventory.gpus:
            if self._writer.remove(inventory.vendor.cdi_kind):
                log.info("CDI spec removed: the node has no GPU")
            return Built(spec=None)
        built = self._host.look(inventory)
        if built.spec is not None and self._writer.write(built.spec):
            log.info("CDI spec written", kind=built.spec.kind, devices=len(built.spec.devices))
        return built

    def _announce(self, published: Published) -> None:
        before = self.published.value
        if published.trouble is not None and published.trouble != before.trouble:
            log.warning("GPUs cannot be given to containers", reason=published.trouble)
        for one in sorted({str(one) for one in published.left_out} - {str(one) for one in before.left_out}):
            log.debug("left out of the CDI spec", what=one)
        self.published.set(published)
