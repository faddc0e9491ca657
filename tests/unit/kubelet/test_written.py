"""What the kubelet has written down of the devices that pods have."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from node_agent.errors import KubeletError
from node_agent.kit.tasks import running
from node_agent.kubelet.written import NOTHING, Written, WrittenDevices, devices_in

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def entry(resource: str, container: str, **by_numa_node: list[str]) -> dict[str, Any]:
    """One of a pod's containers, as Kubernetes 1.37 writes it."""
    return {
        "PodUID": "8e0b53a2-2f6e-4f6b-a1f1-0a5a4fc0d9f0",
        "ContainerName": container,
        "ResourceName": resource,
        "DeviceIDs": {number.removeprefix("numa"): ids for number, ids in by_numa_node.items()},
        "AllocResp": "Ag==",
    }


def write(file: Path, *entries: dict[str, Any]) -> None:
    """As the kubelet does: another file in its place."""
    document = {"Data": {"PodDeviceEntries": list(entries) or None, "RegisteredDevices": {GPU: ["a"]}}, "Checksum": 7}
    new = file.with_suffix(".new")
    new.write_text(json.dumps(document))
    os.replace(new, file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kubelet_internal_checkpoint"


async def test_what_is_written_at_the_next_list_counts_and_not_what_was_there(file: Path) -> None:
    write(file, entry(GPU, "ended", numa0=["GPU-9"]))
    written = WrittenDevices(file, patience=30.0)

    async def kubelet() -> None:
        async for wanted in written.wanted.watch():
            if wanted:
                write(
                    file,
                    entry(GPU, "init", numa0=["GPU-1", "GPU-2"], numa1=["GPU-5"]),
                    entry(GPU, "main", numa1=["GPU-6"]),
                    entry(SHARED, "init", **{"numa-1": ["GPU-7::0"]}),
                )

    async with running(kubelet()):
        found = await written.look()
    assert found.devices == {GPU: {"GPU-1", "GPU-2", "GPU-5", "GPU-6"}, SHARED: {"GPU-7::0"}}
    assert found.is_new


async def test_a_kubelet_without_such_a_file_is_asked_and_has_written_nothing(file: Path) -> None:
    written = WrittenDevices(file, patience=0.1)
    assert await written.look() == NOTHING
    assert written.wanted.value == 1


async def test_a_file_that_was_removed_is_written_again(file: Path) -> None:
    written = WrittenDevices(file, patience=30.0)

    async def kubelet() -> None:
        async for wanted in written.wanted.watch():
            if wanted:
                write(file, entry(GPU, "init", numa0=["GPU-1"]))

    async with running(kubelet()):
        assert (await written.look()).devices == {GPU: {"GPU-1"}}


async def test_who_sends_no_list_learns_what_was_written_before_and_when(file: Path) -> None:
    write(file, entry(GPU, "init", numa0=["GPU-1"]))
    os.utime(file, (1000, 1000))
    assert await WrittenDevices(file, patience=0.1).look() == Written(
        devices={GPU: frozenset({"GPU-1"})}, at=1000.0, is_new=False
    )


async def test_while_the_kubelet_has_the_devices_of_another_plugin_it_is_sent_no_list(file: Path) -> None:
    """It would take that, and give pods to the other plugin all the same."""
    write(file, entry(GPU, "init", numa0=["GPU-1"]))

    async def wrong() -> bool:
        return False

    written = WrittenDevices(file, wrong, patience=0.1)
    assert not (await written.look()).is_new
    assert written.wanted.value == 0


async def test_a_file_that_cannot_be_looked_at_is_told_of(file: Path) -> None:
    file.symlink_to(file)
    with pytest.raises(KubeletError, match="kubelet_internal_checkpoint: cannot be read"):
        await WrittenDevices(file).look()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"Data": 1}', '{"Data": {"PodDeviceEntries": [{}]}}', "\udcff"])
async def test_a_file_of_another_form_is_told_of(file: Path, content: str) -> None:
    write(file)
    written = WrittenDevices(file, patience=30.0)
    asked = asyncio.create_task(written.look())
    async for wanted in written.wanted.watch():
        if wanted:
            break
    new = file.with_suffix(".new")
    new.write_bytes(content.encode(errors="surrogateescape"))
    os.replace(new, file)
    with pytest.raises(KubeletError, match="kubelet_internal_checkpoint: cannot be read"):
        await asked


def test_a_kubelet_that_has_given_nothing_out_names_nothing() -> None:
    assert devices_in({"Data": {"PodDeviceEntries": None, "RegisteredDevices": {}}}) == {}
