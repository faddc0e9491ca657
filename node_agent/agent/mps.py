"""Puts the node's MPS daemons together, and lets the health board know of those that die."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from node_agent.allocation.grants import Door
from node_agent.allocation.ledger import Ledger
from node_agent.cdi.catalogue import BINARY_FOLDERS
from node_agent.cdi.roots import DriverRoots
from node_agent.config.settings import Settings
from node_agent.dra.mps_step import user_of
from node_agent.errors import MpsImpossible
from node_agent.hardware.provider import Modes
from node_agent.health.board import HealthBoard
from node_agent.health.findings import Finding
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest, changes
from node_agent.model.gpu import GpuUuid
from node_agent.model.health import Instance, Reason
from node_agent.model.inventory import Inventory
from node_agent.model.partition import DeviceUuid, PartitionUuid
from node_agent.sharing.mps.daemon import Host, Phase, State
from node_agent.sharing.mps.daemons import MpsDaemons
from node_agent.sharing.mps.records import Records
from node_agent.sharing.shares import is_partition

CONTROL = "nvidia-cuda-mps-control"


def find_control(roots: DriverRoots) -> Path | None:
    """The driver's control program where the agent sees it; None where the driver has none (any more)."""
    places = (roots.driver_file(roots.resolve(PurePosixPath(folder, CONTROL))) for folder in BINARY_FOLDERS)
    return next((place for place in places if place.is_file()), None)


def control_program(settings: Settings, roots: DriverRoots) -> Path:
    """The program to start and to ask daemons with. Raises MpsImpossible with what the node lacks for MPS."""
    if settings.pod_name and settings.mps_root is None:
        raise MpsImpossible(
            "this pod has no folder of MPS that containers could mount from the host: install it with the component mps"
        )
    program = find_control(roots)
    if program is None:
        raise MpsImpossible(f"the driver has no {CONTROL}: install it, or set the driver root")
    return program


def what_mps_lacks(settings: Settings, roots: DriverRoots) -> str | None:
    """What keeps MPS from the whole node; None where nothing does."""
    try:
        control_program(settings, roots)
    except MpsImpossible as error:
        return str(error)
    return None


def mps_folder(settings: Settings) -> Path:
    """Where the daemons' folders are, on the host as for the agent: containers get them by this path."""
    return settings.mps_root or settings.paths.run_dir / "mps"


def mps_daemons(
    settings: Settings, roots: DriverRoots, modes: Modes, inventory: Latest[Inventory], lane: Lane
) -> MpsDaemons:
    """The daemons of the node, to run as a service."""

    def sizes() -> Mapping[DeviceUuid, int]:
        found: dict[DeviceUuid, int] = {gpu.uuid: gpu.memory for gpu in inventory.value.gpus if gpu.memory}
        return found | {one.uuid: one.memory for one in inventory.value.partitions.values() if one.memory}

    return MpsDaemons(
        Host(
            folder=mps_folder(settings),
            records=Records(settings.paths.state_dir / "mps"),
            program=lambda: control_program(settings, roots),
            modes=modes,
            lane=lane,
            sizes=sizes,
        )
    )


class MpsHealth:
    """A service: a GPU whose daemon has died is out of service until that is back; ``states`` tells of the daemons.

    Where the daemon was one of a partition in the ``inventory``, the partition alone is.
    """

    def __init__(self, states: Latest[Mapping[str, State]], board: HealthBoard, inventory: Latest[Inventory]) -> None:
        self._states = states
        self._board = board
        self._inventory = inventory
        self._opened: Mapping[DeviceUuid, GpuUuid] = {}

    async def run(self) -> None:
        """Follow until cancelled."""
        async for _ in changes(self._states):
            down = {
                device: state
                for state in self._states.value.values()
                for device in state.devices
                if state.phase is Phase.DOWN
            }
            for device in self._opened.keys() - down.keys():
                self._board.close(self._opened[device], Reason.MPS)
            self._opened = {device: gpu for device, state in down.items() if (gpu := self._open(device, state))}

    def _open(self, device: DeviceUuid, state: State) -> GpuUuid | None:
        """Say which GPU it concerns; None where that is not known (any more)."""
        message, gpu, instance = state.trouble or "its MPS daemon has died", GpuUuid(device), None
        if is_partition(device):
            partition = self._inventory.value.partitions.get(PartitionUuid(device))
            if partition is None:
                return None
            gpu, instance = partition.parent, Instance(id=partition.instance, compute=partition.compute_instance)
        self._board.open(gpu, Finding(reason=Reason.MPS, message=message, instance=instance))
        return gpu


async def forget_gone_claims(daemons: MpsDaemons, ledger: Ledger) -> None:
    """A service: let those claims leave that the ledger does not have, once it is known which there are."""
    async for _ in changes(ledger.unreconciled):
        if Door.CLAIM in ledger.unreconciled.value:
            continue
        users = await daemons.users()
        # Read after the users: whoever uses a daemon was in the ledger before.
        kept = {user_of(grant) for grant in ledger.grants_of(Door.CLAIM)}
        for user in sorted(users - kept):
            if user.startswith(Door.CLAIM):
                await daemons.leave(user)
