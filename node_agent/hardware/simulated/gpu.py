"""One simulated GPU: what its board and place in the profile give it, and the state that calls and faults change."""

import time
import uuid
from collections import Counter

import pynvml
from msgspec import Struct, field

from node_agent.hardware.simulated.links import Link, build_links
from node_agent.hardware.simulated.mig import ComputeInstance, GpuInstance, Mig
from node_agent.hardware.simulated.profile import MIB, Board, Fabric, GpuPlace, NodeProfile

# All ids are derived from names below this one: the same profile gives the same ids on every machine.
_IDS = uuid.uuid5(uuid.NAMESPACE_DNS, "simulated.node-agent.invalid")

# Nothing degraded, nothing misconfigured, as a healthy fabric reports itself.
HEALTHY_MASK = 0x1AA

PROCESS_KINDS = ("compute", "graphics", "mps")


class Process(Struct, frozen=True, kw_only=True):
    """A process on a GPU, or on one of its MIG devices. ``memory`` is in bytes, None where the driver cannot tell."""

    pid: int
    kind: str = "compute"
    memory: int | None = 512 * MIB
    instance: int | None = None
    compute_instance: int | None = None


class RowRemapping(Struct, kw_only=True):
    """``spent`` counts banks by spare rows left (high, partial, low, none); all others still have all of theirs."""

    correctable: int = 0
    uncorrectable: int = 0
    pending: bool = False
    failure: bool = False
    spent: dict[str, int] = field(default_factory=dict)


class FabricState(Struct, kw_only=True):
    """What NVLink registration of a GPU has come to; ``state``, ``status`` and ``summary`` are NVML's numbers."""

    cluster: uuid.UUID
    clique: int
    state: int = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    status: int = pynvml.NVML_SUCCESS
    health_mask: int = HEALTHY_MASK
    summary: int = pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY


class SimulatedGpu(Struct, kw_only=True, eq=False):
    """``slot`` is the place in the profile: unlike NVML's index it never moves. ``load`` is a share from 0 to 1.

    ``pcie_generation`` and ``pcie_width`` are what a bad slot or riser leaves of the PCIe link; None: all of it.
    """

    slot: int
    place: GpuPlace
    board: Board
    uuid: str
    serial: str
    links: list[Link]
    fabric: FabricState | None
    mig: Mig | None
    plugged: bool = True
    lost: bool = False
    recovery_action: int = pynvml.NVML_GPU_RECOVERY_ACTION_NONE
    load: float = 0.0
    clock_reasons: int = 0
    compute_mode: int = pynvml.NVML_COMPUTEMODE_DEFAULT
    persistence: int = pynvml.NVML_FEATURE_ENABLED
    ecc_current: int = pynvml.NVML_FEATURE_ENABLED
    ecc_pending: int = pynvml.NVML_FEATURE_ENABLED
    ecc_errors: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    remapping: RowRemapping = field(default_factory=RowRemapping)
    retired_pages: dict[int, list[int]] = field(default_factory=dict)
    retirement_pending: bool = False
    pcie_replays: int = 0
    pcie_generation: int | None = None
    pcie_width: int | None = None
    processes: list[Process] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    busy_before: float = 0.0
    busy_since: float = field(default_factory=time.monotonic)

    @property
    def gpu(self) -> "SimulatedGpu":
        """Itself, so that a GPU and a MIG device can be asked alike."""
        return self

    @property
    def reachable(self) -> bool:
        return self.plugged and not self.lost

    @property
    def mig_enabled(self) -> bool:
        return self.mig is not None and self.mig.enabled

    @property
    def seconds(self) -> float:
        """Since the driver was loaded."""
        return time.monotonic() - self.started

    @property
    def busy_seconds(self) -> float:
        """Seconds weighted by the load they had."""
        return self.busy_before + self.load * (time.monotonic() - self.busy_since)

    def set_load(self, load: float) -> None:
        self.busy_before, self.busy_since, self.load = self.busy_seconds, time.monotonic(), load

    def clear_ecc_errors(self, counter: int) -> None:
        for key in [key for key in self.ecc_errors if key[1] == counter]:
            del self.ecc_errors[key]

    def mig_devices(self) -> list["MigDevice"]:
        """The live MIG devices in the order of their slots."""
        pairs = self.mig.devices() if self.mig else []
        devices = [MigDevice(gpu=self, instance=instance, compute=compute) for instance, compute in pairs]
        return sorted(devices, key=lambda device: device.compute.slot)

    def reset(self) -> None:
        """What a GPU reset does: pending modes and remaps take effect, volatile counts and MIG instances are gone."""
        self.lost = False
        self.recovery_action = pynvml.NVML_GPU_RECOVERY_ACTION_NONE
        self.processes.clear()
        self.ecc_current = self.ecc_pending
        self.clear_ecc_errors(pynvml.NVML_VOLATILE_ECC)
        self.remapping.pending = False
        self.retirement_pending = False
        if self.mig:
            self.mig.set_mode(self.mig.pending)

    def reload(self) -> None:
        """What loading the driver does: as a reset, and all that the driver counted or was told is forgotten.

        A GPU that is off the bus stays so, and boards that need a reset for MIG remember its mode.
        """
        if not self.lost:
            self.reset()
        self.compute_mode = pynvml.NVML_COMPUTEMODE_DEFAULT
        self.busy_before, self.busy_since = 0.0, time.monotonic()
        self.started = self.busy_since
        if self.mig and self.mig.table.resetless:
            self.mig.set_mode(False)


class MigDevice(Struct, frozen=True, kw_only=True):
    """A compute instance with the GPU instance and the GPU that it lives on: what a MIG device handle stands for."""

    gpu: SimulatedGpu
    instance: GpuInstance
    compute: ComputeInstance

    @property
    def uuid(self) -> str:
        """Stable for the same GPU and instance ids, so that it returns with a MIG device made again in its place."""
        return f"MIG-{uuid.uuid5(_IDS, f'{self.gpu.uuid}/{self.instance.id}/{self.compute.id}')}"

    @property
    def name(self) -> str:
        return f"{self.gpu.board.name} MIG {self.compute.profile.name}"

    @property
    def processes(self) -> list[Process]:
        ids = (self.instance.id, self.compute.id)
        return [process for process in self.gpu.processes if (process.instance, process.compute_instance) == ids]


def build_gpus(profile: NodeProfile) -> list[SimulatedGpu]:
    """The GPUs of a node as they are after boot; ids follow from the profile's name and the bus alone."""
    links = build_links(profile)
    return [_build_gpu(profile, slot, links[slot]) for slot in range(len(profile.gpus))]


def _build_gpu(profile: NodeProfile, slot: int, links: list[Link]) -> SimulatedGpu:
    place = profile.gpus[slot]
    board = profile.board_of(place)
    identity = uuid.uuid5(_IDS, f"{profile.name}/{place.bus}")
    return SimulatedGpu(
        slot=slot,
        place=place,
        board=board,
        uuid=place.uuid or f"GPU-{identity}",
        # Thirteen digits, as on real boards.
        serial=f"1{identity.int % 10**12:012}",
        links=links,
        fabric=_fabric(profile.fabric) if board.fabric else None,
        mig=_mig(board, place, slot),
    )


def _fabric(fabric: Fabric) -> FabricState:
    return FabricState(cluster=fabric.cluster, clique=fabric.clique)


def _mig(board: Board, place: GpuPlace, slot: int) -> Mig | None:
    """The MIG state at boot, with a compute instance that fills each of the profile's GPU instances."""
    if board.mig is None:
        if place.mig is not None:
            raise ValueError(f"gpus[{slot}].mig: {board.name} has no MIG")
        return None
    mig = Mig(table=board.mig)
    mig.set_mode(place.mig is not None)
    try:
        mig.lay_out(place.mig or ())
    except ValueError as error:
        raise ValueError(f"gpus[{slot}].mig: {error}") from error
    return mig
