"""Claims become clients of MPS daemons: over a simulated node's daemons, and the ledger that remembers it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from node_agent.allocation.grants import Grant, State
from node_agent.cdi.edits import ContainerEdits, NodeEdits, Spec
from node_agent.dra.mps_step import MpsStep
from node_agent.dra.sharing import Enforcement, Sharers
from node_agent.errors import AllocationError, ModesDisagree, MpsError, MpsImpossible
from node_agent.hardware.provider import ComputeMode
from node_agent.model.claim import AllocatedDevice, Claim, ClaimUid, OpaqueConfig
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import ComputeCapability, DeviceName, Gpu, GpuUuid
from node_agent.model.pci import PciAddress
from node_agent.sharing.mps.daemons import MpsDaemons
from tests.unit.allocation import support
from tests.unit.allocation.support import DRIVER, POOL
from tests.unit.dra.test_sharing import GIB
from tests.unit.sharing.mps.conftest import MpsNode, node

__all__ = ["node"]

EXCLUSIVE, DEFAULT = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT


@dataclass(kw_only=True)
class World:
    """A ledger, a preparer and daemons, over the GPUs of the simulated node, of which all are shareable."""

    mps: MpsNode
    gpus: Mapping[GpuUuid, Gpu]
    daemons: MpsDaemons
    parts: support.Node
    sharers: Sharers

    async def prepare(self, claim: Claim) -> Grant:
        return await self.parts.preparer.prepare(self.sharers.with_modes(claim), self.sharers.published())

    async def unprepare(self, claim: Claim) -> None:
        await self.parts.preparer.unprepare(claim.uid)

    def edits(self, claim: Claim) -> dict[str, ContainerEdits]:
        """What the claim's spec adds to a container for each of its devices."""
        path = self.parts.cdi / f"node-agent.gpu.nvidia.com-claim_{claim.uid}.json"
        spec = msgspec.json.decode(path.read_bytes(), type=Spec)
        return {device.name.removeprefix(f"{claim.uid}-"): device.container_edits for device in spec.devices}


@asynccontextmanager
async def world(
    mps: MpsNode,
    folder: Path,
    *,
    enforcement: Enforcement = "auto",
    capability: tuple[int, int] = (9, 0),
    limit: float = 10.0,
) -> AsyncIterator[World]:
    async with mps.agent() as daemons:
        gpus = {
            uuid: Gpu(
                uuid=uuid,
                name=DeviceName(f"gpu-{number}"),
                index=number,
                product="H200",
                pci=PciAddress(f"0000:0{number}:00.0"),
                memory=140 * GIB,
                multiprocessors=132,
                compute_capability=ComputeCapability(major=capability[0], minor=capability[1]),
            )
            for number, uuid in enumerate(mps.gpus)
        }
        published = {
            one.name: PublishedDevice(name=one.name, kind=DeviceKind.GPU, gpus=(one.uuid,)) for one in gpus.values()
        }
        sharers = Sharers(
            driver=DRIVER,
            published=lambda: {str(name): device for name, device in published.items()},
            gpus=lambda: gpus,
            lacks=mps.lacks,
            enforcement=lambda: enforcement,
        )
        edits = NodeEdits(common=ContainerEdits(), gpus={uuid: ContainerEdits(env=(f"GPU={uuid}",)) for uuid in gpus})
        step = MpsStep(daemons=daemons, uses=sharers.uses, cuda=lambda: "12.8")
        async with support.node(folder, step, edits=edits, limit=limit) as parts:
            yield World(mps=mps, gpus=gpus, daemons=daemons, parts=parts, sharers=sharers)


def share(number: int, name: str, *, request: str = "gpus", admin: bool = False, **consumed: str) -> AllocatedDevice:
    return AllocatedDevice(
        request=request,
        driver=DRIVER,
        pool=POOL,
        device=f"gpu-{number}",
        share_id=name,
        admin=admin,
        consumed={"memory": "140Gi", **consumed},
    )


def claim(name: str, *results: AllocatedDevice, strategy: str = "", **config: object) -> Claim:
    parameters: dict[str, object] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    if strategy:
        parameters["sharing"] = {"strategy": strategy, **({"mpsConfig": config} if config else {})}
    return Claim(
        uid=ClaimUid(f"uid-of-{name}"),
        namespace="default",
        name=name,
        results=results,
        configs=(OpaqueConfig(driver=DRIVER, parameters=parameters),),
    )


async def test_two_claims_of_twenty_gib_share_one_daemon_and_each_is_held_to_its_part(
    node: MpsNode, tmp_path: Path
) -> None:
    async with world(node, tmp_path) as here:
        one, other = (claim(name, share(0, name, memory="20Gi", cores="25")) for name in ("a", "b"))
        await here.prepare(one)
        before = node.pids(0)
        await here.prepare(other)
        assert node.pids(0) == before
        for each in (one, other):
            (edits,) = here.edits(each).values()
            assert set(edits.env) == {
                f"GPU={node.gpus[0]}",
                "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
            }
            assert [(mount.host_path, mount.container_path) for mount in edits.mounts] == [
                (str(node.folders(0).pipe), "/run/nvidia-mps"),
                ("/dev/shm", "/dev/shm"),
            ]
            assert all("rw" in mount.options for mount in edits.mounts)
        await here.unprepare(one)
        assert node.pids(0) == before
        assert node.mode(0) is EXCLUSIVE
        await here.unprepare(other)
        assert not node.pids(0)
        assert node.mode(0) is DEFAULT
        assert not node.records.all()


async def test_one_who_takes_the_whole_gpu_gets_no_daemon(node: MpsNode, tmp_path: Path) -> None:
    async with world(node, tmp_path) as here:
        grant = await here.prepare(claim("a", share(0, "s")))
        assert grant.steps == {}
        assert node.mode(0) is DEFAULT


async def test_a_claim_may_ask_for_mps_on_gpus_of_its_own(node: MpsNode, tmp_path: Path) -> None:
    async with world(node, tmp_path) as here:
        gpus = [AllocatedDevice(request="gpus", driver=DRIVER, pool=POOL, device=f"gpu-{number}") for number in (2, 3)]
        wanted = claim("a", *gpus, strategy="MPS", defaultActiveThreadPercentage=40, multiUser=True)
        grant = await here.prepare(wanted)
        assert [hold.mode for hold in grant.holds] == ["MPS with multiUser"] * 2
        assert node.record(2, 3).multi_user
        for edits in here.edits(wanted).values():
            assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40" in edits.env
        await here.unprepare(wanted)
        assert [node.mode(number) for number in (2, 3)] == [DEFAULT, DEFAULT]


async def test_prepared_again_it_is_the_same_even_if_it_would_be_decided_differently_now(
    node: MpsNode, tmp_path: Path
) -> None:
    wanted = claim("a", share(0, "s", memory="20Gi"))
    async with world(node, tmp_path) as here:
        first = await here.prepare(wanted)
        pids = node.pids(0)
    async with world(node, tmp_path, enforcement="never") as here:
        again = await here.prepare(wanted)
        assert again.holds == first.holds
        assert again.steps == first.steps
        # A program that just talks to the daemon may be counted, too.
        assert pids <= node.pids(0)
        await here.unprepare(wanted)


@pytest.mark.parametrize(("first", "second"), [("MPS", "TimeSlicing"), ("TimeSlicing", "MPS"), ("", "TimeSlicing")])
async def test_two_claims_that_want_one_gpu_set_differently_are_told_of_each_other(
    node: MpsNode, tmp_path: Path, first: str, second: str
) -> None:
    async with world(node, tmp_path) as here:
        await here.prepare(claim("first", share(0, "a", memory="20Gi"), strategy=first))
        mode = node.mode(0)
        with pytest.raises(ModesDisagree, match=r"default/second .*default/first"):
            await here.prepare(claim("second", share(0, "b", memory="20Gi"), strategy=second))
        assert node.mode(0) is mode
        await here.unprepare(claim("first"))


async def test_daemons_that_overlap_are_refused_by_the_names_of_both(node: MpsNode, tmp_path: Path) -> None:
    async with world(node, tmp_path) as here:
        await here.prepare(claim("first", share(0, "a", memory="20Gi")))
        wide = claim("second", share(0, "b", memory="20Gi"), share(1, "c", memory="20Gi"))
        with pytest.raises(MpsImpossible, match=r"claim default/second .* has a daemon .*claim default/first"):
            await here.prepare(wide)
        assert here.parts.ledger.grant_of(wide.uid) is None
        assert node.mode(1) is DEFAULT
        await here.unprepare(claim("first"))


async def test_admin_access_changes_nothing(node: MpsNode, tmp_path: Path) -> None:
    async with world(node, tmp_path) as here:
        looker = claim("admin", share(0, "s", admin=True, memory="20Gi"), strategy="MPS")
        await here.prepare(looker)
        assert node.mode(0) is DEFAULT
        assert not node.pids(0)


async def test_on_old_gpus_limits_are_refused_where_the_claim_names_them(node: MpsNode, tmp_path: Path) -> None:
    async with world(node, tmp_path, capability=(6, 1)) as here:
        with pytest.raises(MpsImpossible, match=r"gpu-0 has compute capability 6\.1"):
            await here.prepare(
                claim("a", share(0, "s", memory="20Gi"), strategy="MPS", defaultActiveThreadPercentage=50)
            )
        counted = await here.prepare(claim("b", share(0, "s", memory="20Gi")))
        assert counted.holds[0].mode == "no MPS"


async def test_without_the_program_a_part_is_counted_and_mps_is_refused(node: MpsNode, tmp_path: Path) -> None:
    node.program = None
    async with world(node, tmp_path) as here:
        counted = await here.prepare(claim("a", share(0, "s", memory="20Gi")))
        assert counted.steps == {}
        with pytest.raises(MpsError, match="the driver has no nvidia-cuda-mps-control"):
            await here.prepare(claim("b", share(1, "s", memory="20Gi"), strategy="MPS"))
        assert node.mode(1) is DEFAULT
    async with world(node, tmp_path, enforcement="always") as here:
        with pytest.raises(MpsImpossible, match="gpu-2: the part that was asked for cannot be enforced"):
            await here.prepare(claim("c", share(2, "s", memory="20Gi")))


async def test_a_daemon_that_does_not_come_up_fails_its_claim_and_gives_the_gpu_back(
    node: MpsNode, tmp_path: Path
) -> None:
    node.break_daemons(refuse="no")
    async with world(node, tmp_path) as here:
        wanted = claim("a", share(0, "s", memory="20Gi"))
        with pytest.raises(MpsError, match="failed with status 1: no"):
            await here.prepare(wanted)
        assert here.parts.ledger.grant_of(wanted.uid) is None
        assert node.mode(0) is DEFAULT
        node.break_daemons()
        assert (await here.prepare(wanted)).state is State.PREPARED
        await here.unprepare(wanted)


async def test_a_slow_daemon_holds_up_its_own_claim_only_and_not_for_ever(node: MpsNode, tmp_path: Path) -> None:
    node.break_daemons(ready_after=-1)
    async with world(node, tmp_path, limit=15.0) as here:
        slow = asyncio.create_task(here.prepare(claim("slow", share(0, "s", memory="20Gi"))))
        while not node.pids(0):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        node.break_daemons()
        quick = claim("quick", share(1, "s", memory="20Gi"))
        assert (await here.prepare(quick)).state is State.PREPARED
        assert not slow.done()
        with pytest.raises(AllocationError, match=r"preparing claim default/slow .* was not done within 15 s"):
            await slow
        assert node.mode(0) is DEFAULT
        await here.unprepare(quick)


def test_the_steps_edits_are_for_devices_that_are_shared_so() -> None:
    step = MpsStep(daemons=None, uses=lambda claim: (), cuda=lambda: None)  # type: ignore[arg-type]
    grant = support.grant("a", 0)
    assert step.edits(grant, grant.holds[0]) == ContainerEdits()
    assert not step.applies(support.claim("a", "gpu-0"), grant)
