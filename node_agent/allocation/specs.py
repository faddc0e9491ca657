"""The CDI spec of each claim: one file that is complete by itself. A container of the claim is given ids out of it.

The spec is made from the claim's grant and from the node's edits of this moment, so that one written anew follows a new
driver.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache, partial

from node_agent.allocation.grants import Hold
from node_agent.cdi.build import assemble
from node_agent.cdi.edits import ContainerEdits, Device, NodeEdits, Spec, merge
from node_agent.cdi.names import qualified
from node_agent.cdi.validate import validate
from node_agent.cdi.versions import VERSIONS
from node_agent.cdi.writer import SpecWriter
from node_agent.errors import CdiError, DriverFilesUnknown
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.model.claim import ClaimUid
from node_agent.model.partition import Place

PartitionEdits = Callable[[Place], Awaitable[ContainerEdits]]


def device_name(uid: ClaimUid, hold: Hold) -> str:
    """The name of a hold in its claim's spec: no other device and no other claim has it."""
    return "-".join(part for part in (uid, hold.device, hold.share_id) if part)


class ClaimSpecs:
    """Writes and removes the specs of claims, which are of ``kind``, on ``lane``.

    ``edits`` is None as long as the node's are not known. ``partition`` tells what a container needs for the partition
    at a place; it raises PartitionGone and CdiError.
    """

    def __init__(
        self,
        *,
        kind: str,
        writer: SpecWriter,
        lane: Lane,
        edits: Latest[NodeEdits | None],
        partition: PartitionEdits,
    ) -> None:
        self._kind = kind
        self._writer = writer
        self._lane = lane
        self._partition = partition
        self.edits = edits

    def cdi_ids(self, uid: ClaimUid, hold: Hold) -> tuple[str, ...]:
        """What a container is given to get a hold; the first id is no other device's, since pods are told by it."""
        return (qualified(device_name(uid, hold), self._kind),)

    async def write(self, uid: ClaimUid, holds: Mapping[Hold, Iterable[ContainerEdits]]) -> bool:
        """Write the spec of a claim's holds, each with what it needs beside its GPUs, unless it is there already.

        True where it was not there, or another one. Raises PartitionGone where a partition is not there, CdiError where
        a GPU cannot be given to containers now, or the spec cannot be written.
        """
        edits = self.edits.value
        if edits is None:
            raise DriverFilesUnknown(
                "what a container needs to use a GPU is not known yet: the driver's files were not looked at"
            )
        devices = {device_name(uid, hold): merge(*await self._hardware(edits, hold), *holds[hold]) for hold in holds}
        write = partial(self._write, uid, devices, edits.common)
        return await self._lane.run("write the CDI spec of a claim", write)

    async def _hardware(self, edits: NodeEdits, hold: Hold) -> list[ContainerEdits]:
        """What a hold's GPUs, or its part of one, need. Nothing of the GPU is in there that is not the part's."""
        if lacking := [gpu for gpu in hold.gpus if gpu not in edits.gpus]:
            raise CdiError(
                f"{hold.device}: {lacking[0]} cannot be given to containers now; the node's CDI spec lacks it too"
            )
        if hold.part is not None:
            return [await self._partition(place) for place in hold.places]
        return [edits.gpus[gpu] for gpu in hold.gpus]

    def _write(self, uid: ClaimUid, devices: Mapping[str, ContainerEdits], common: ContainerEdits) -> bool:
        # A spec is valid where each of its devices would be alone, since no two have one name.
        versions = (_checked_version(self._kind, edits, common) for edits in devices.values())
        spec = Spec(
            cdi_version=max(versions, key=VERSIONS.index),
            kind=self._kind,
            devices=tuple(Device(name=name, container_edits=edits) for name, edits in devices.items()),
            container_edits=common,
        )
        return self._writer.write(spec, transient=uid, checked=True)

    async def remove(self, uid: ClaimUid) -> None:
        """Remove a claim's spec, if there is one. Raises CdiError where that cannot be done."""
        await self._lane.run("remove the CDI spec of a claim", partial(self._writer.remove, self._kind, uid))

    async def written(self) -> frozenset[ClaimUid]:
        """The claims that have a spec."""
        found = await self._lane.run("list the CDI specs of claims", partial(self._writer.transients, self._kind))
        return frozenset(map(ClaimUid, found))


@lru_cache(maxsize=64)
def _checked_version(kind: str, device: ContainerEdits, common: ContainerEdits) -> str:
    """The version of a spec with such a device, validated: the same GPUs are given out again and again.

    The device's name starts with a digit here, as that of every other claim does. Raises InvalidSpec.
    """
    spec = assemble(kind, {"0": device}, common)
    validate(spec)
    return spec.cdi_version
