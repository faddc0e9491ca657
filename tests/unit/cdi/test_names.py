import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.cdi.names import (
    ALL,
    QualifiedName,
    check_device,
    check_kind,
    file_name,
    parse_qualified,
    qualified,
    transient_of,
)
from tests.fakes.names import KIND

UUID = "GPU-9f0d7a3c-1b2e-4c5d-8e9f-0a1b2c3d4e5f"


def test_the_agents_kind_is_not_the_container_toolkits() -> None:
    assert KIND == "node-agent.gpu.nvidia.com/gpu"


@pytest.mark.parametrize("device", [UUID, "0", "7", "gpu-3", ALL, "0:1", f"{UUID}::3", "a", "a.b_c-d"])
def test_a_qualified_name_comes_apart_as_it_was_put_together(device: str) -> None:
    assert parse_qualified(qualified(device, KIND)) == QualifiedName(kind=KIND, device=device)


def test_a_device_of_another_kind_is_qualified_by_that_kind() -> None:
    assert qualified("x-gpu-0", kind="node-agent.gpu.nvidia.com/claim") == "node-agent.gpu.nvidia.com/claim=x-gpu-0"


@pytest.mark.parametrize("device", ["", "-0", "0-", ".a", "a.", "GPU 1", "a=b", "a/b", "ä", "a\n", "MIG-GPU-x/1/0"])
def test_a_device_name_that_runtimes_refuse_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="no CDI device name"):
        check_device(device)


@pytest.mark.parametrize(
    "kind",
    ["", "gpu", "/gpu", "vendor/", "vendor.com/a/b", "0vendor/gpu", "vendor-/gpu", "vendor/0", "v=w/gpu", "v/g "],
)
def test_a_kind_that_runtimes_refuse_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="no CDI kind"):
        check_kind(kind)


@pytest.mark.parametrize(("part", "limit"), [("vendor", 253), ("class", 63)])
def test_a_kind_is_refused_when_a_part_of_it_is_too_long(part: str, limit: int) -> None:
    def kind(length: int) -> str:
        return f"{'v' * length}/gpu" if part == "vendor" else f"vendor/{'c' * length}"

    assert check_kind(kind(limit)) == kind(limit)
    with pytest.raises(ValueError, match="no CDI kind"):
        check_kind(kind(limit + 1))


@pytest.mark.parametrize("name", ["", "gpu", "vendor/gpu", "vendor/gpu=", "=0", "vendor=0", KIND])
def test_what_is_not_qualified_is_not_parsed(name: str) -> None:
    with pytest.raises(ValueError, match="CDI"):
        parse_qualified(name)


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?", fullmatch=True))
def test_every_allowed_device_name_survives_the_round_trip(device: str) -> None:
    assert parse_qualified(qualified(device, KIND)).device == device


def test_a_node_has_one_file_for_its_kind() -> None:
    assert file_name(KIND) == "node-agent.gpu.nvidia.com-gpu.json"


def test_a_spec_that_comes_and_goes_has_a_file_of_its_own() -> None:
    claim = "12345678-1234-1234-1234-123456789abc"
    assert file_name(KIND, claim) == f"node-agent.gpu.nvidia.com-gpu_{claim}.json"


@pytest.mark.parametrize("transient", ["../../etc/passwd", "a/b", ""])
def test_no_name_leads_out_of_the_folder(transient: str) -> None:
    with pytest.raises(ValueError, match="no CDI device name"):
        file_name(KIND, transient)


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?", fullmatch=True))
def test_a_file_name_tells_what_its_spec_is_for(transient: str) -> None:
    assert transient_of(KIND, file_name(KIND, transient)) == transient


@pytest.mark.parametrize(
    "name",
    [file_name(KIND), file_name("other.com/gpu", "a"), file_name(KIND, "a").replace("json", "yaml"), "gpu_a.json"],
)
def test_other_file_names_are_for_nothing_of_ours(name: str) -> None:
    assert transient_of(KIND, name) is None
