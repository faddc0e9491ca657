"""The driver upgraded under a running agent. Users met: CDI specs that named files which were gone, a library that did
not fit the module, and a pod that was said to be ready through all of it (B35).
"""

import asyncio

import pytest
from msgspec.structs import replace

from tests.fakes.names import GPU_RESOURCE
from tests.faults.conftest import Place, until

NEW = "570.124.06"


async def watch(place: Place, missing: list[list[str]]) -> None:
    """Note what is missing of the spec at every moment at which the kubelet has a GPU to give out."""
    async for _ in place.kubelet.resources.watch():
        missing += [place.files_missing_of_spec()] if place.view.healthy else []


async def test_a_driver_that_is_upgraded_step_by_step_is_followed(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.driver("not-loaded")
        await h200.allocatable(0)
        await h200.trouble("modprobe nvidia")
        spec = h200.spec_file.read_bytes()

        h200.node.faults.driver("version-mismatch", version=NEW)
        await h200.trouble("reload the module or reboot")
        assert h200.view.allocatable == 0
        assert h200.spec_file.read_bytes() == spec, "a good spec stays until there is a better one"

        h200.node.faults.driver("loaded")
        await h200.allocatable(8)
        assert h200.files_missing_of_spec() == []
        assert any(NEW in mount["hostPath"] for mount in h200.spec()["containerEdits"]["mounts"])
        assert (await h200.status()).driver == NEW
        await h200.ready()
        assert h200.view.registrations == 1


@pytest.mark.parametrize("round_number", range(5))
async def test_no_gpu_is_offered_with_a_spec_of_the_driver_of_before(h200: Place, round_number: int) -> None:
    """An upgrade faster than any look at the driver, with the intervals that are shipped."""
    shipped = replace(h200.settings, rescan_interval=30.0, health=replace(h200.settings.health, probe_interval=5.0))
    async with h200.serving(shipped):
        h200.node.faults.driver("loaded", version=NEW)
        await h200.allocatable(0)
        broken: list[list[str]] = []
        watching = asyncio.create_task(watch(h200, broken))
        await h200.allocatable(8)
        await until(lambda: broken)
        watching.cancel()

        assert not any(broken)


async def test_an_allocation_after_an_upgrade_names_devices_of_the_new_spec(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.driver("loaded", version=NEW)
        await h200.allocatable(0)
        await h200.allocatable(8)
        _, response = await h200.kubelet.admit("trainer", GPU_RESOURCE, 2)

        names = {device["name"] for device in h200.spec()["devices"]}
        assert {device.name.partition("=")[2] for device in response.cdi_devices} <= names
        assert h200.files_missing_of_spec() == []


async def test_a_driver_reload_that_moves_the_device_numbers_reaches_the_spec_before_any_pod(h200: Place) -> None:
    uvm = h200.tree / "dev/nvidia-uvm"
    async with h200.serving():
        h200.node.faults.driver("loaded")
        uvm.write_text("c 511:0\n")
        await h200.allocatable(0)
        await h200.allocatable(8)

        nodes = {node["path"]: node["major"] for node in h200.spec()["containerEdits"]["deviceNodes"]}
        assert nodes["/dev/nvidia-uvm"] == 511


async def test_files_upgraded_on_disk_while_the_module_stays_withdraw_the_gpus_until_the_two_fit(h200: Place) -> None:
    """The usual half of an upgrade: new libraries, the old module still loaded."""
    async with h200.serving():
        folder = h200.tree / "usr/lib/x86_64-linux-gnu"
        moved = [path for path in folder.iterdir() if path.name.endswith(h200.node.profile.driver.version)]
        for path in moved:
            path.rename(path.with_name(path.name.replace(h200.node.profile.driver.version, NEW)))
        await h200.allocatable(0)
        await h200.trouble("reload the driver or reboot")

        for path in moved:
            path.with_name(path.name.replace(h200.node.profile.driver.version, NEW)).rename(path)
        await h200.allocatable(8)
        assert h200.files_missing_of_spec() == []


async def test_an_agent_that_starts_before_the_driver_offers_the_gpus_when_it_is_there(h200: Place) -> None:
    h200.node.faults.driver("not-loaded")
    async with h200.kubelet.running(), h200.agent():
        await h200.trouble("modprobe nvidia")
        assert (await h200.ask("/healthz"))[0] == 200
        assert h200.view.registrations == 0

        h200.node.faults.driver("loaded")
        await h200.allocatable(8)
        await h200.ready()
