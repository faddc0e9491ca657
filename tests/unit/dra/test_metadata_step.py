"""The step that gives pods their metadata files, taken and undone by the preparer."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.dra.metadata_step import MetadataStep
from node_agent.errors import AllocationError
from node_agent.kit.lane import Lane
from node_agent.model.claim import AllocatedDevice, Claim, ClaimUid
from node_agent.model.gpu import GpuUuid

DRIVER = "gpu.nvidia.com"


def held(device: str, request: str) -> Hold:
    return Hold(device=device, gpus=(GpuUuid(device),), request=request, pool="n")


HOLDS = (held("gpu-0", "big/fast"), held("gpu-1", "big/fast"), held("gpu-2", "small"))
GRANT = Grant(holder=Holder(door=Door.CLAIM, id="u-1", name="team/four"), holds=HOLDS)
CLAIM = Claim(
    uid=ClaimUid("u-1"),
    namespace="team",
    name="four",
    results=tuple(AllocatedDevice(request=hold.request, driver=DRIVER, pool="n", device=hold.device) for hold in HOLDS),
)


@pytest.fixture
async def step(tmp_path: Path) -> AsyncIterator[MetadataStep]:
    with Lane("files") as lane:
        yield MetadataStep(
            driver=DRIVER, folder=tmp_path, attributes=lambda: {"gpu-0": {"uuid": {"string": "GPU-0"}}}, lane=lane
        )


async def taken(step: MetadataStep) -> Grant:
    notes = await step.do(CLAIM, GRANT)
    return Grant(holder=GRANT.holder, holds=GRANT.holds, steps={step.name: notes})


async def test_each_request_gets_its_file_mounted_once(step: MetadataStep, tmp_path: Path) -> None:
    grant = await taken(step)
    mounts = [mount for hold in grant.holds for mount in step.edits(grant, hold).mounts]

    assert [Path(mount.host_path).relative_to(tmp_path) for mount in mounts] == [
        Path(f"dra-device-metadata/team_four/{request}/metadata.json") for request in ("big", "small")
    ]
    assert all("ro" in mount.options for mount in mounts)
    document = json.loads(Path(mounts[0].host_path).read_text())
    assert [device["name"] for device in document["requests"][0]["devices"]] == ["gpu-0", "gpu-1"]
    assert document["requests"][0]["devices"][0]["attributes"] == {"uuid": {"string": "GPU-0"}}
    assert Path(mounts[0].host_path).stat().st_mode & 0o777 == 0o644


async def test_undone_nothing_is_left_and_undone_again_it_does_no_harm(step: MetadataStep, tmp_path: Path) -> None:
    grant = await taken(step)
    await step.undo(grant)
    await step.undo(grant)
    assert not list((tmp_path / "dra-device-metadata").iterdir())


async def test_a_step_that_died_before_it_noted_anything_is_undone_too(step: MetadataStep, tmp_path: Path) -> None:
    await taken(step)
    await step.undo(GRANT)
    assert not list((tmp_path / "dra-device-metadata").iterdir())


async def test_a_grant_without_the_step_mounts_nothing(step: MetadataStep) -> None:
    assert step.edits(GRANT, HOLDS[0]).mounts == ()


async def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(step: MetadataStep, tmp_path: Path) -> None:
    (tmp_path / "dra-device-metadata").write_text("a file")
    with pytest.raises(AllocationError, match=r"cannot write the pod's device metadata .*team_four"):
        await step.do(CLAIM, GRANT)
