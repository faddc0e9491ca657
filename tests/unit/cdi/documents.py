"""CDI specs as documents, good and bad: what the agent's own check says of them and what the CDI library says.

``tests/unit/cdi`` asks the agent's check, ``tests/node/test_cdi_schema.py`` asks the library about the same documents.
"""

from typing import Any

Document = dict[str, Any]

NODE = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
EDITS: Document = {"deviceNodes": [NODE]}


def spec(
    version: str = "0.3.0", *, device: Document | None = None, kind: str = "vendor.com/gpu", **others: Any
) -> Document:
    """A spec of one device with one node; ``device`` changes the device, ``others`` the spec."""
    return {
        "cdiVersion": version,
        "kind": kind,
        "devices": [{"name": "gpu0", "containerEdits": EDITS} | (device or {})],
        **others,
    }


def edits(version: str = "0.3.0", **fields: Any) -> Document:
    """A spec whose one device has these edits."""
    return spec(version, device={"containerEdits": EDITS | fields})


def node(version: str = "0.3.0", **fields: Any) -> Document:
    """A spec whose one device node has these fields."""
    return edits(version, deviceNodes=[NODE | fields])


def lacking(field: str) -> Document:
    """The least spec without a field of its own."""
    return {key: value for key, value in spec().items() if key != field}


HOOK = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}
MOUNT = {"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi"}
NETWORK = {"hostInterfaceName": "ib0", "name": "eth1"}

GOOD: dict[str, Document] = {
    "the least": spec(),
    "a later version than needed": spec("1.0.0"),
    "every field of a node": node(
        "0.5.0", hostPath="/host/dev/nvidia0", fileMode=438, permissions="rwm", uid=0, gid=44
    ),
    "a node with no rights": node(permissions="none"),
    "an empty permission": node(permissions=""),
    "only a path": edits(deviceNodes=[{"path": "/dev/nvidia0"}]),
    "a pipe": edits(deviceNodes=[{"path": "/run/pipe", "type": "p"}]),
    "a mount with options": edits(mounts=[MOUNT | {"options": ["ro", "nosuid"]}]),
    "a mount with a type": edits("0.4.0", mounts=[MOUNT | {"type": "none"}]),
    "a hook": edits(hooks=[HOOK | {"args": ["nvidia-cdi-hook", "chmod"], "env": ["A=b"], "timeout": 5}]),
    "variables": edits(env=["A=", "B=c=d"]),
    "groups": edits("0.7.0", additionalGids=[44, 0]),
    "a device with nothing but a group": spec("0.7.0", device={"containerEdits": {"additionalGids": [44]}}),
    "cache control": edits("0.7.0", intelRdt={"closID": "gold", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=20"}),
    "the root class of service": edits("0.7.0", intelRdt={"closID": "/"}),
    "cache control of later days": edits("1.1.0", intelRdt={"schemata": ["L3:0=f"], "enableMonitoring": True}),
    "a network interface": edits("1.1.0", netDevices=[NETWORK]),
    "annotations of the spec": spec("0.6.0", annotations={"vendor.com/note": "x"}),
    "annotations of a device": spec("0.6.0", device={"annotations": {"vendor.com/note": "x"}}),
    "a name with a digit in front": spec("0.5.0", device={"name": "0"}),
    "a name with every sign": spec(device={"name": "G-0_1.2:3"}),
    "a class with a dot": spec("0.6.0", kind="vendor.com/gpu.shared"),
    "edits of the spec": spec(containerEdits={"env": ["NVIDIA_VISIBLE_DEVICES=void"]}),
    "empty edits of the spec": spec(containerEdits={}),
}

BAD: dict[str, tuple[Document, str]] = {
    "no version": (lacking("cdiVersion"), "spec must contain ['cdiVersion']"),
    "a version that never was": (spec("0.9.0"), "spec.cdiVersion"),
    "a version before the first release": (spec("0.2.0"), "spec.cdiVersion"),
    "no kind": (lacking("kind"), "spec must contain ['kind']"),
    "a kind without a class": (spec(kind="vendor.com"), "spec.kind"),
    "a kind that starts with a digit": (spec(kind="0vendor/gpu"), "spec.kind"),
    "a kind that ends in a dash": (spec(kind="vendor/gpu-"), "spec.kind"),
    "no devices at all": (lacking("devices"), "spec must contain ['devices']"),
    "an empty list of devices": (spec() | {"devices": []}, "spec.devices"),
    "a device without a name": (spec() | {"devices": [{"containerEdits": EDITS}]}, "spec.devices[0]"),
    "a device without edits": (spec() | {"devices": [{"name": "gpu0"}]}, "spec.devices[0]"),
    "a device that changes nothing": (spec(device={"containerEdits": {}}), "spec.devices[0].containerEdits"),
    "a device with empty lists": (spec(device={"containerEdits": {"env": []}}), "spec.devices[0].containerEdits"),
    "a name with a slash": (spec(device={"name": "MIG-GPU-0/1/0"}), "spec.devices[0].name"),
    "a name that ends in a colon": (spec(device={"name": "gpu:"}), "spec.devices[0].name"),
    "two devices of one name": (spec() | {"devices": spec()["devices"] * 2}, "2 have the name gpu0"),
    "an unknown field of the spec": (spec(containerEdit={}), "spec must not contain {'containerEdit'}"),
    "an unknown field of a device": (spec(device={"uuid": "GPU-0"}), "spec.devices[0] must not contain {'uuid'}"),
    "an unknown field of edits": (edits(devices=[]), "containerEdits must not contain {'devices'}"),
    "an unknown field of a node": (node(hostpath="/dev/x"), "must not contain {'hostpath'}"),
    "a node without a path": (edits(deviceNodes=[{"type": "c"}]), "deviceNodes[0]"),
    "a node with an empty path": (node(path=""), "deviceNodes[0].path"),
    "a node of unknown type": (node(type="d"), "deviceNodes[0].type"),
    "a negative major number": (node(major=-1), "deviceNodes[0].major"),
    "a negative minor number": (node(minor=-1), "deviceNodes[0].minor"),
    "a number in quotes": (node(major="195"), "deviceNodes[0].major"),
    "permissions that do not exist": (node(permissions="rx"), "deviceNodes[0].permissions"),
    "a mount from nowhere": (edits(mounts=[MOUNT | {"hostPath": ""}]), "mounts[0].hostPath"),
    "a mount to nowhere": (edits(mounts=[MOUNT | {"containerPath": ""}]), "mounts[0].containerPath"),
    "mount options in one string": (edits(mounts=[MOUNT | {"options": "ro"}]), "mounts[0].options"),
    "a hook at an unknown point": (edits(hooks=[HOOK | {"hookName": "preStart"}]), "hooks[0].hookName"),
    "a hook without a program": (edits(hooks=[HOOK | {"path": ""}]), "hooks[0].path"),
    "a variable without a value": (edits(env=["NVIDIA_VISIBLE_DEVICES"]), "env[0]"),
    "a variable without a name": (edits(env=["=void"]), "env[0]"),
    "a hook's variable without a value": (edits(hooks=[HOOK | {"env": ["DEBUG"]}]), "hooks[0].env[0]"),
    "a group that is no number": (edits("0.7.0", additionalGids=["video"]), "additionalGids[0]"),
    "a group below zero": (edits("0.7.0", additionalGids=[-1]), "additionalGids[0]"),
    "a class of service in a folder": (edits("0.7.0", intelRdt={"closID": "a/b"}), "intelRdt.closID"),
    "a class of service that is no name": (edits("0.7.0", intelRdt={"closID": ".."}), "intelRdt.closID"),
    "a network interface without a name": (edits("1.1.0", netDevices=[NETWORK | {"name": ""}]), "netDevices[0].name"),
    "one network interface twice": (
        edits("1.1.0", netDevices=[NETWORK, NETWORK | {"name": "eth2"}]),
        "2 have the hostInterfaceName ib0",
    ),
    "two network interfaces of one name": (
        edits("1.1.0", netDevices=[NETWORK, NETWORK | {"hostInterfaceName": "ib1"}]),
        "2 have the name eth1",
    ),
    "a digit in front before 0.5.0": (spec("0.4.0", device={"name": "0"}), "came with 0.5.0"),
    "a host path before 0.5.0": (node("0.4.0", hostPath="/host/dev/nvidia0"), "came with 0.5.0"),
    "a mount type before 0.4.0": (edits("0.3.0", mounts=[MOUNT | {"type": "none"}]), "came with 0.4.0"),
    "annotations before 0.6.0": (spec("0.5.0", annotations={"a": "b"}), "came with 0.6.0"),
    "a device's annotations before 0.6.0": (spec("0.5.0", device={"annotations": {"a": "b"}}), "came with 0.6.0"),
    "a dot in the class before 0.6.0": (spec("0.5.0", kind="vendor.com/gpu.shared"), "came with 0.6.0"),
    "groups before 0.7.0": (edits("0.6.0", additionalGids=[44]), "came with 0.7.0"),
    "cache control before 0.7.0": (edits("0.6.0", intelRdt={"closID": "a"}), "came with 0.7.0"),
    "monitoring before 1.1.0": (edits("1.0.0", intelRdt={"enableMonitoring": True}), "came with 1.1.0"),
    "network interfaces before 1.1.0": (edits("1.0.0", netDevices=[NETWORK]), "came with 1.1.0"),
}
"""Each with a part of what the agent says of it."""
