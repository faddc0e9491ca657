"""The two ways to bring a device plugin to the kubelet, behind one interface.

``SocketRoute`` calls the kubelet on ``device-plugins/kubelet.sock``; the plugin must notice a restart by that socket.
``WatcherRoute`` announces the plugin in ``plugins_registry``, where the kubelet looks for itself. Both end in the same
code of the kubelet, and in both the plugin has to come again after the kubelet has restarted.
"""

from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

from node_agent.kit.unix import FileIdentity, identity
from node_agent.kubelet.announcement import DEVICE_PLUGIN, Announcement, announced
from node_agent.kubelet.registration import API_VERSION, KUBELET_SOCKET, register


class Route(Protocol):
    """A way to the kubelet."""

    @property
    def folder(self) -> Path:
        """Where the plugin's own socket has to be; it may be missing where it is the agent's own."""
        ...

    @property
    def folders(self) -> Sequence[Path]:
        """All folders in which a plugin leaves sockets when it is killed."""
        ...

    @property
    def watched(self) -> Sequence[Path]:
        """The folders in which it shows that the kubelet is another one, or that a socket is gone."""
        ...

    def kubelet(self) -> Hashable | None:
        """Which kubelet is there, as far as can be seen: another value after a restart, None while there is none."""
        ...

    def registered(self, socket: Path, resource: str) -> AbstractAsyncContextManager[None]:
        """Bring the plugin that is served on ``socket`` to the kubelet; the block starts when the kubelet took it.

        Raises KubeletError where none answers, RegistrationRefused where it said no.
        """
        ...


class SocketRoute:
    """By the registration call; ``folder`` is the kubelet's ``device-plugins``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folders = self.watched = (folder,)

    def kubelet(self) -> FileIdentity | None:
        return identity(self.folder / KUBELET_SOCKET)

    @asynccontextmanager
    async def registered(self, socket: Path, resource: str) -> AsyncIterator[None]:
        await register(self.folder, socket.name, resource)
        yield


class WatcherRoute:
    """By the plugin watcher; ``registry`` is the kubelet's ``plugins_registry``, ``folder`` a folder of the agent's."""

    def __init__(self, registry: Path, folder: Path) -> None:
        self.registry = registry
        self.folder = folder
        self.folders = (folder, registry)
        self._kubelet_socket = registry.parent / "device-plugins" / KUBELET_SOCKET
        self.watched = (*self.folders, self._kubelet_socket.parent)

    def kubelet(self) -> Hashable | None:
        """The registry outlives the kubelet, which at each start makes the socket of the other route anew.

        A kubelet with another root than the default makes that socket elsewhere: there, a restart shows only as the
        end of its stream.
        """
        return identity(self._kubelet_socket) or (self.registry if self.registry.is_dir() else None)

    @asynccontextmanager
    async def registered(self, socket: Path, resource: str) -> AsyncIterator[None]:
        announcement = Announcement(kind=DEVICE_PLUGIN, name=resource, endpoint=socket, versions=[API_VERSION])
        async with announced(self.registry / f"{socket.stem}-reg.sock", announcement):
            yield
