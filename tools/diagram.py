"""Draws the life of a grant as an SVG: who speaks to whom, from top to bottom, once for each front door.

A file beside the documents, so that no page has to load a program to draw it. Its colours are those of light or dark
pages, as the reader has them. A step names the module that does it; a test sees to it that the module is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #222; stroke: #fff; stroke-width: 3; paint-order: stroke }
rect + text { stroke: none } .who { font-weight: 600 } .module { font: 11px monospace; fill: #00695c }
line, path { stroke: #888 } .life { stroke-dasharray: 3 4 } .call { stroke: #00796b; stroke-width: 1.5 }
.head { fill: #00796b } rect { fill: #e0f2f1; stroke: #00796b } .paper { fill: #fff; stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #ddd; stroke: #1e2129 } .module { fill: #80cbc4 } .paper { fill: #1e2129 }
rect { fill: #263238; stroke: #4db6ac } .call { stroke: #4db6ac } .head { fill: #4db6ac } }
"""
LANE, MARGIN, TOP, STEP, BOX = 190, 90, 60, 46, 130


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One says something to another, or does something by itself; ``module`` is where in the agent that is."""

    source: str
    target: str
    what: str
    module: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Life:
    """Who takes part, from left to right, and what happens, in order."""

    title: str
    lanes: tuple[str, ...]
    steps: tuple[Step, ...]


def _step(way: str, what: str, module: str = "") -> Step:
    """``kubelet > front door`` is one who speaks to another, ``ledger`` one who does something by itself."""
    source, _, target = way.partition(" > ")
    return Step(source=source, target=target or source, what=what, module=module)


LIMITS = Life(
    title="A pod with limits",
    lanes=("kubelet", "front door", "ledger", "CDI", "runtime"),
    steps=(
        _step("CDI", "spec of all GPUs on disk", "cdi/publisher.py"),
        _step("front door > kubelet", "register, list the devices", "deviceplugin/plugin.py"),
        _step("kubelet > front door", "GetPreferredAllocation", "topology/preferred.py"),
        _step("kubelet > front door", "Allocate", "deviceplugin/servicer.py"),
        _step("front door > ledger", "take, or refuse with the holder's name", "deviceplugin/holding.py"),
        _step("front door > kubelet", "CDI names", "deviceplugin/answer.py"),
        _step("kubelet > runtime", "start the container with these names"),
        _step("runtime > CDI", "read the spec: nodes, mounts, variables"),
        _step("ledger > kubelet", "pod resources: who still has what", "kubelet/podresources.py"),
        _step("ledger", "give back what no pod has any more", "deviceplugin/holding.py"),
    ),
)
CLAIMS = Life(
    title="A pod with a claim",
    lanes=("scheduler", "API server", "kubelet", "front door", "ledger", "CDI"),
    steps=(
        _step("front door > API server", "ResourceSlices, with taints", "dra/publisher.py"),
        _step("scheduler > API server", "allocate a device to the claim, bind the pod"),
        _step("kubelet > front door", "NodePrepareResources", "dra/servicer.py"),
        _step("front door > API server", "the claim, asked for by its name", "dra/claim_source.py"),
        _step("front door > ledger", "reserve, or refuse with the holder's name", "allocation/prepare.py"),
        _step("front door", "steps, each with its undo: MIG, MPS, time slice", "allocation/steps.py"),
        _step("front door > CDI", "a spec for this claim", "allocation/specs.py"),
        _step("front door > ledger", "commit, on disk", "allocation/record.py"),
        _step("front door > kubelet", "CDI names"),
        _step("front door > API server", "status.devices of the claim", "dra/status_writer.py"),
        _step("kubelet > front door", "NodeUnprepareResources", "dra/servicer.py"),
        _step("front door", "undo the steps, the last first", "allocation/steps.py"),
        _step("front door > CDI", "remove the spec", "allocation/specs.py"),
        _step("front door > ledger", "give back", "allocation/prepare.py"),
    ),
)
LIVES = (LIMITS, CLAIMS)


def grant() -> str:
    """Both lives, one below the other."""
    drawn: list[str] = []
    height = 0
    for life in LIVES:
        drawn += [f'<g transform="translate(0 {height})">', *_drawn(life), "</g>"]
        height += _height(life)
    width = max(2 * MARGIN + LANE * (len(life.lanes) - 1) for life in LIVES)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    about = f"<title>The life of a grant</title><style>{STYLE}</style>"
    return "\n".join([head, about, f'<rect class="paper" width="{width}" height="{height}"/>', *drawn, "</svg>"]) + "\n"


def _height(life: Life) -> int:
    return TOP + 60 + STEP * len(life.steps)


def _drawn(life: Life) -> Iterator[str]:
    yield f'<text class="who" x="20" y="26" font-size="16">{escape(life.title)}</text>'
    for lane in life.lanes:
        x = _place(life.lanes, lane)
        yield f'<line class="life" x1="{x}" y1="{TOP + 10}" x2="{x}" y2="{_height(life) - 20}"/>'
        yield f'<rect x="{x - BOX // 2}" y="{TOP - 20}" width="{BOX}" height="30" rx="5"/>'
        yield f'<text class="who" x="{x}" y="{TOP}" text-anchor="middle">{escape(lane)}</text>'
    for number, step in enumerate(life.steps, start=1):
        yield from _arrow(life.lanes, step, TOP + 14 + STEP * number)


def _arrow(lanes: Sequence[str], step: Step, y: int) -> Iterator[str]:
    start, end = _place(lanes, step.source), _place(lanes, step.target)
    if start == end:
        yield f'<path class="call" fill="none" d="M{start} {y - 6} h22 v12 h-16"/>'
        yield f'<path class="head" stroke="none" d="M{start + 2} {y + 6} l8 -4 v8 z"/>'
        where, anchor = start + 30, "start"
        if start == _place(lanes, lanes[-1]):
            where, anchor = start - 10, "end"
    else:
        back = 8 if start < end else -8
        yield f'<line class="call" x1="{start}" y1="{y}" x2="{end - back}" y2="{y}"/>'
        yield f'<path class="head" stroke="none" d="M{end} {y} l{-back} -4 v8 z"/>'
        where, anchor = (start + end) // 2, "middle"
    yield f'<text x="{where}" y="{y - 7}" text-anchor="{anchor}">{escape(step.what)}</text>'
    yield f'<text class="module" x="{where}" y="{y + 14}" text-anchor="{anchor}">{escape(step.module)}</text>'


def _place(lanes: Sequence[str], lane: str) -> int:
    return MARGIN + LANE * lanes.index(lane)
