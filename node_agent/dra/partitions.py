"""The partitions that lie on GPUs, as claims need them: by the place that a claim holds, also those just made."""

from collections.abc import Awaitable, Callable

from node_agent.cdi.edits import ContainerEdits, NodeEdits
from node_agent.errors import CdiError, HardwareError, PartitionGone
from node_agent.hardware.provider import Partitioning
from node_agent.kit.latest import Latest
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition, Place


class LivePartitions:
    """Knows them from the inventory and the node's edits, and asks the GPU for one that these do not have (yet).

    ``edits_of`` makes the edits of a partition that is newer than the node's.
    """

    def __init__(
        self,
        *,
        inventory: Latest[Inventory],
        edits: Latest[NodeEdits | None],
        partitioning: Partitioning,
        edits_of: Callable[[Partition], Awaitable[ContainerEdits]],
    ) -> None:
        self._inventory = inventory
        self._edits = edits
        self._partitioning = partitioning
        self._edits_of = edits_of
        self._made: dict[Place, Partition] = {}

    def made(self, partition: Partition) -> None:
        """Say that a partition lies there from now on."""
        self._made[partition.place] = partition

    def removed(self, place: Place) -> None:
        self._made.pop(place, None)

    def known(self, place: Place) -> Partition | None:
        """The partition at a place, as far as that is known without asking the GPU."""
        return self._made.get(place) or self._inventory.value.by_place.get(place)

    async def edits_at(self, place: Place) -> ContainerEdits:
        """What a container needs for the partition at a place.

        Raises:
            PartitionGone: there is none.
            CdiError: it cannot be given to containers now, or the GPU does not say what lies on it.
        """
        seen, edits = self._inventory.value.by_place.get(place), self._edits.value
        if seen is not None and edits is not None and seen.uuid in edits.partitions:
            # From here on the looks at the GPU are the truth.
            self.removed(place)
            return edits.partitions[seen.uuid]
        return await self._edits_of(await self._asked(place))

    async def _asked(self, place: Place) -> Partition:
        """The partition, by the GPU's own word: what was made may be gone, and its number another one's by now."""
        try:
            lying = await self._partitioning.instances(place.gpu)
        except HardwareError as error:
            raise CdiError(f"what lies on {place.gpu} is not known: {error}") from error
        for partition in (each for one in lying for each in one.partitions):
            if partition.place == place:
                return partition
        self.removed(place)
        raise PartitionGone(f"there is no {place.part} on {place.gpu}")
