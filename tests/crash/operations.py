"""What is done on the node while the agent is killed: each operation with what comes before it and what undoes it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from node_agent.allocation.grants import Door
from node_agent.wire import dra_v1_pb2 as v1
from tests.crash.invariants import read_books
from tests.crash.site import Document, Site
from tests.fakes.names import GPU_RESOURCE

Act = Callable[[Site], Awaitable[None]]

MPS = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}},
}

CUT, SHARED = "gpu-2", "gpu-1"

PLAIN: Document = {
    "version": "v1",
    "agent": {"mig": {"onDemand": [CUT]}, "devices": {"shareable": [SHARED]}},
}


async def nothing(here: Site) -> None:
    """No step."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """``act`` is what the agent is killed in. ``before`` comes before it; ``after`` brings the node back.

    Each is repeated as its author would, kubelet or operator, until it is done: all bear that.
    """

    name: str
    act: Act
    before: Act = nothing
    after: Act = nothing


def claim(here: Site, name: str, *devices: str, parameters: Any = None) -> v1.Claim:
    """The claim of that name, allocated at its first mention."""
    if name not in here.claims:
        share = "7d1a2b3c-0000-4000-8000-000000000001" if parameters else None
        here.claims[name] = here.cluster.allocate(name, *devices, share=share, parameters=parameters)
    return here.claims[name]


def prepares(name: str, *devices: str, parameters: Any = None) -> Act:
    """A claim of which a pod has a GPU is left alone: the scheduler would not allocate it."""

    async def act(here: Site) -> None:
        if here.of_pods() & {here.gpu_of(device) for device in devices}:
            return
        await here.prepare(claim(here, name, *devices, parameters=parameters))

    return act


def unprepares(name: str) -> Act:
    async def act(here: Site) -> None:
        if name in here.claims:
            await here.unprepare(here.claims[name])

    return act


def admits(pod: str) -> Act:
    async def act(here: Site) -> None:
        if pod not in here.place.kubelet.held:
            await here.admit(pod, GPU_RESOURCE, 1)

    return act


def releases(pod: str) -> Act:
    async def act(here: Site) -> None:
        if pod in here.place.kubelet.held:
            here.place.kubelet.release(pod)

    return act


def together(*acts: Act) -> Act:
    async def act(here: Site) -> None:
        for one in acts:
            await one(here)

    return act


GPUS, PIECE, CLIENT = ("gpu-4", "gpu-5"), f"{CUT}-mig-3g-71gb-4", SHARED
WHOLE = prepares("whole", *GPUS), unprepares("whole")
CUTTING = prepares("cut", PIECE), unprepares("cut")
SHARING = prepares("share", CLIENT, parameters=MPS), unprepares("share")
POD = admits("pod"), releases("pod")


def reloads(document: Document, done: Callable[[Site], object], *out: int) -> Act:
    """Give the agent another configuration, and wait until it shows. GPUs in ``out`` are at neither door as a whole."""

    async def act(here: Site) -> None:
        here.out = {here.place.uuid(number) for number in out}
        here.configure(document)
        await here.comes(lambda: done(here))

    return act


def resources(**allocatable: int) -> Callable[[Site], bool]:
    """Whether the kubelet has so many devices of these resources of nvidia.com, and none of others."""

    def done(here: Site) -> bool:
        # Of a plugin that was killed the kubelet keeps the list for minutes, and gives none of it out.
        found = {name.partition("/")[2]: view.allocatable for name, view in here.place.kubelet.resources.value.items()}
        return {name: count for name, count in found.items() if count} == allocatable

    return done


def agent_with(**section: Any) -> Document:
    return {"version": "v1", "agent": {**PLAIN["agent"], **section}}


def lying(here: Site, gpu: int) -> int | None:
    """How many instances lie on a GPU; None with MIG off."""
    found = here.hardware.faults.gpu(gpu)
    return len(found.mig.instances) if found.mig is not None and found.mig_enabled else None


def being_cut(here: Site) -> bool:
    """Whether a change of layout is under way, by the ledger."""
    grants = read_books(here.place.settings.paths.state_dir / "ledger.json").grants.values()
    return any(grant.holder.door is Door.LAYOUT for grant in grants)


LAYOUTS = """
version: v1
mig-configs:
  two: [{devices: [5], mig-enabled: true, mig-devices: {"3g.71gb": 2}}]
  none: [{devices: [5], mig-enabled: false}]
"""


def lays_out(layout: str, instances: int | None) -> Act:
    async def act(here: Site) -> None:
        file = here.place.folder / "layouts.yaml"
        file.write_text(LAYOUTS)
        here.out = {here.place.uuid(5)} if layout == "two" else set()
        here.configure(agent_with(mig={"onDemand": [CUT], "configFile": str(file), "config": layout}))
        # An order that is taken back before its change is done calls that off, and what was there before is made again.
        await here.comes(lambda: lying(here, 5) == instances and not being_cut(here))

    return act


def losing(*indices: int) -> tuple[Act, Act]:
    """Lose a GPU and find it again, by turns: one that comes and goes is held back, for longer each time."""

    async def loses(here: Site) -> None:
        if not here.lost:
            here.losses += 1
            here.lost = here.place.uuid(indices[here.losses % len(indices)])
        here.out = {here.lost}
        await here.break_hardware("lose-gpu", gpu=here.lost)
        await here.comes(lambda: here.lost not in here.place.view.healthy)

    async def finds(here: Site) -> None:
        if here.lost:
            await here.break_hardware("restore-gpu", gpu=here.lost)
            here.out = set()
            await here.comes(lambda: here.lost in here.place.view.healthy)
            here.lost = ""

    return loses, finds


BACK = reloads(PLAIN, resources(gpu=8))
RENAMING = reloads({**PLAIN, "resources": {"gpus": [{"pattern": "*", "name": "h200"}]}}, resources(h200=8))
RULE = {"strategy": "mps", "devices": [3], "replicas": 4, "resource": "gpu.shared"}
MPS_SHARES = reloads(agent_with(sharing={"rules": [RULE]}), resources(**{"gpu": 7, "gpu.shared": 4}), 3)
LOSING = losing(6, 1, 2, 4)
LAYING, CLEARING = lays_out("two", 2), together(lays_out("none", None), BACK)

OPERATIONS = (
    Operation(name="prepare", act=WHOLE[0], after=WHOLE[1]),
    Operation(name="unprepare", before=WHOLE[0], act=WHOLE[1], after=WHOLE[1]),
    Operation(name="allocate", act=POD[0], after=POD[1]),
    Operation(name="cut for a claim", act=CUTTING[0], after=CUTTING[1]),
    Operation(name="remove the piece of a claim", before=CUTTING[0], act=CUTTING[1], after=CUTTING[1]),
    Operation(name="start MPS for a claim", act=SHARING[0], after=SHARING[1]),
    Operation(name="end the MPS of a claim", before=SHARING[0], act=SHARING[1], after=SHARING[1]),
    Operation(name="reload to another name", act=RENAMING, after=BACK),
    Operation(name="reload to MPS shares", act=MPS_SHARES, after=BACK),
    Operation(name="reload from MPS shares", before=MPS_SHARES, act=BACK, after=BACK),
    Operation(name="cut by a layout", act=LAYING, after=CLEARING),
    Operation(name="end a layout", before=LAYING, act=CLEARING, after=CLEARING),
    Operation(name="publish a lost GPU", act=LOSING[0], after=LOSING[1]),
    Operation(name="publish a GPU that is back", before=LOSING[0], act=LOSING[1], after=LOSING[1]),
)

PAIRS = {"whole": WHOLE, "cut": CUTTING, "share": SHARING, "pod": POD, "lost": losing(4)}
