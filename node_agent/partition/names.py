"""The driver's names of profiles, and how they are spelled where Kubernetes allows fewer characters. Pure.

Each spelling is reversible by itself, without a table of profiles: ``1g.18gb+me`` is the resource
``nvidia.com/mig-1g.18gb.me``, and at memory slice 6 of ``gpu-3`` the device ``gpu-3-mig-1g-18gb-me-6``.
"""

import re

from msgspec import Struct

from node_agent.model.gpu import DeviceName, device_name
from node_agent.model.partition import Piece, Placement

_WORDS = r"[a-z]+(?:\.[a-z]+)*"
_PROFILE = re.compile(rf"(?:(\d+)c\.)?(\d+)g\.(\d+)gb([+-]{_WORDS})?")
_RESOURCE = re.compile(rf"nvidia\.com/mig-((?:\d+c\.)?\d+g\.\d+gb)([.-]{_WORDS})?")
_DEVICE = re.compile(r"(.+)-mig-(?:(\d+)c-)?(\d+)g-(\d+)gb((?:-[a-z]+)*)-(\d+)(?:-c(\d+))?")

# How a device's name says that an attribute is missing: "1g.24gb-me" has no media engines.
_WITHOUT = "no"


class ProfileName(Struct, frozen=True, kw_only=True):
    """The parts of a name such as ``1c.3g.71gb+me``: ``attribute`` with its sign, ``computes`` None if it is whole."""

    slices: int
    gigabytes: int
    attribute: str = ""
    computes: int | None = None

    def __str__(self) -> str:
        part = "" if self.computes is None else f"{self.computes}c."
        return f"{part}{self.slices}g.{self.gigabytes}gb{self.attribute}"

    @property
    def whole(self) -> str:
        """The name of the GPU instance's own profile."""
        return str(ProfileName(slices=self.slices, gigabytes=self.gigabytes, attribute=self.attribute))


def profile_name(text: str) -> ProfileName:
    """The parts of a profile's name. Raises ValueError where it is none: the driver may know profiles without one."""
    found = _PROFILE.fullmatch(text)
    if found is None or _WITHOUT in re.split(r"[+.-]", text):
        raise ValueError(f"{text!r} is no MIG profile: the form is 1g.18gb, 1g.18gb+me or 1c.3g.71gb")
    computes, slices, gigabytes, attribute = found.groups()
    return ProfileName(
        slices=int(slices),
        gigabytes=int(gigabytes),
        attribute=attribute or "",
        computes=None if computes is None or computes == slices else int(computes),
    )


def is_named(profile: str) -> bool:
    """Whether a profile has a name of the usual form; one that is newer than all that is known may have none."""
    return _PROFILE.fullmatch(profile) is not None


def resource_name(profile: str) -> str:
    """The resource that a profile is with strategy mixed; its last part begins labels, too, and ends label values."""
    return f"nvidia.com/mig-{str(profile_name(profile)).replace('+', '.')}"


def profile_of(resource: str) -> str:
    """The profile of a resource. Raises ValueError where the resource is none of a MIG profile."""
    found = _RESOURCE.fullmatch(resource)
    if found is None:
        raise ValueError(f"{resource!r} is no resource of a MIG profile: the form is nvidia.com/mig-1g.18gb.me")
    shape, attribute = found.groups(default="")
    return str(profile_name(shape + ("+" + attribute[1:] if attribute.startswith(".") else attribute)))


def partition_name(gpu: DeviceName, profile: str, placement: Placement, compute_start: int | None = None) -> DeviceName:
    """The device that a partition is in slices; ``compute_start`` tells apart those in one GPU instance."""
    name = profile_name(profile)
    part = "" if name.computes is None else f"{name.computes}c-"
    sign, words = name.attribute[:1], name.attribute[1:].split(".")
    attribute = {"": [], "+": words, "-": [_WITHOUT, *words]}[sign]
    tail = [*attribute, str(placement.start), *([] if compute_start is None else [f"c{compute_start}"])]
    return device_name(f"{gpu}-mig-{part}{name.slices}g-{name.gigabytes}gb-{'-'.join(tail)}")


class PartitionName(Struct, frozen=True, kw_only=True):
    """What a partition's device name says."""

    gpu: DeviceName
    profile: str
    start: int
    compute_start: int | None = None


def partition_of(device: str) -> PartitionName:
    """What a device name says. Raises ValueError where it is none of a partition."""
    found = _DEVICE.fullmatch(device)
    if found is None:
        raise ValueError(f"{device!r} names no partition: the form is gpu-3-mig-1g-18gb-me-6")
    gpu, computes, slices, gigabytes, attribute, start, compute_start = found.groups()
    words = attribute.split("-")[1:]
    negative = words[:1] == [_WITHOUT]
    sign = "-" if negative else "+"
    part = "" if computes is None else f"{computes}c."
    name = f"{part}{slices}g.{gigabytes}gb{sign if words else ''}{'.'.join(words[negative:])}"
    return PartitionName(
        gpu=device_name(gpu),
        profile=str(profile_name(name)),
        start=int(start),
        compute_start=None if compute_start is None else int(compute_start),
    )


def piece_name(gpu: DeviceName, piece: Piece) -> DeviceName:
    """The device that a whole piece is."""
    return partition_name(gpu, piece.profile, piece.placement)
