"""A node to be examined: simulated, with a kubelet where a test wants one, and what the examination says of it."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX, socket

import pytest

from node_agent.config.settings import Settings
from node_agent.doctor.examine import examine
from node_agent.doctor.finding import Examination, Finding, Result
from tests.unit.agent.conftest import Place, place

__all__ = ["place"]


@dataclass
class Patient:
    """A node; ``listen`` makes a socket of somebody else."""

    place: Place
    sockets: list[socket]

    @property
    def tree(self) -> Path:
        return self.place.simulated.tree

    async def examined(self, settings: Settings | None = None) -> Examination:
        agent = self.place.folder / "run" / "agent.sock"
        return await examine(settings or self.place.settings(), self.place.simulated.stat, agent)

    async def of(self, check: str, settings: Settings | None = None) -> list[Finding]:
        """What one check says."""
        return [one for one in (await self.examined(settings)).findings if one.check == check]

    async def failure(self, check: str, settings: Settings | None = None) -> Finding:
        """The only thing that a check says, which is a failure with a fix."""
        return only(await self.of(check, settings), Result.FAILED)

    async def warning(self, check: str, settings: Settings | None = None) -> Finding:
        return only(await self.of(check, settings), Result.WARNING)

    def rewritten(self) -> None:
        """Have the simulated node's files follow its state."""
        self.place.simulated.node.write_tree(self.tree)

    def write(self, path: str, text: str) -> Path:
        """A file below the node's root."""
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def listen(self, path: str) -> Path:
        """A socket in the kubelet's folder that somebody else listens on."""
        there = self.place.folder / "kubelet" / path
        there.parent.mkdir(parents=True, exist_ok=True)
        self.sockets.append(socket(AF_UNIX))
        self.sockets[-1].bind(str(there))
        self.sockets[-1].listen()
        return there


def only(found: list[Finding], result: Result) -> Finding:
    """The one finding that there is, of that result; what is no good says what to do."""
    (one,) = found
    assert one.result is result, one
    assert bool(one.fix) is (result in (Result.FAILED, Result.WARNING))
    return one


@pytest.fixture
def patient(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    """A node that is well as far as it goes: no kubelet, no agent, no cluster."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    (place.folder / "cdi").mkdir()
    found = Patient(place=place, sockets=[])
    yield found
    for one in found.sockets:
        with closing(one):
            pass
