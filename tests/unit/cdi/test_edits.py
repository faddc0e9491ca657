import json

import msgspec
import pytest

from node_agent.cdi.edits import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec, document, encode, merge
from tests.fakes.names import KIND

NODE = DeviceNode(path="/dev/nvidia0", type="c", major=195, minor=0, file_mode=0o666, permissions="rwm")
MOUNT = Mount(host_path="/host/nvidia-smi", container_path="/usr/bin/nvidia-smi", options=("ro",))
HOOK = Hook(hook_name="createContainer", path="/usr/bin/nvidia-cdi-hook", args=("nvidia-cdi-hook", "update-ldcache"))


def spec(edits: ContainerEdits) -> Spec:
    return Spec(cdi_version="0.5.0", kind=KIND, devices=(Device(name="0", container_edits=edits),))


def test_a_spec_is_written_with_the_formats_own_keys() -> None:
    edits = ContainerEdits(device_nodes=(NODE,), mounts=(MOUNT,), hooks=(HOOK,), env=("A=b",), additional_gids=(44,))
    assert document(spec(edits)) == {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": [
            {
                "name": "0",
                "containerEdits": {
                    "env": ["A=b"],
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia0",
                            "type": "c",
                            "major": 195,
                            "minor": 0,
                            "fileMode": 438,
                            "permissions": "rwm",
                        }
                    ],
                    "mounts": [
                        {"hostPath": "/host/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi", "options": ["ro"]}
                    ],
                    "hooks": [
                        {
                            "hookName": "createContainer",
                            "path": "/usr/bin/nvidia-cdi-hook",
                            "args": ["nvidia-cdi-hook", "update-ldcache"],
                        }
                    ],
                    "additionalGids": [44],
                },
            }
        ],
    }


def test_what_is_empty_is_left_out() -> None:
    assert document(spec(ContainerEdits(device_nodes=(DeviceNode(path="/dev/x"),))))["devices"] == [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/x"}]}}
    ]


def test_a_minor_number_of_zero_is_not_empty() -> None:
    assert json.loads(msgspec.json.encode(NODE))["minor"] == 0


def test_equal_specs_are_equal_bytes_that_end_in_a_line_feed() -> None:
    content = encode(spec(ContainerEdits(device_nodes=(NODE,))))
    assert content == encode(spec(ContainerEdits(device_nodes=(msgspec.structs.replace(NODE),))))
    assert content.endswith(b"}\n")
    assert b'\n  "kind": ' in content


def test_a_written_spec_reads_back_as_the_same_value() -> None:
    written = spec(ContainerEdits(device_nodes=(NODE,), mounts=(MOUNT,), hooks=(HOOK,)))
    assert msgspec.json.decode(encode(written), type=Spec) == written


def test_a_name_that_runtimes_refuse_makes_no_device() -> None:
    with pytest.raises(ValueError, match="no CDI device name"):
        Device(name="GPU 0", container_edits=ContainerEdits())


def test_a_kind_that_runtimes_refuse_makes_no_spec() -> None:
    with pytest.raises(ValueError, match="no CDI kind"):
        Spec(cdi_version="0.5.0", kind="gpu", devices=())


def test_merged_edits_hold_each_part_once_and_in_order() -> None:
    other = DeviceNode(path="/dev/nvidia1")
    merged = merge(
        ContainerEdits(env=("A=b",), device_nodes=(NODE,), mounts=(MOUNT,), hooks=(HOOK,), additional_gids=(104, 44)),
        ContainerEdits(env=("A=b", "C=d"), device_nodes=(other, NODE), mounts=(MOUNT,), additional_gids=(44, 39)),
    )
    assert merged == ContainerEdits(
        env=("A=b", "C=d"),
        device_nodes=(NODE, other),
        mounts=(MOUNT,),
        hooks=(HOOK,),
        additional_gids=(39, 44, 104),
    )


def test_nothing_merged_is_nothing() -> None:
    assert merge() == ContainerEdits()
