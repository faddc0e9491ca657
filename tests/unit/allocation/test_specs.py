"""A claim's spec is complete by itself, and every container runtime takes it."""

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node_agent.allocation.grants import Hold
from node_agent.allocation.specs import ClaimSpecs, device_name
from node_agent.cdi.edits import ContainerEdits, DeviceNode, NodeEdits
from node_agent.cdi.names import parse_qualified
from node_agent.cdi.validate import validate_document
from node_agent.cdi.writer import SpecWriter
from node_agent.errors import CdiError, InvalidSpec
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.model.claim import ClaimUid
from tests.fakes.builders import uuid
from tests.fakes.names import CLAIM_KIND as KIND
from tests.unit.allocation.support import EDITS, no_partition

UID = ClaimUid("6f4a3b52-0f0e-4c67-9d5a-0d4f1c2b3a49")
SHARE = "a5b1c9d0-1111-4222-8333-444455556666"
FILE = f"node-agent.gpu.nvidia.com-claim_{UID}.json"


def hold(name: str, *indices: int, share_id: str | None = None) -> Hold:
    return Hold(device=name, gpus=tuple(uuid(i) for i in indices), share_id=share_id)


@dataclass
class Setting:
    specs: ClaimSpecs
    edits: Latest[NodeEdits | None]
    folder: Path

    def read(self, uid: ClaimUid = UID) -> Any:
        content = json.loads((self.folder / f"node-agent.gpu.nvidia.com-claim_{uid}.json").read_bytes())
        validate_document(content)
        return content


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    with Lane("files") as lane:
        edits = Latest[NodeEdits | None](EDITS)
        yield Setting(
            ClaimSpecs(kind=KIND, writer=SpecWriter(tmp_path), lane=lane, edits=edits, partition=no_partition),
            edits,
            tmp_path,
        )


def nodes_of(content: Any) -> dict[str, list[str]]:
    return {
        each["name"]: [node["path"] for node in each["containerEdits"]["deviceNodes"]] for each in content["devices"]
    }


async def test_each_device_of_a_claim_brings_its_own_gpus_and_the_spec_what_all_need(setting: Setting) -> None:
    assert await setting.specs.write(UID, {hold("gpu-3", 3): (), hold("group-2-0", 0, 1): ()})
    content = setting.read()
    assert content["kind"] == KIND == "node-agent.gpu.nvidia.com/claim"
    assert nodes_of(content) == {
        f"{UID}-gpu-3": ["/dev/nvidia3"],
        f"{UID}-group-2-0": ["/dev/nvidia0", "/dev/nvidia1"],
    }
    assert [mount["hostPath"] for mount in content["containerEdits"]["mounts"]] == ["/usr/bin/nvidia-smi"]
    assert [node["path"] for node in content["containerEdits"]["deviceNodes"]] == ["/dev/nvidiactl"]


async def test_the_ids_that_a_container_is_given_resolve_to_the_devices_of_the_spec(setting: Setting) -> None:
    holds = {hold("gpu-3", 3): (), hold("gpu-4", 4, share_id=SHARE): (), hold("gpu-4", 4, share_id=f"{SHARE}0"): ()}
    await setting.specs.write(UID, holds)
    ids = [parse_qualified(name) for each in holds for name in setting.specs.cdi_ids(UID, each)]
    assert {name.kind for name in ids} == {KIND}
    assert [name.device for name in ids] == list(nodes_of(setting.read()))
    assert len(set(ids)) == 3


def test_a_share_has_a_name_of_its_own() -> None:
    assert device_name(UID, hold("gpu-0", 0)) == f"{UID}-gpu-0"
    assert device_name(UID, hold("gpu-0", 0, share_id=SHARE)) == f"{UID}-gpu-0-{SHARE}"


@pytest.mark.parametrize("uid", ["0f4a3b52-1", "af4a3b52-1"])
async def test_a_uid_may_start_with_a_digit_or_a_letter(setting: Setting, uid: str) -> None:
    await setting.specs.write(ClaimUid(uid), {hold("gpu-0", 0): ()})
    assert setting.read(ClaimUid(uid))["cdiVersion"] == "0.5.0"


async def test_the_spec_declares_the_version_that_its_newest_part_needs(setting: Setting) -> None:
    grouped = ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidia1"),), additional_gids=(44,))
    setting.edits.set(NodeEdits(common=EDITS.common, gpus={**EDITS.gpus, uuid(1): grouped}))
    await setting.specs.write(UID, {hold("gpu-0", 0): (), hold("gpu-1", 1): ()})
    assert setting.read()["cdiVersion"] == "0.7.0"


async def test_what_a_step_adds_is_in_the_device_that_it_is_for(setting: Setting) -> None:
    more = (ContainerEdits(env=("A=1",)), ContainerEdits(env=("B=2",)))
    await setting.specs.write(UID, {hold("gpu-0", 0): more, hold("gpu-1", 1): ()})
    devices = {each["name"]: each["containerEdits"].get("env") for each in setting.read()["devices"]}
    assert devices == {f"{UID}-gpu-0": ["A=1", "B=2"], f"{UID}-gpu-1": None}


async def test_edits_that_no_runtime_would_take_are_never_written(setting: Setting) -> None:
    with pytest.raises(InvalidSpec):
        await setting.specs.write(UID, {hold("gpu-0", 0): (ContainerEdits(env=("no value",)),)})
    assert not (setting.folder / FILE).exists()


async def test_a_spec_that_is_there_as_it_should_be_is_not_written_again(setting: Setting) -> None:
    assert await setting.specs.write(UID, {hold("gpu-0", 0): ()})
    before = (setting.folder / FILE).stat().st_ino
    assert not await setting.specs.write(UID, {hold("gpu-0", 0): ()})
    assert (setting.folder / FILE).stat().st_ino == before


async def test_a_spec_written_anew_follows_a_new_driver(setting: Setting) -> None:
    await setting.specs.write(UID, {hold("gpu-0", 0): ()})
    setting.edits.set(NodeEdits(common=ContainerEdits(env=("DRIVER=new",)), gpus=EDITS.gpus))
    assert await setting.specs.write(UID, {hold("gpu-0", 0): ()})
    assert setting.read()["containerEdits"] == {"env": ["DRIVER=new"]}


async def test_a_gpu_that_is_out_of_reach_is_named(setting: Setting) -> None:
    setting.edits.set(NodeEdits(common=EDITS.common, gpus={uuid(1): EDITS.gpus[uuid(1)]}))
    with pytest.raises(CdiError, match=f"group-2-0: {uuid(0)} cannot be given to containers now"):
        await setting.specs.write(UID, {hold("group-2-0", 0, 1): ()})


async def test_before_the_driver_was_looked_at_there_is_no_spec(setting: Setting) -> None:
    setting.edits.set(None)
    with pytest.raises(CdiError, match="not known yet"):
        await setting.specs.write(UID, {hold("gpu-0", 0): ()})


async def test_a_removed_spec_is_gone_and_removing_none_is_fine(setting: Setting) -> None:
    await setting.specs.write(UID, {hold("gpu-0", 0): ()})
    await setting.specs.remove(UID)
    await setting.specs.remove(UID)
    assert list(setting.folder.iterdir()) == []


async def test_only_our_specs_of_claims_are_listed(setting: Setting) -> None:
    for name in (
        "node-agent.gpu.nvidia.com-gpu.json",
        "node-agent.gpu.nvidia.com-claim.json",
        "k8s.gpu.nvidia.com-claim_0f.yaml",
        "k8s.gpu.nvidia.com-claim_0f.json",
        "other-node-agent.gpu.nvidia.com-claim_0f.json",
        "node-agent.gpu.nvidia.com-claim_0f.yaml",
    ):
        (setting.folder / name).write_text("{}")
    await setting.specs.write(UID, {hold("gpu-0", 0): ()})
    assert await setting.specs.written() == {UID}


async def test_what_a_killed_writer_left_is_removed_and_nobody_elses(setting: Setting) -> None:
    ours, theirs = setting.folder / f".{FILE}.x81h", setting.folder / ".k8s.gpu.nvidia.com-claim_0f.json.x81h"
    for left in (ours, theirs):
        left.write_text("part")
        os.utime(left, (0, 0))
    assert await setting.specs.written() == frozenset()
    assert list(setting.folder.iterdir()) == [theirs]
