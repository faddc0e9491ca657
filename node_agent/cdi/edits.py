"""The CDI format as values: what to add to a container, and the spec that says so.

Field for field what runtimes read (``cdi/schema/cdi.schema.json`` says it in full), less what no GPU needs: network
interfaces, resctrl and annotations. Field names become camelCase in JSON, defaults are left out, and fields and tuples
keep their order in the file, so that equal specs are equal bytes. ``build`` makes these values.
"""

from collections.abc import Hashable, Iterable, Mapping
from itertools import chain
from typing import Any, TypeVar

import msgspec

from node_agent.cdi.names import check_device, check_kind
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import PartitionUuid

_Item = TypeVar("_Item", bound=Hashable)

# The point inside the container's namespaces, before its root is switched: hooks see both file systems.
CREATE_CONTAINER = "createContainer"


class _Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """What all parts of a spec have in common."""


class DeviceNode(_Value, frozen=True, kw_only=True):
    """A device node in the container; ``host_path`` only where the host has it elsewhere. ``type`` is c or b."""

    path: str
    host_path: str | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str | None = None
    gid: int | None = None


class Mount(_Value, frozen=True, kw_only=True):
    """A bind mount of a file or folder of the host."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class Hook(_Value, frozen=True, kw_only=True):
    """A program of the host that the runtime runs; ``args`` starts with the program's own name."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class ContainerEdits(_Value, frozen=True, kw_only=True):
    """What to add to a container. ``env`` holds ``NAME=value``; ``additional_gids`` join the container's process."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()


class Device(_Value, frozen=True, kw_only=True):
    """One device that a container can ask for, by its unqualified name."""

    name: str
    container_edits: ContainerEdits

    def __post_init__(self) -> None:
        check_device(self.name)


class Spec(_Value, frozen=True, kw_only=True):
    """All devices of one kind in one file; its own edits go to a container once, whichever devices it asks for."""

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind)


class NodeEdits(_Value, frozen=True, kw_only=True):
    """What the GPUs of a node need in a container: ``common`` whichever they are, ``gpus`` each of those in reach.

    ``partitions`` are those that live, each with what it needs of its GPU.
    """

    common: ContainerEdits
    gpus: Mapping[GpuUuid, ContainerEdits]
    partitions: Mapping[PartitionUuid, ContainerEdits] = {}


def merge(*edits: ContainerEdits) -> ContainerEdits:
    """All the given edits in one, in their order, each part once."""
    return ContainerEdits(
        env=_once(edit.env for edit in edits),
        device_nodes=_once(edit.device_nodes for edit in edits),
        mounts=_once(edit.mounts for edit in edits),
        hooks=_once(edit.hooks for edit in edits),
        additional_gids=tuple(sorted(_once(edit.additional_gids for edit in edits))),
    )


def _once(parts: Iterable[tuple[_Item, ...]]) -> tuple[_Item, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(parts)))


def encode(spec: Spec) -> bytes:
    """The spec as it is written: JSON that people can read, the same bytes for the same spec."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def document(spec: Spec) -> Any:
    """The spec as whoever reads the file will have it: JSON's own types."""
    return msgspec.json.decode(encode(spec))
