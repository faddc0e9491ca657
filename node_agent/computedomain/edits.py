"""What the containers of a domain get: a workload its channels, a daemon its settings and the node to manage them."""

from functools import partial
from pathlib import Path
from shutil import rmtree

from node_agent.cdi.build import assemble
from node_agent.cdi.edits import ContainerEdits, Mount
from node_agent.cdi.imex import channel_count, channel_nodes, management_node
from node_agent.cdi.names import ALL, qualified
from node_agent.cdi.roots import DriverRoots
from node_agent.cdi.writer import SpecWriter
from node_agent.computedomain.domains import Domain
from node_agent.errors import CdiError
from node_agent.kit.files import write_atomic
from node_agent.kit.lane import Lane
from node_agent.model.vendor import NVIDIA

KIND = "node-agent.compute-domain.nvidia.com/claim"

CONTAINER_FOLDER = "/imexd"
TEMPLATE = "imexd.cfg.tmpl"

# NVIDIA's daemon fills in the two places and starts nvidia-imex with the result.
SETTINGS = """\
LOG_LEVEL=4
LOG_FILE_NAME=
BIND_INTERFACE_IP=
SERVER_PORT=50000
IMEX_NODE_CONFIG_FILE={{.IMEXDaemonNodesConfigPath}}
IMEX_WAIT_FOR_QUORUM=RECOVERY
IMEX_CMD_ENABLED=1
IMEX_CMD_BIND_INTERFACE_IP={{.IMEXCmdBindInterfaceIP}}
IMEX_CMD_PORT=50005
DAEMONIZE=0
"""


class DomainFiles:
    """Writes and removes specs of claims, and the folders of domains below ``folder``; all work is done on ``lane``."""

    def __init__(self, *, roots: DriverRoots, writer: SpecWriter, folder: Path, lane: Lane) -> None:
        self._roots = roots
        self._writer = writer
        self._folder = folder
        self._lane = lane

    async def channel(self, uid: str, device: str, *, every: bool, clique: str | None) -> tuple[str, ...]:
        """The CDI names for a workload: none where the node is in no clique, and so has nobody to share with.

        Raises CdiError where the driver has no channels, or the spec cannot be written.
        """
        if clique is None:
            return ()
        return await self._lane.run("write a channel's spec", partial(self._channel, uid, device, every))

    async def daemon(self, uid: str, device: str, domain: Domain, clique: str | None) -> tuple[str, ...]:
        """The CDI names for a domain's daemon: its own settings, and the driver's files with all GPUs.

        Raises CdiError where its folder or spec cannot be written.
        """
        return await self._lane.run("write a daemon's spec", partial(self._daemon, uid, device, domain, clique))

    async def remove(self, uid: str) -> None:
        """Remove a claim's spec, if there is one; raises CdiError."""
        await self._lane.run("remove a spec", partial(self._writer.remove, KIND, uid))

    async def forget(self, domain: str) -> None:
        """Remove the folder of a domain of which nobody is left here."""
        await self._lane.run("remove a domain's folder", partial(rmtree, self._folder / domain, ignore_errors=True))

    def _channel(self, uid: str, device: str, every: bool) -> tuple[str, ...]:
        count = channel_count(self._roots) if every else 1
        return (self._write(uid, device, ContainerEdits(device_nodes=channel_nodes(self._roots, count))),)

    def _daemon(self, uid: str, device: str, domain: Domain, clique: str | None) -> tuple[str, ...]:
        place = self._folder / domain.uid
        try:
            place.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomic(place / TEMPLATE, SETTINGS.encode())
        except OSError as error:
            raise CdiError(f"the folder of {domain}, {place}, cannot be made: {error.strerror or error}") from error
        mount = Mount(host_path=str(place), container_path=CONTAINER_FOLDER, options=("rw", "nosuid", "nodev", "bind"))
        edits = ContainerEdits(
            env=(
                f"CLIQUE_ID={clique or ''}",
                f"COMPUTE_DOMAIN_UUID={domain.uid}",
                f"COMPUTE_DOMAIN_NAME={domain.name}",
                f"COMPUTE_DOMAIN_NAMESPACE={domain.namespace}",
            ),
            device_nodes=(management_node(self._roots),) if clique is not None else (),
            mounts=(mount,),
        )
        return self._write(uid, device, edits), qualified(ALL, NVIDIA.cdi_kind)

    def _write(self, uid: str, device: str, edits: ContainerEdits) -> str:
        name = f"{uid}-{device}"
        self._writer.write(assemble(KIND, {name: edits}, ContainerEdits()), transient=uid)
        return qualified(name, KIND)
