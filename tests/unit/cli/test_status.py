"""``node-agent status`` against a live status server, and against none."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from node_agent.kit.http import Request, Response, serving
from node_agent.reporting.health import CauseStatus, MissingStatus
from node_agent.reporting.parts import CdiStatus, ClaimsStatus, PartState, PartStatus, ResourceStatus, ServiceStatus
from node_agent.reporting.server import StatusServer
from node_agent.reporting.status import ConfigStatus, GpuStatus, Status
from tests.fakes.health import Ward
from tests.unit.cli.beside import beside
from tests.unit.cli.conftest import Run

SICK = GpuStatus(
    name="gpu-1",
    uuid="GPU-1",
    product="NVIDIA TITAN X [/Pascal]",
    pci="0000:ab:00.0",
    health="withdrawn",
    causes=(CauseStatus(reason="xid", severity="withdrawn", message="Xid 79 [red]", since=1.0, code=79),),
)
SOUND = GpuStatus(
    name="gpu-0",
    uuid="GPU-0",
    product="NVIDIA H200",
    pci="0000:1b:00.0",
    health="healthy",
    memory=143771 << 20,
    numa_node=1,
)
RESOURCE = ResourceStatus(
    name="nvidia.com/gpu",
    phase="registered",
    detail="gpu-1.sock",
    registrations=3,
    devices=2,
    healthy=1,
    withheld=("GPU-0: waits until pods have given back nvidia.com/gpu/GPU-0::3",),
)
READY = Status(
    version="1.2.3",
    node="node-a",
    started=0.0,
    generation=4,
    driver="580.95.05",
    cuda="13.0",
    gpus=(SOUND, SICK),
    missing=(MissingStatus(index=2, reason="fell off [the bus]", uuid="GPU-2"),),
    resources=(RESOURCE,),
    cdi=CdiStatus(path="/var/run/cdi/a.json", kind="node-agent.gpu.nvidia.com/gpu", devices=2),
    services=(ServiceStatus(name="inventory", condition="running"),),
    notices=("sharing: 'GPU-typo' means no GPU",),
)
CONFIGURED = msgspec.structs.replace(
    READY,
    config=ConfigStatus(
        source="/configs/shared, chosen by label a=b",
        generation=3,
        since=1.0,
        trouble="version: expected v1 [x]",
        refused=1,
        waits=("nvidia.com/gpu: GPU-0",),
        after_restart=("agent.nodeName", "agent.paths"),
    ),
)
TROUBLED = msgspec.structs.replace(READY, trouble=("the driver hangs in nvmlInit for 7 s",))


@contextmanager
def at_work(path: Path, status: Status) -> Iterator[Path]:
    """An agent's socket that tells this status."""
    with beside(lambda: serving(StatusServer(lambda: status, Ward().view, path).routes, path)):
        yield path


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "agent.sock"


# For people


def test_a_ready_agent_is_shown_with_its_gpus_resources_and_spec(run: Run, path: Path) -> None:
    with at_work(path, READY):
        outcome = run("status", "--socket", path)
    assert outcome.code == 0
    assert outcome.lines[0] == "node-a  node-agent 1.2.3, driver 580.95.05, CUDA 13.0"
    assert "nvidia.com/gpu 1 of 2 healthy, registered (gpu-1.sock, 3 registrations)" in outcome.lines
    assert "  withheld GPU-0: waits until pods have given back nvidia.com/gpu/GPU-0::3" in outcome.lines
    assert "node-agent.gpu.nvidia.com/gpu in /var/run/cdi/a.json: 2 GPUs" in outcome.lines
    assert outcome.lines[-2:] == ["notice sharing: 'GPU-typo' means no GPU", "ready"]


def test_each_gpu_has_a_line_and_what_it_does_not_tell_is_marked(run: Run, path: Path) -> None:
    with at_work(path, READY):
        rows = {line.split()[0]: line.split() for line in run("status", "--socket", path).lines if "gpu-" in line[:5]}
    assert rows["gpu-0"] == ["gpu-0", "NVIDIA", "H200", "0000:1b:00.0", "1", "140", "GiB", "healthy", "GPU-0"]
    assert rows["gpu-1"][6:8] == ["-", "?"]


def test_brackets_and_colons_of_others_are_printed_as_they_are(run: Run, path: Path) -> None:
    with at_work(path, READY):
        out = run("status", "--socket", path).out
    for text in ("NVIDIA TITAN X [/Pascal]", "0000:ab:00.0", "Xid 79 [red]", "index 2 GPU-2: fell off [the bus]"):
        assert text in out


def test_claims_and_what_does_less_than_it_should_are_shown_and_the_agent_is_ready(run: Run, path: Path) -> None:
    claims = ClaimsStatus(driver="gpu.nvidia.com", phase="registered", registrations=2, slices=3, devices=8)
    parts = (
        PartStatus(name="mps", state=PartState.DEGRADED, reason="DaemonsNotServing", messages=("gpu-1: it [died]",)),
        PartStatus(name="devices", state=PartState.DEGRADED, reason="SomeOutOfService", messages=("gpu-1 is out",)),
    )
    with at_work(path, msgspec.structs.replace(READY, claims=claims, parts=parts)):
        lines = run("status", "--socket", path).lines
    assert "gpu.nvidia.com 8 devices in 3 slices, registered (2 registrations)" in lines
    assert lines[-2:] == ["mps gpu-1: it [died]", "ready"]
    assert "gpu-1 is out" not in "".join(lines)


def test_an_agent_in_trouble_is_shown_with_every_reason(run: Run, path: Path) -> None:
    with at_work(path, TROUBLED):
        outcome = run("status", "--socket", path)
    assert outcome.code == 0
    assert outcome.lines[-1] == "not ready the driver hangs in nvmlInit for 7 s"


def test_what_is_not_in_force_of_a_configuration_is_shown_and_the_agent_is_ready(run: Run, path: Path) -> None:
    with at_work(path, CONFIGURED):
        lines = run("status", "--socket", path).lines
    assert lines[-6:] == [
        "configuration /configs/shared, chosen by label a=b, number 3 since the start",
        "refused, the one before stays in force version: expected v1 [x]",
        "waits for the pod that holds it nvidia.com/gpu: GPU-0",
        "in force after a restart of the agent agent.nodeName, agent.paths",
        *lines[-2:],
    ]


def test_an_agent_that_knows_nothing_yet_is_shown_too(run: Run, path: Path) -> None:
    waiting = ResourceStatus(name="r/gpu", phase="waiting", detail="", registrations=0, devices=0, healthy=0)
    with at_work(path, Status(version="1", node="n", started=0.0, resources=(waiting,))):
        outcome = run("status", "--socket", path)
    assert outcome.lines[0] == "n  node-agent 1, driver ?"
    assert "r/gpu 0 of 0 healthy, waiting (0 registrations)" in outcome.lines


def test_the_socket_may_be_named_by_a_variable(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_AGENT_SOCKET", str(path))
    with at_work(path, READY):
        assert run("status").code == 0


# For machines


@pytest.mark.parametrize("words", [["--json"], ["-o", "json"]])
def test_json_is_the_whole_document(run: Run, path: Path, words: list[str]) -> None:
    with at_work(path, TROUBLED):
        outcome = run("status", *words, "--socket", path)
    assert msgspec.json.decode(outcome.out, type=Status) == TROUBLED
    assert len(outcome.lines) > 10


@pytest.mark.parametrize("words", [["--check"], ["--check", "ready"], ["--check=ready"], ["--check", "live"]])
def test_a_probe_of_a_ready_agent_passes_without_a_word(run: Run, path: Path, words: list[str]) -> None:
    with at_work(path, READY):
        outcome = run("status", *words, "--socket", path)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


@pytest.mark.parametrize("words", [["--check"], ["--check", "ready"]])
def test_a_readiness_probe_of_an_agent_in_trouble_fails_and_says_why(run: Run, path: Path, words: list[str]) -> None:
    with at_work(path, TROUBLED):
        outcome = run("status", *words, "--socket", path)
    assert (outcome.code, outcome.out) == (1, "")
    assert "the driver hangs in nvmlInit for 7 s" in outcome.err


def test_a_liveness_probe_of_an_agent_in_trouble_passes(run: Run, path: Path) -> None:
    with at_work(path, TROUBLED):
        assert run("status", "--check", "live", "--socket", path).code == 0


def test_another_kind_of_probe_is_refused(run: Run, path: Path) -> None:
    assert run("status", "--check", "healthy", "--socket", path).code == 2


# Without an agent


@pytest.mark.parametrize("words", [[], ["--json"], ["--check"], ["--check", "live"]])
def test_without_an_agent_one_line_names_the_socket_and_what_to_look_at(run: Run, path: Path, words: list[str]) -> None:
    outcome = run("status", *words, "--socket", path)
    assert (outcome.code, outcome.out) == (1, "")
    (line,) = outcome.err.splitlines()
    assert f"no agent answers on {path}" in line
    assert "is `node-agent run` up, or is --socket another?" in line


def test_a_socket_that_nobody_listens_on_any_more_counts_as_no_agent(run: Run, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    outcome = run("status", "--socket", path)
    assert outcome.code == 1
    assert "no agent answers" in outcome.err


def test_a_path_too_long_for_a_socket_is_said_to_have_no_agent(run: Run, folder: Path) -> None:
    outcome = run("status", "--socket", folder / ("x" * 120))
    assert outcome.code == 1
    assert "no agent answers" in outcome.err


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Response(status=500, body=b"this failed"), "the agent answers 500 on /status: this failed"),
        (Response(body=b'{"version": 3}'), "is of another version"),
        (Response(body=b"hello"), "is of another version"),
    ],
)
def test_an_answer_that_is_no_status_is_said_to_be_none(run: Run, path: Path, answer: Response, complaint: str) -> None:
    async def odd(_: Request) -> Response:
        return answer

    with beside(lambda: serving({"/status": odd}, path)):
        outcome = run("status", "--socket", path)
    assert outcome.code == 1
    assert complaint in outcome.err
