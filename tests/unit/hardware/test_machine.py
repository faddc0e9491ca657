"""The machine around the GPUs: its name, the switches on its bus, and what a virtual GPU says of its host."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.hardware.machine import Machine, VgpuHost, machine_of, vgpu_host
from node_agent.hardware.sysfs import Sysfs
from node_agent.model.gpu import Gpu
from tests.fakes import builders

HOST = VgpuHost(version="550.90", branch="r550_00")


def device(root: Path, bus: str, **files: str | bytes) -> None:
    folder = root / "bus/pci/devices" / bus
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def space(*capabilities: bytes, size: int = 256) -> bytes:
    """A configuration space with these capabilities; the number and the place of the next one are put before each."""
    content, at = bytearray(size), 0x40
    content[0x34] = at if capabilities else 0
    for number, capability in enumerate(capabilities):
        following = at + len(capability) + 2 if number + 1 < len(capabilities) else 0
        content[at : at + 2 + len(capability)] = bytes([0x09, following]) + capability
        at += 2 + len(capability)
    return bytes(content)


def vendors(*records: bytes, signature: bytes = b"VF") -> bytes:
    body = signature + b"".join(records)
    return bytes([len(body) + 3]) + body


def driver(version: str, branch: str) -> bytes:
    text = version.encode().ljust(10, b"\0") + branch.encode().ljust(10, b"\0")
    return bytes([0, len(text) + 2]) + text


VIRTUAL = space(vendors(driver("550.90", "r550_00")))


def gpus(*buses: str) -> list[Gpu]:
    return [builders.gpu(index, bus=bus) for index, bus in enumerate(buses)]


def test_the_switches_on_the_bus_are_counted_and_no_other_bridge(tmp_path: Path) -> None:
    device(tmp_path, "0000:19:00.0", vendor="0x10de\n", **{"class": "0x030200\n"})
    for bus in ("0000:c4:00.0", "0000:c5:00.0"):
        device(tmp_path, bus, vendor="0x10de\n", **{"class": "0x068000\n"})
    device(tmp_path, "0000:00:1f.0", vendor="0x8086\n", **{"class": "0x068000\n"})
    device(tmp_path, "0000:00:01.0", vendor="no number\n", **{"class": "0x060400\n"})
    found = machine_of(Sysfs(root=tmp_path), gpus("19:00"))
    assert (found.nvswitches, found.pci_classes) == (2, (0x030200,))


def test_a_machine_without_a_sys_tells_nothing(tmp_path: Path) -> None:
    assert machine_of(Sysfs(root=tmp_path), gpus("19:00")) == Machine(pci_classes=(None,))


def test_the_name_is_the_firmwares_unless_a_file_has_another(tmp_path: Path) -> None:
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "class/dmi/id/product_name").write_text("PowerEdge XE9680\n")
    (tmp_path / "type").write_text("a1-highgpu\n")
    sysfs = Sysfs(root=tmp_path)
    assert machine_of(sysfs, []).name == "PowerEdge XE9680"
    assert machine_of(sysfs, [], tmp_path / "type").name == "a1-highgpu"
    assert machine_of(sysfs, [], tmp_path / "none").name is None


# Virtual GPUs


def test_a_virtual_gpu_tells_version_and_branch_of_its_hosts_driver(tmp_path: Path) -> None:
    device(tmp_path, "0000:19:00.0", config=VIRTUAL)
    found = machine_of(Sysfs(root=tmp_path), gpus("19:00"))
    assert (found.virtual, found.vgpu_host) == (True, HOST)


def test_a_node_whose_gpus_are_none_of_them_virtual_says_so(tmp_path: Path) -> None:
    device(tmp_path, "0000:19:00.0", config=space())
    found = machine_of(Sysfs(root=tmp_path), gpus("19:00"))
    assert (found.virtual, found.vgpu_host) == (False, None)


def test_what_only_root_may_read_is_not_known_to_others(tmp_path: Path) -> None:
    device(tmp_path, "0000:19:00.0", config=VIRTUAL[:64])
    assert machine_of(Sysfs(root=tmp_path), gpus("19:00")).virtual is None


@pytest.mark.parametrize(
    ("content", "host"),
    [
        (VIRTUAL, HOST),
        (space(vendors(b"\x05\x04xx", driver("550.90", "r550_00"))), HOST),
        (space(vendors(signature=b"xx"), vendors(driver("550.90", "r550_00"))), HOST),
        (space(vendors(driver("550.90", "r550_00"), signature=b"xx")), None),
        (space(vendors(b"\x05\x00")), None),
        (space(vendors(b"\x05\xff")), None),
        (space(), None),
    ],
    ids=["alone", "after-another-record", "after-another-capability", "no-signature", "no-end", "too-long", "none"],
)
def test_the_record_of_the_driver_is_found_among_others(content: bytes, host: VgpuHost | None) -> None:
    assert vgpu_host(content) == host


@given(st.binary(min_size=256, max_size=256))
def test_no_content_of_the_configuration_space_keeps_the_reader(content: bytes) -> None:
    found = vgpu_host(content)
    assert found is None or replace(found) == found


def test_a_list_of_capabilities_that_leads_in_a_circle_ends() -> None:
    content = bytearray(space(vendors(signature=b"xx")))
    content[0x41] = 0x40
    assert vgpu_host(bytes(content)) is None
