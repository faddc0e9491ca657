"""``node-agent health`` against a live server, and against none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node_agent.cli.health import age
from node_agent.kit.http import Request, Response, Routes, serving
from node_agent.model.health import Cause, Instance, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.reporting.server import StatusServer
from node_agent.reporting.status import Status
from tests.fakes.builders import uuid
from tests.fakes.health import NOT_PROBED, Ward, remap, xid
from tests.unit.cli.beside import beside
from tests.unit.cli.conftest import Run

STATUS = Status(version="1", node="n0", started=0.0)


@pytest.fixture
def ward() -> Ward:
    return Ward(3)


@pytest.fixture
def socket(folder: Path) -> Path:
    return folder / "agent.sock"


@pytest.fixture
def agent(socket: Path, ward: Ward) -> Iterator[Ward]:
    """The agent's socket, behind which is the ward."""
    with answering(socket, StatusServer(lambda: STATUS, ward.view, socket, clear=ward.clear).routes):
        yield ward


@contextmanager
def answering(socket: Path, routes: Routes) -> Iterator[None]:
    with beside(lambda: serving(routes, socket)):
        yield


# For people


def test_nothing_wrong_is_one_line(run: Run, socket: Path, agent: Ward) -> None:
    outcome = run("health", "--socket", socket)
    assert (outcome.code, outcome.lines) == (0, ["3 of 3 GPUs are healthy"])


def test_a_cause_that_only_tells_leaves_the_gpu_healthy(run: Run, socket: Path, agent: Ward) -> None:
    agent.ail(1, xid(13, Severity.NONE))
    lines = run("health", "--socket", socket).lines
    assert lines[0] == f"gpu-1 {uuid(1)} healthy"
    assert lines[-1] == "3 of 3 GPUs are healthy"


def test_each_cause_is_told_with_its_time_and_what_clears_it(run: Run, socket: Path, agent: Ward) -> None:
    agent.ail(1, xid(79), remap())
    outcome = run("health", "--socket", socket)
    assert outcome.lines[0] == f"gpu-1 {uuid(1)} withdrawn"
    assert outcome.lines[1].startswith("  xid 79: withdrawn since 1970-01-01 00:16:40 UTC (")
    assert outcome.lines[2:4] == ["    Xid 79", "    back when the driver asks for no recovery"]
    assert outcome.lines[4].startswith("  reset-needed: degraded since 1970-01-01 00:33:20 UTC (")
    assert outcome.lines[5:] == ["    a row waits", "2 of 3 GPUs are healthy"]


def test_how_far_a_cause_reaches_is_told(run: Run, socket: Path, agent: Ward) -> None:
    part = Cause(reason=Reason.ECC, severity=Severity.WITHDRAWN, message="m", since=1, instance=Instance(id=3))
    link = Cause(reason=Reason.NVLINK, severity=Severity.WITHDRAWN, message="m", since=1, peers=frozenset({uuid(2)}))
    agent.ail(0, part, link)
    out = run("health", "--socket", socket).out
    assert ", MIG instance 3 only\n" in out
    assert f", links to {uuid(2)} only\n" in out


def test_xids_are_counted_also_where_nothing_is_wrong(run: Run, socket: Path, agent: Ward) -> None:
    agent.counts = {(uuid(2), 13): 4, (uuid(2), 79): 1}
    assert run("health", "--socket", socket).lines == [
        "3 of 3 GPUs are healthy",
        "  gpu-2 has seen Xid 13 (4 ×), 79 (1 ×)",
    ]


def test_a_gpu_that_has_gone_is_told_as_gone(run: Run, socket: Path, agent: Ward) -> None:
    agent.ail(2, NOT_PROBED)
    agent.take(2)
    lines = run("health", "--socket", socket).lines
    assert lines[0] == f"gpu-2 {uuid(2)} withdrawn; the driver does not list it any more"
    assert lines[-1] == "2 of 3 GPUs are healthy"


def test_a_driver_that_cannot_be_asked_is_told(run: Run, socket: Path, agent: Ward) -> None:
    agent.inventory.set(Inventory(generation=2, problem="the driver is [not] loaded"))
    assert run("health", "--socket", socket).lines == ["nothing is known of the GPUs: the driver is [not] loaded"]


def test_a_gpu_that_cannot_be_read_is_told_and_counted(run: Run, socket: Path, agent: Ward) -> None:
    missing = MissingGpu(index=1, reason="[lost]")
    agent.inventory.set(Inventory(generation=2, missing=(missing,)))
    lines = run("health", "--socket", socket).lines
    assert lines == ["missing index 1 : [lost]", "0 of 1 GPUs are healthy"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (0.4, "just now"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (7300, "2 h ago"),
        (200000, "2 d ago"),
    ],
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, text: str) -> None:
    assert age(seconds) == text


# For programs


def test_the_document_is_told_as_json(run: Run, socket: Path, agent: Ward) -> None:
    agent.ail(0, xid(48))
    document = json.loads(run("health", "--socket", socket, "-o", "json").out)
    assert [gpu["health"] for gpu in document["gpus"]] == ["withdrawn", "healthy", "healthy"]
    assert document["gpus"][0]["causes"][0]["code"] == 48


def lines_route(*documents: bytes) -> Routes:
    async def route(request: Request) -> Response:
        assert request.query == "watch=1"
        return Response(body=b"".join(documents))

    return {"/health": route}


FIRST = b'{"node":"n0","gpus":[{"name":"gpu-0","uuid":"GPU-0","health":"healthy"}]}\n'
SECOND = b'{"node":"n0","trouble":"no driver"}\n'


def test_watching_tells_each_change_once_until_the_agent_ends(run: Run, socket: Path) -> None:
    with answering(socket, lines_route(FIRST, FIRST, SECOND)):
        outcome = run("health", "--socket", socket, "--watch")
    assert outcome.lines == ["1 of 1 GPUs are healthy", "nothing is known of the GPUs: no driver"]
    assert (outcome.code, outcome.err) == (1, f"node-agent: the agent on {socket} has ended\n")


def test_watching_as_json_passes_every_line_on(run: Run, socket: Path) -> None:
    with answering(socket, lines_route(FIRST, FIRST, SECOND)):
        outcome = run("health", "--socket", socket, "--watch", "--output", "json")
    assert outcome.out.encode() == FIRST + FIRST + SECOND


# Clearing


def test_what_was_cleared_is_told_and_what_happens_if_it_is_still_there(run: Run, socket: Path, agent: Ward) -> None:
    agent.ail(1, xid(79), remap())
    outcome = run("health", "clear", "gpu-1", "--socket", socket)
    assert outcome.code == 0
    assert outcome.lines == [
        "cleared xid 79 of gpu-1: Xid 79",
        "cleared reset-needed of gpu-1: a row waits",
        "If it is still there, the next probe opens it again.",
    ]
    assert not agent.view.document.gpus[1].causes


def test_only_what_was_named_is_cleared(run: Run, socket: Path, agent: Ward) -> None:
    agent.ail(1, xid(79), xid(48), remap())
    run("health", "clear", uuid(1), "--xid", "48", "--socket", socket)
    run("health", "clear", "gpu-1", "--cause", "reset-needed", "--socket", socket)
    assert [cause.code for cause in agent.view.document.gpus[1].causes] == [79]


def test_clearing_what_is_not_open_says_so(run: Run, socket: Path, agent: Ward) -> None:
    outcome = run("health", "clear", "gpu-1", "--cause", "ecc", "--socket", socket)
    assert (outcome.code, outcome.lines) == (0, ["gpu-1 has no such open cause; nothing was changed"])


def test_a_gpu_that_is_not_there_is_answered_with_the_nearest(run: Run, socket: Path, agent: Ward) -> None:
    outcome = run("health", "clear", "gpu1", "--socket", socket)
    assert outcome.code == 1
    assert outcome.err == "node-agent: no GPU is called 'gpu1' here; did you mean gpu-1 or gpu-2?\n"


def test_a_reason_that_there_is_not_is_refused_with_all_that_there_are(run: Run, socket: Path) -> None:
    outcome = run("health", "clear", "gpu-1", "--cause", "eec", "--socket", socket)
    assert outcome.code == 2
    assert "'ecc'" in outcome.err


@pytest.mark.parametrize("words", [(), ("--watch",), ("clear", "gpu-0")])
def test_without_an_agent_it_says_where_it_looked(run: Run, socket: Path, words: tuple[str, ...]) -> None:
    outcome = run("health", *words, "--socket", socket)
    assert outcome.code == 1
    assert outcome.err.startswith(f"node-agent: no agent answers on {socket}: ")
