"""``mig plan``: what a layout or a request takes, on simulated nodes."""

from pathlib import Path

import msgspec
import pytest

from node_agent.kit.http import Request, Response, serving
from node_agent.reporting.overview import HoldingStatus, Overview
from tests.unit.cli.beside import beside
from tests.unit.cli.conftest import Run

LAYOUTS = """
version: v1
mig-configs:
  half:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.18gb": 2, "2g.35gb": 1, "3g.71gb": 1}
    - devices: [1]
      mig-enabled: false
  divided:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1c.3g.71gb": 3}
  too-much:
    - devices: [0, 1]
      mig-enabled: true
      mig-devices: {"4g.71gb": 1, "2g.35gb": 2}
"""


@pytest.fixture
def layouts(folder: Path) -> Path:
    file = folder / "layouts.yaml"
    file.write_text(LAYOUTS)
    return file


BUSES = ("1b", "43", "52")


def node_of(folder: Path, *gpus: str | None) -> Path:
    """A node of H200s, each cut as listed: ``3g.71gb@0 1g.18gb@4``; None has MIG off."""
    lines = ["summary: some H200s", "driver: {version: 570.133.20, cuda: '12.8'}", "numa: {0: 0-7}", "gpus:"]
    for number, (bus, pieces) in enumerate(zip(BUSES, gpus, strict=False)):
        mig = "" if pieces is None else f", mig: [{', '.join(pieces.split())}]"
        lines.append(f"  - {{board: h200-sxm, bus: '0000:{bus}:00.0', minor: {number}, numa: 0{mig}}}")
    file = folder / "node.yaml"
    file.write_text("\n".join(lines))
    return file


def test_a_named_layout_of_a_file_is_planned_gpu_by_gpu(run: Run, folder: Path, layouts: Path) -> None:
    node = node_of(folder, None, None, None)
    outcome = run("mig", "plan", "--simulate", node, "--mig-configs", layouts, "--name", "half")
    assert outcome.code == 0
    assert outcome.lines == [
        "gpu-0 (index 0)  NVIDIA H200  MIG disabled",
        "  1. turn MIG on",
        "  2. make 2g.35gb at 0",
        "  3. make 1g.18gb at 2",
        "  4. make 1g.18gb at 3",
        "  5. make 3g.71gb at 4",
        "gpu-1 (index 1)  NVIDIA H200  MIG disabled",
        "  is as wanted",
        "gpu-2 (index 2)  NVIDIA H200  MIG disabled",
        "  is left as it is",
    ]


def test_without_a_file_there_are_the_usual_layouts(run: Run) -> None:
    outcome = run("mig", "plan", "--simulate", "a30-2", "--name", "all-1g.6gb")
    assert outcome.code == 0
    assert outcome.lines[-5:] == [
        "gpu-1 (index 1)  NVIDIA A30  MIG enabled: 1g.6gb at 0, 1g.6gb at 1, 2g.12gb at 2",
        "  1. remove 2g.12gb at 2",
        "  2. make 1g.6gb at 2",
        "  3. make 1g.6gb at 3",
        "  stays: 1g.6gb at 0, 1g.6gb at 1",
    ]
    assert "  the mode may stay pending until the GPU is reset" in outcome.lines


def test_gpus_of_a_layout_are_meant_by_their_index_which_is_not_their_name(run: Run, layouts: Path) -> None:
    outcome = run("mig", "plan", "--simulate", "h200-8", "--mig-configs", layouts, "--name", "half")
    assert outcome.lines[:2] == ["gpu-2 (index 0)  NVIDIA H200  MIG disabled", "  1. turn MIG on"]


def test_what_is_in_use_is_kept_where_it_can_be(run: Run, folder: Path, layouts: Path) -> None:
    node = node_of(folder, "1g.18gb@0 1g.18gb@1 2g.35gb@4")
    words = ["--mig-configs", layouts, "--name", "half", "--in-use", "gpu-0:0"]
    outcome = run("mig", "plan", "--simulate", node, *words)
    assert outcome.lines[1:] == [
        "  1. remove 2g.35gb at 4",
        "  2. make 2g.35gb at 2",
        "  3. make 3g.71gb at 4",
        "  stays: 1g.18gb at 0, 1g.18gb at 1",
    ]


def test_what_is_in_use_and_has_to_go_is_waited_for(run: Run, folder: Path) -> None:
    node = node_of(folder, "3g.71gb@0 1g.18gb@4 1g.18gb@5")
    words = ["--in-use", "gpu-0:0", "--in-use", "gpu-0:5"]
    outcome = run("mig", "plan", "--simulate", node, *words, "--name", "all-disabled")
    assert outcome.lines[0].endswith("3g.71gb at 0 (in use), 1g.18gb at 4, 1g.18gb at 5 (in use)")
    assert outcome.lines[4:] == ["  4. turn MIG off", "  waits for: 3g.71gb at 0, 1g.18gb at 5, in use"]


def test_a_gpu_in_use_as_a_whole_is_waited_for(run: Run, folder: Path) -> None:
    outcome = run("mig", "plan", "--simulate", node_of(folder, None), "--name", "all-enabled", "--in-use", "gpu-0")
    assert outcome.lines == [
        "gpu-0 (index 0)  NVIDIA H200  MIG disabled (in use)",
        "  1. turn MIG on",
        "  waits for: the GPU, in use as a whole",
    ]


def test_an_instance_is_planned_with_its_compute_instances(run: Run, folder: Path, layouts: Path) -> None:
    node = node_of(folder, None)
    outcome = run("mig", "plan", "--simulate", node, "--mig-configs", layouts, "--name", "divided")
    assert outcome.lines[2].startswith("  2. make 3g.71gb at ")
    assert outcome.lines[2].endswith(" (1c + 1c + 1c)")


def test_a_layout_that_does_not_fit_is_refused_for_each_gpu_and_the_rest_is_planned(
    run: Run, folder: Path, layouts: Path
) -> None:
    node = node_of(folder, None, None, None)
    outcome = run("mig", "plan", "--simulate", node, "--mig-configs", layouts, "--name", "too-much")
    refused = "  refused: 1 × 4g.71gb, 2 × 2g.35gb take 8 compute slices, and the GPU has 7"
    assert (outcome.code, outcome.lines.count(refused)) == (1, 2)
    assert outcome.lines[-1] == "  is left as it is"


def test_gpus_without_mig_can_only_be_left_without_it(run: Run) -> None:
    outcome = run("mig", "plan", "--simulate", "l4-2", "--name", "all-disabled")
    assert (outcome.code, outcome.lines[:2]) == (0, ["gpu-0 (index 0)  NVIDIA L4  no MIG", "  is as wanted"])


def test_a_request_is_let_in_by_merging_what_is_idle(run: Run, folder: Path) -> None:
    node = node_of(folder, "1g.18gb@0 1g.18gb@4")
    outcome = run("mig", "plan", "--simulate", node, "--want", "3g.71gb", "--in-use", "gpu-0:0")
    assert (outcome.code, outcome.lines[1]) == (0, "3g.71gb fits once what is idle gives way: gpu-0 at 4")
    assert outcome.lines[2] == "  1. remove 1g.18gb at 4"
    assert outcome.lines[-1].startswith("  moves: 1g.18gb at 4 to ")


def test_a_request_that_cannot_be_let_in_is_told_why(run: Run, folder: Path) -> None:
    node = node_of(folder, "1g.18gb@0 1g.18gb@4")
    outcome = run("mig", "plan", "--simulate", node, "--want", "7g.141gb", "--want", "gpu", "--in-use", "gpu-0:4")
    assert outcome.code == 1
    assert outcome.lines[1:] == [
        "7g.141gb does not fit",
        "  gpu-0: there is 1g.18gb at 4, in use",
        "gpu does not fit",
        "  gpu-0: 1g.18gb at 4 is in use",
    ]


def test_the_whole_gpu_costs_what_lies_on_it(run: Run, folder: Path) -> None:
    outcome = run("mig", "plan", "--simulate", node_of(folder, "3g.71gb@4"), "--want", "gpu")
    assert outcome.lines[1:] == [
        "gpu fits once the GPU changes its mode: gpu-0",
        "  1. remove 3g.71gb at 4",
        "  2. turn MIG off",
        "  loses: 3g.71gb at 4",
    ]


@pytest.mark.parametrize("words", [[], ["--name", "all-disabled", "--want", "gpu"]])
def test_a_plan_is_for_a_layout_or_for_what_waits(run: Run, words: list[str]) -> None:
    outcome = run("mig", "plan", "--simulate", "h200-8", *words)
    assert outcome.code == 2
    assert "give --name for a layout, or --want for something that waits" in outcome.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--name", "all-3g"], "no MIG layout is named 'all-3g'; there is all-3g.71gb"),
        (["--want", "gpu", "--in-use", "gpu-0:3"], "--in-use: nothing lies on gpu-0 at 3"),
        (["--want", "gpu", "--in-use", "gpu-9:3"], "--in-use: no GPU is called gpu-9; there is gpu-2, gpu-3"),
    ],
)
def test_a_mistake_is_one_clear_line(run: Run, words: list[str], complaint: str) -> None:
    outcome = run("mig", "plan", "--simulate", "h200-8", *words)
    assert (outcome.code, outcome.out) == (1, "")
    assert complaint in outcome.err


def test_a_mistake_in_the_file_is_told_with_the_file(run: Run, layouts: Path) -> None:
    layouts.write_text("version: v1\nmig-configs: {a: [{devices: all}]}\n")
    outcome = run("mig", "plan", "--simulate", "h200-8", "--mig-configs", layouts, "--name", "a")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"node-agent: {layouts}: mig-configs.a[0].mig-enabled: is missing; expected true or false\n"


def test_what_the_running_agent_has_given_out_is_in_use(run: Run, folder: Path, layouts: Path) -> None:
    node = node_of(folder, "3g.71gb@0 3g.71gb@4", None)
    found = Overview(
        node="node-a",
        holdings=(
            HoldingStatus(door="claim", holder="team/job", device="x", gpus=("gpu-0",), part="3g.71gb at 4"),
            HoldingStatus(door="layout", holder="half", device="y", gpus=("gpu-0",), part="3g.71gb at 0"),
            HoldingStatus(door="limit", holder="nvidia.com/gpu", device="z", gpus=("gpu-1",)),
        ),
    )

    async def answer(request: Request) -> Response:
        return Response(content_type="application/json", body=msgspec.json.encode(found))

    command = ("mig", "plan", "--simulate", node, "--mig-configs", layouts, "--name", "too-much")
    with beside(lambda: serving({"/overview": answer}, folder / "s")):
        outcome = run(*command, "--socket", folder / "s")
    assert outcome.lines[0] == ("gpu-0 (index 0)  NVIDIA H200  MIG enabled: 3g.71gb at 0, 3g.71gb at 4 (in use)")
    assert "gpu-1 (index 1)  NVIDIA H200  MIG disabled (in use)" in outcome.lines
    assert "(in use)" not in run(*command).out, "a simulated node is no agent's"


def test_without_an_agent_the_plan_goes_by_what_processes_run_on(run: Run, folder: Path) -> None:
    node = node_of(folder, None)
    outcome = run("mig", "plan", "--simulate", node, "--name", "all-1g.18gb", "--socket", folder / "none")
    assert outcome.code == 0
