"""CDI names: of kinds (``vendor/class``), of devices, of both together (``vendor/class=device``), and of spec files.

The agent's own kinds are its vendor's (``model.vendor``). ``edits`` holds the values that carry these names.
"""

import re
from functools import lru_cache

from msgspec import Struct

ALL = "all"
"""The device that stands for every GPU of the node."""

_VENDOR = re.compile(r"(?=.{1,253}\Z)[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"(?=.{1,63}\Z)[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")


class QualifiedName(Struct, frozen=True, kw_only=True):
    """One device of one kind; as text it is what the kubelet and the runtime pass on."""

    kind: str
    device: str

    def __post_init__(self) -> None:
        check_kind(self.kind)
        check_device(self.device)

    def __str__(self) -> str:
        return f"{self.kind}={self.device}"


def check_kind(kind: str) -> str:
    """Check a kind and return it. Raises ValueError where it is not ``vendor/class`` as the CDI format wants it."""
    vendor, _, device_class = kind.partition("/")
    if not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(device_class):
        raise ValueError(f"{kind!r} is no CDI kind; expected vendor/class, such as vendor.com/gpu")
    return kind


def check_device(device: str) -> str:
    """Check an unqualified device name and return it. Raises ValueError where the CDI format does not allow it."""
    if not _DEVICE.fullmatch(device):
        raise ValueError(
            f"{device!r} is no CDI device name: letters, digits and any of '_.:-' between them, "
            "with a letter or a digit at both ends"
        )
    return device


def partition_device(uuid: str) -> str:
    """The unqualified name of a partition: its UUID, where that is no form of old (``MIG-GPU-…/7/0``)."""
    # CDI allows no slash.
    return uuid.replace("/", ".")


@lru_cache(1024)
def qualified(device: str, kind: str) -> str:
    """The qualified name of a device, such as ``vendor.com/gpu=0``. Raises ValueError as the checks."""
    return str(QualifiedName(kind=kind, device=device))


def parse_qualified(name: str) -> QualifiedName:
    """Take a qualified name apart. Raises ValueError where it is none."""
    kind, equals, device = name.partition("=")
    if not equals:
        raise ValueError(
            f"{name!r} is no qualified CDI name; expected vendor/class=device, such as vendor.com/gpu={ALL}"
        )
    return QualifiedName(kind=kind, device=device)


def file_name(kind: str, transient: str | None = None) -> str:
    """The file that holds the spec of a kind; ``transient`` tells specs apart that come and go, such as a claim's."""
    stem = check_kind(kind).replace("/", "-")
    return f"{stem}.json" if transient is None else f"{stem}_{check_device(transient)}.json"


def transient_of(kind: str, name: str) -> str | None:
    """What ``transient`` was when ``file_name`` made this name; None where it is the name of another file."""
    start, end = file_name(kind).removesuffix(".json") + "_", ".json"
    return name[len(start) : -len(end)] if name.startswith(start) and name.endswith(end) else None
