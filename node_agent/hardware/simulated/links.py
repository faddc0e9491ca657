"""Where GPUs meet: NVLinks from the profile's islands and pairs, and the PCIe ancestor from the bridges above two GPUs.

The C functions on top are in ``library/topology``.
"""

from collections.abc import Sequence
from itertools import takewhile

import pynvml
from msgspec import Struct, field

from node_agent.hardware.simulated.profile import GpuPlace, NodeProfile


class Link(Struct, kw_only=True):
    """One NVLink of a GPU. Without a ``peer`` and an ``island`` nothing is plugged in and the link is never active.

    ``peer`` is the slot of the GPU at the far end and ``peer_link`` the number of its link. ``island`` numbers the
    profile's island whose NVSwitch is at the far end, and ``switch`` is that switch's bus id, if it is on the bus.
    ``errors`` counts by NVML's error counter.
    """

    peer: int | None = None
    peer_link: int | None = None
    island: int | None = None
    switch: str | None = None
    up: bool = True
    errors: dict[int, int] = field(default_factory=dict)

    @property
    def connected(self) -> bool:
        return self.peer is not None or self.island is not None

    @property
    def active(self) -> bool:
        return self.up and self.connected


def build_links(profile: NodeProfile) -> list[list[Link]]:
    """The links of each GPU, by index; ValueError where more are plugged in than the board has."""
    plugged: list[list[Link]] = [[] for _ in profile.gpus]
    for number, island in enumerate(profile.nvlink.switched):
        switches = island.switches or (None,)
        for index in island.gpus:
            ports = range(_ports(profile, index))
            plugged[index] = [Link(island=number, switch=switches[port % len(switches)]) for port in ports]
    for pair in profile.nvlink.direct:
        for _ in range(pair.links):
            _join(plugged, *pair.gpus)
    return [_fill(profile, index, links) for index, links in enumerate(plugged)]


def common_ancestor(one: GpuPlace, other: GpuPlace) -> int:
    """NVML's topology level at which two different GPUs meet on PCIe."""
    if root_complex(one) != root_complex(other):
        # Without NUMA nodes of their own (guests) two roots are taken to be as far apart as can be.
        same_node = one.numa is not None and one.numa == other.numa
        return int(pynvml.NVML_TOPOLOGY_NODE if same_node else pynvml.NVML_TOPOLOGY_SYSTEM)
    shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one.bridges, other.bridges, strict=False))))
    if not shared:
        return int(pynvml.NVML_TOPOLOGY_HOSTBRIDGE)
    # A switch shows as an upstream port with a downstream port for each device: one port below the fork is one switch.
    below = max(len(one.bridges), len(other.bridges)) - shared
    return int(pynvml.NVML_TOPOLOGY_SINGLE if below <= 1 else pynvml.NVML_TOPOLOGY_MULTIPLE)


def root_complex(place: GpuPlace) -> str:
    """The PCI root above a GPU as sysfs names it, without the leading ``pci``: ``0000:15``."""
    return (place.bridges[0] if place.bridges else place.bus)[:7]


def _join(plugged: list[list[Link]], one: int, other: int) -> None:
    first, second = Link(peer=other), Link(peer=one)
    first.peer_link, second.peer_link = len(plugged[other]), len(plugged[one])
    plugged[one].append(first)
    plugged[other].append(second)


def _fill(profile: NodeProfile, index: int, links: Sequence[Link]) -> list[Link]:
    ports = _ports(profile, index)
    if len(links) > ports:
        raise ValueError(f"gpus[{index}] has {len(links)} NVLinks plugged in, but its board has only {ports}")
    return [*links, *(Link() for _ in range(ports - len(links)))]


def _ports(profile: NodeProfile, index: int) -> int:
    port = profile.board_of(profile.gpus[index]).nvlink
    return port.links if port else 0
