"""The CDI spec on disk. Users met: a spec without devices that no runtime takes (B36), ids that a runtime could not
resolve (B38), and device nodes that were not there yet and stayed missing for ever (B39).
"""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from node_agent.cdi.names import qualified
from tests.fakes.names import GPU_RESOURCE, KIND
from tests.faults.conftest import Place, Simulate, lines, until

UVM = "dev/nvidia-uvm"
SCHEMA = Path(__file__).parents[2] / "cdi" / "schema" / "cdi.schema.json"


@pytest.fixture
def l4(simulate: Simulate) -> Place:
    """Two L4."""
    return simulate("l4-2")


def names(spec: dict[str, Any]) -> set[str]:
    return {device["name"] for device in spec["devices"]}


def nodes(spec: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """The device nodes that every container gets, with their numbers."""
    found = spec["containerEdits"]["deviceNodes"]
    return {node["path"]: (node["major"], node.get("minor", 0)) for node in found}


# B36: no spec without devices, no device without nodes


async def test_the_last_gpu_takes_the_spec_with_it_and_the_next_one_brings_it_back(l4: Place) -> None:
    async with l4.serving():
        l4.node.faults.unplug(0)
        l4.node.faults.unplug(1)
        await until(lambda: not l4.spec_file.exists())
        assert list(l4.spec_file.parent.iterdir()) == []
        await l4.allocatable(0)

        l4.node.faults.plug(1)
        await l4.allocatable(1)
        assert l4.uuid(1) in names(l4.spec())


async def test_a_gpu_whose_device_node_is_missing_is_left_out_by_its_name_and_the_others_are_not(l4: Place) -> None:
    node = l4.tree / f"dev/nvidia{l4.node.profile.gpus[0].minor}"
    content = node.read_text()
    node.unlink()
    async with l4.kubelet.running(), l4.agent():
        await l4.allocatable(1)
        assert l4.view.healthy == {l4.uuid(1)}
        await l4.trouble(f"/dev/{node.name}: not there")
        assert l4.uuid(0) not in names(l4.spec())
        assert all(device["containerEdits"]["deviceNodes"] for device in l4.spec()["devices"])

        node.write_text(content)
        await l4.allocatable(2)
        await l4.ready()


async def test_no_spec_is_written_while_no_gpu_has_its_device_node(l4: Place) -> None:
    for place in l4.node.profile.gpus:
        (l4.tree / f"dev/nvidia{place.minor}").unlink()
    async with l4.kubelet.running(), l4.agent():
        await l4.trouble("/dev/nvidia0: not there")
        assert not l4.spec_file.exists()
        assert l4.view.registrations == 0


async def test_the_folder_of_the_specs_is_made_for_runtimes_of_any_user(l4: Place) -> None:
    before = os.umask(0o077)
    try:
        async with l4.serving():
            assert l4.spec_file.parent.stat().st_mode & 0o777 == 0o755
            assert l4.spec_file.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


async def test_a_spec_that_somebody_removes_is_written_again(l4: Place) -> None:
    async with l4.serving():
        l4.spec_file.unlink()
        await until(l4.spec_file.exists)


async def test_a_folder_that_cannot_be_written_withdraws_the_gpus_and_says_why(l4: Place) -> None:
    l4.spec_file.parent.write_text("in the way")
    async with l4.kubelet.running(), l4.agent():
        await l4.trouble("cannot change the CDI spec")
        assert l4.view.registrations == 0

        l4.spec_file.parent.unlink()
        await l4.allocatable(2)


# B38: every id that is handed out resolves


async def test_index_uuid_name_and_all_resolve_in_exactly_one_spec(h200: Place) -> None:
    async with h200.serving() as agent:
        gpus = agent.keeper.inventory.value.gpus
        specs = [json.loads(path.read_text()) for path in h200.spec_file.parent.glob("*.json")]

    assert len(specs) == 1
    expected = {"all", *(name for gpu in gpus for name in (str(gpu.index), gpu.uuid, gpu.name))}
    assert names(specs[0]) == expected
    assert len(specs[0]["devices"]) == len(expected)


@pytest.mark.parametrize("strategy", ["uuid", "index"])
async def test_what_allocate_hands_out_resolves(h200: Place, strategy: str) -> None:
    async with h200.serving(h200.with_settings(device_id_strategy=strategy)):
        ids, response = await h200.kubelet.admit("trainer", GPU_RESOURCE, 8)
        known = {qualified(name, KIND) for name in names(h200.spec())}

    given = [device.name for device in response.cdi_devices]
    assert len(given) == len(set(given)) == len(ids) == 8
    assert set(given) <= known


async def test_the_spec_follows_the_schema_and_declares_the_lowest_version_that_has_all_of_it(h200: Place) -> None:
    """Names that start with a digit and host paths need 0.5.0; nothing newer is used."""
    async with h200.serving():
        spec = h200.spec()

    assert spec["cdiVersion"] == "0.5.0"
    jsonschema.validate(spec, json.loads(SCHEMA.read_text()))


# B39: nodes that come later


async def test_a_node_that_every_gpu_needs_is_waited_for_and_taken_with_its_new_number(l4: Place) -> None:
    (l4.tree / UVM).unlink()
    for optional in ("dev/nvidia-modeset", "dev/dri/renderD129"):
        (l4.tree / optional).unlink()
    async with l4.kubelet.running(), l4.agent():
        await l4.trouble("nvidia-modprobe -u")
        assert l4.view.registrations == 0

        (l4.tree / UVM).write_text("c 511:0\n")
        await l4.allocatable(2)
        await l4.ready()
        assert nodes(l4.spec())["/dev/nvidia-uvm"] == (511, 0)
        assert "/dev/nvidia-modeset" not in nodes(l4.spec())
        assert l4.files_missing_of_spec() == []


async def test_a_node_that_moves_to_another_number_while_the_agent_runs_is_followed(l4: Place) -> None:
    async with l4.serving():
        (l4.tree / UVM).write_text("c 512:0\n")
        await until(lambda: nodes(l4.spec())["/dev/nvidia-uvm"] == (512, 0))


async def test_a_needed_node_that_goes_withdraws_the_gpus_until_it_is_back(l4: Place) -> None:
    async with l4.serving():
        content = (l4.tree / UVM).read_text()
        (l4.tree / UVM).unlink()
        await l4.allocatable(0)
        (l4.tree / UVM).write_text(content)
        await l4.allocatable(2)
        assert l4.view.registrations == 1


async def test_what_is_optional_and_not_there_is_left_out_and_said(l4: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="node_agent")
    (l4.tree / "dev/nvidia-modeset").unlink()
    async with l4.serving():
        cdi = (await l4.status()).cdi
        assert cdi is not None
        assert any("/dev/nvidia-modeset" in note for note in cdi.notes)
    assert any("/dev/nvidia-modeset" in line["what"] for line in lines(caplog, "left out of the CDI spec"))
