"""The contracts that ``protos/`` states in words of our own are the kubelet's, field by field.

The originals come from the Go module ``k8s.io/kubelet``, which ``modules/kubelet-api`` locks; Go keeps it in its own
cache. Both sides are compiled by the same protoc and compared as descriptors, which hold all that reaches the wire.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message

from tests.node.rig.binaries import KUBERNETES, MODULES, Module

pytestmark = pytest.mark.node

PROTOS = Path(__file__).parents[2] / "protos"
KUBELET_API = Module(folder="kubelet-api", project="k8s.io/kubelet", programs={})

ORIGINALS = {
    "deviceplugin_v1beta1": "deviceplugin/v1beta1/api.proto",
    "pluginregistration_v1": "pluginregistration/v1/api.proto",
    "dra_v1": "dra/v1/api.proto",
    "dra_v1beta1": "dra/v1beta1/api.proto",
    "dra_health_v1": "dra-health/v1/api.proto",
    "dra_health_v1alpha1": "dra-health/v1alpha1/api.proto",
    "podresources_v1": "podresources/v1/api.proto",
}

# The agent's own service, and that of gRPC, whose Go module has no such file.
OF_OTHERS = {"health_v1", "grpc_health_v1"}


@pytest.fixture(scope="module")
def originals() -> Path:
    """The folder ``pkg/apis`` of the locked module, downloaded unless Go has it already."""
    command = ["go", "mod", "download", "-json", KUBELET_API.project]
    answer = subprocess.run(command, cwd=MODULES / KUBELET_API.folder, check=True, stdout=subprocess.PIPE).stdout
    return Path(json.loads(answer)["Dir"], "pkg/apis")


def compiled(folder: Path, proto: str, scratch: Path) -> FileDescriptorProto:
    """What protoc makes of one file of a folder."""
    result = scratch / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={result}", proto]
    subprocess.run(command, check=True)
    return FileDescriptorSet.FromString(result.read_bytes()).file[0]


def statements(place: str, part: Message) -> Iterator[str]:
    """Every single value in a descriptor as a line of its own, which says where it stands."""
    for field, value in part.ListFields():
        if field.message_type:
            for inner in value if field.is_repeated else [value]:
                yield from statements(f"{place}.{getattr(inner, 'name', field.name)}", inner)
        else:
            readable = field.enum_type.values_by_number[value].name if field.enum_type else value
            yield f"{place} {field.name}: {readable}"


def contract(file: FileDescriptorProto) -> list[str]:
    """What a file says, in an order that is not its own, without its path and Go options: they never reach the wire."""
    file.ClearField("name")
    file.ClearField("options")
    return sorted(statements(file.package, file))


def test_the_originals_belong_to_the_kubelet_that_the_rig_runs() -> None:
    assert KUBELET_API.version.removeprefix("v0.") == KUBERNETES.version.removeprefix("v1.")


def test_every_contract_has_an_original() -> None:
    assert {proto.stem for proto in PROTOS.glob("*.proto")} == set(ORIGINALS) | OF_OTHERS


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_contract_says_what_the_original_says(name: str, originals: Path, tmp_path: Path) -> None:
    theirs = contract(compiled(originals, ORIGINALS[name], tmp_path))
    ours = contract(compiled(PROTOS, f"{name}.proto", tmp_path))
    difference = list(unified_diff(theirs, ours, ORIGINALS[name], f"protos/{name}.proto", lineterm="", n=0))
    assert not difference, "\n".join(difference)
