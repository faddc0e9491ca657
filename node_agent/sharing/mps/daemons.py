"""All MPS daemons of the node: who comes joins the one of its devices, and the last one who leaves ends it.

They outlive the agent: a new one takes them up with all their clients, by what ``records`` has kept.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

from node_agent.errors import MpsError
from node_agent.kit.latest import Latest, changes
from node_agent.kit.tasks import running
from node_agent.sharing.mps.daemon import Daemon, Host, Phase, State
from node_agent.sharing.mps.plan import ClientEdits, Wanted, client_edits, daemon_key
from node_agent.sharing.mps.records import Record


class MpsDaemons:
    """A service; ``states`` tells how the daemons fare, by their keys. ``join`` and ``leave`` wait until it runs."""

    def __init__(self, host: Host) -> None:
        self.states: Latest[Mapping[str, State]] = Latest({})
        self._host = host
        self._daemons: dict[str, Daemon] = {}
        self._group: Latest[asyncio.TaskGroup | None] = Latest(None)

    async def run(self) -> None:
        """Take up the daemons that there are, and keep them until cancelled: they go on without the agent."""
        known = await self._host.lane.run("read the records of MPS daemons", self._host.records.all)
        try:
            async with asyncio.TaskGroup() as group:
                self._group.set(group)
                for key in known:
                    self._tended(key, group)
                await asyncio.Event().wait()
        finally:
            self._group.set(None)
            self._daemons.clear()

    async def join(self, user: str, wanted: Wanted) -> ClientEdits:
        """Make somebody a user of the daemon of these devices, and wait until it answers.

        Joining again changes the limits. Who gives up, or gets an error, leaves.

        Raises:
            MpsImpossible: another daemon has one of the devices, or this one is run in another way.
            MpsError: the daemon does not come up.
            StateError: it cannot be written down.
        """
        group = await self._running()
        join = partial(self._host.records.join, user, wanted, own_shm=self._host.own_shm)
        record = await self._host.lane.run("join an MPS daemon", join)
        daemon = self._tended(daemon_key(wanted.devices), group)
        if await daemon.settled() is not Phase.READY:
            raise MpsError(f"{user} left the MPS daemon of {', '.join(wanted.devices)} while it was about to join")
        return self._edits(record, wanted)

    async def leave(self, user: str) -> None:
        """Make somebody no user of any daemon, and wait for the end of one that has none left; raises as ``join``.

        One who is unknown, or has left, has nothing to leave.
        """
        group = await self._running()
        for key in await self._host.lane.run("leave an MPS daemon", partial(self._host.records.leave, user)):
            daemon = self._tended(key, group)
            if await daemon.settled() is Phase.GONE:
                self._drop(daemon)

    async def users(self) -> frozenset[str]:
        """Everybody who uses a daemon."""
        known = await self._host.lane.run("read the records of MPS daemons", self._host.records.all)
        return frozenset(user for record in known.values() for user in record.users)

    def _edits(self, record: Record, wanted: Wanted) -> ClientEdits:
        folders = self._host.folders(daemon_key(record.devices), record)
        return client_edits(record.devices, folders, wanted.limits)

    async def _running(self) -> asyncio.TaskGroup:
        async for group in self._group.watch():
            if group is not None:
                return group
        raise AssertionError("a watch does not end by itself")

    def _tended(self, key: str, group: asyncio.TaskGroup) -> Daemon:
        daemon = self._daemons.get(key)
        if daemon is None or daemon.state.value.phase is Phase.GONE:
            daemon = self._daemons[key] = Daemon(key, self._host)
            group.create_task(self._tend(daemon), name=f"MPS daemon {key}")
        return daemon

    async def _tend(self, daemon: Daemon) -> None:
        async with running(self._follow(daemon)):
            await daemon.run()
        self._drop(daemon)

    def _drop(self, daemon: Daemon) -> None:
        if self._daemons.get(daemon.key) is daemon:
            del self._daemons[daemon.key]
            self.states.set({key: state for key, state in self.states.value.items() if key != daemon.key})

    async def _follow(self, daemon: Daemon) -> None:
        async for _ in changes(daemon.state):
            self.states.set({**self.states.value, daemon.key: daemon.state.value})
