"""Claims, grants and all parts of the allocation together, for tests; and a step that leaves its trace in files."""

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from node_agent.allocation.checkpoint import Checkpoint
from node_agent.allocation.grants import FRONT_DOORS, Door, Grant, Hold, Holder, Notes, State
from node_agent.allocation.ledger import Ledger
from node_agent.allocation.prepare import Preparer
from node_agent.allocation.specs import ClaimSpecs, PartitionEdits
from node_agent.allocation.steps import Step, Steps
from node_agent.allocation.upkeep import Upkeep
from node_agent.cdi.edits import ContainerEdits, DeviceNode, Mount, NodeEdits
from node_agent.cdi.writer import SpecWriter
from node_agent.errors import AllocationError, PartitionGone
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.model.claim import AllocatedDevice, Claim, ClaimUid
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import device_name
from node_agent.model.partition import Place
from tests.fakes.builders import uuid
from tests.fakes.names import CLAIM_KIND

DRIVER = "gpu.nvidia.com"
POOL = "node-a"
BOOT = "boot-1"
LEDGER = "ledger.json"

EDITS = NodeEdits(
    common=ContainerEdits(
        device_nodes=(DeviceNode(path="/dev/nvidiactl"),),
        mounts=(Mount(host_path="/usr/bin/nvidia-smi", container_path="/usr/bin/nvidia-smi"),),
    ),
    gpus={uuid(i): ContainerEdits(device_nodes=(DeviceNode(path=f"/dev/nvidia{i}"),)) for i in range(8)},
)


async def no_partition(place: Place) -> ContainerEdits:
    """A node without partitions."""
    raise PartitionGone(f"there is no {place}")


def uid_of(name: str) -> ClaimUid:
    return ClaimUid(f"uid-of-{name}")


def device(name: str, *indices: int) -> PublishedDevice:
    kind = DeviceKind.GPU if len(indices) == 1 else DeviceKind.GROUP
    return PublishedDevice(name=device_name(name), kind=kind, gpus=tuple(uuid(index) for index in indices))


DEVICES: Mapping[str, PublishedDevice] = {
    each.name: each
    for each in (*(device(f"gpu-{i}", i) for i in range(8)), device("group-2-0", 0, 1), device("group-2-2", 2, 3))
}


def allocated(
    name: str, request: str = "gpus", *, share_id: str | None = None, admin: bool = False, driver: str = DRIVER
) -> AllocatedDevice:
    return AllocatedDevice(request=request, driver=driver, pool=POOL, device=name, share_id=share_id, admin=admin)


def claim(name: str, *devices: str | AllocatedDevice) -> Claim:
    """A claim with these devices allocated."""
    results = tuple(each if isinstance(each, AllocatedDevice) else allocated(each) for each in devices)
    return Claim(uid=uid_of(name), namespace="default", name=name, results=results)


def holder(name: str, door: Door = Door.CLAIM) -> Holder:
    return Holder(door=door, id=uid_of(name), name=name)


def grant(
    name: str,
    *indices: int,
    door: Door = Door.CLAIM,
    share_id: str | None = None,
    admin: bool = False,
    state: State = State.PREPARING,
) -> Grant:
    """A grant of whole GPUs, one hold for each."""
    holds = tuple(Hold(device=f"gpu-{i}", gpus=(uuid(i),), share_id=share_id, admin=admin) for i in indices)
    return Grant(holder=holder(name, door), holds=holds, state=state)


@asynccontextmanager
async def opened(folder: Path, *, boot_id: str = BOOT, told: bool = True) -> AsyncIterator[Ledger]:
    """The ledger of a folder; ``told``: as after both doors have told their holders."""
    with Lane("ledger") as lane:
        async with Ledger(checkpoint=Checkpoint(folder / LEDGER), lane=lane, boot_id=boot_id) as ledger:
            for door in FRONT_DOORS if told else ():
                await ledger.reconcile(door, [])
            yield ledger


@contextmanager
def full_disk() -> Iterator[None]:
    """A real limit on the size of files: the kernel refuses a write half-way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@dataclass
class FakeStep:
    """A step that leaves a file for each GPU in ``folder``; a test can stop it, fail it, and read what it was asked."""

    folder: Path
    name: str = "setting"
    for_all: bool = True
    calls: list[str] = field(default_factory=list)
    failure: Exception | None = None
    undo_failure: Exception | None = None
    gate: asyncio.Event | None = None
    seen: list[Grant] = field(default_factory=list)

    def applies(self, claim: Claim, grant: Grant) -> bool:
        return self.for_all

    async def do(self, claim: Claim, grant: Grant) -> Notes:
        self.calls.append(f"do {self.name}")
        self.seen.append(grant)
        for trace in self._traces(grant):
            trace.touch()
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return {"was": f"before {claim.name}"}

    async def undo(self, grant: Grant) -> None:
        self.calls.append(f"undo {self.name}")
        self.seen.append(grant)
        if self.undo_failure is not None:
            raise self.undo_failure
        for trace in self._traces(grant):
            trace.unlink(missing_ok=True)

    def edits(self, grant: Grant, hold: Hold) -> ContainerEdits:
        return ContainerEdits(env=(f"{self.name.upper()}={grant.steps[self.name]['was']}",))

    def _traces(self, grant: Grant) -> list[Path]:
        return [self.folder / f"{self.name}-{gpu}" for hold in grant.holds for gpu in hold.gpus]


@dataclass
class Node:
    """All parts together, in a folder of their own; ``node`` opens one."""

    ledger: Ledger
    specs: ClaimSpecs
    preparer: Preparer
    upkeep: Upkeep
    cdi: Path
    edits: Latest[NodeEdits | None]

    def spec_of(self, name: str) -> Path:
        return self.cdi / f"node-agent.gpu.nvidia.com-claim_{uid_of(name)}.json"

    @property
    def spec_names(self) -> set[str]:
        return {path.name for path in self.cdi.iterdir()} if self.cdi.exists() else set()

    def held(self, name: str) -> Grant:
        found = self.ledger.grant_of(uid_of(name))
        assert found is not None
        return found


@asynccontextmanager
async def node(
    folder: Path,
    *steps: Step,
    boot_id: str = BOOT,
    told: bool = True,
    edits: NodeEdits | None = EDITS,
    limit: float = 5.0,
    lag: float = 0.0,
    partition: PartitionEdits = no_partition,
) -> AsyncIterator[Node]:
    latest = Latest[NodeEdits | None](edits)
    async with opened(folder, boot_id=boot_id, told=told) as ledger:
        with Lane("files") as lane:
            specs = ClaimSpecs(
                kind=CLAIM_KIND, writer=SpecWriter(folder / "cdi"), lane=lane, edits=latest, partition=partition
            )
            preparer = Preparer(driver=DRIVER, ledger=ledger, specs=specs, steps=Steps(ledger, steps), limit=limit)
            async with preparer:
                upkeep = Upkeep(ledger=ledger, specs=specs, preparer=preparer, lag=lag)
                yield Node(
                    ledger=ledger, specs=specs, preparer=preparer, upkeep=upkeep, cdi=folder / "cdi", edits=latest
                )


FAILURE = AllocationError("the GPU refuses")
