"""From the start of the process to its registration at the kubelet, and where that time goes.

The agent is started on a simulated node, so that making the node (reading its profile, writing its files) is part of
it; that share is given by itself.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.floors import INTERPRETER
from benchmarks.measure import Effort, Figure, Target, Turn, figure, timed
from benchmarks.process import PROFILE, Stand, stand

# Ends at once: taking an interpreter down takes a while, too, and is no part of a start.
END = "import os\nos._exit(0)\n"

# What ``run`` loads on a real node.
IMPORTS = "import node_agent.cli.main, node_agent.cli.run, node_agent.config.resolve, node_agent.agent.build\n"

# The same, and a simulated node made.
SIMULATED = f"""\
{IMPORTS}
import pathlib, sys, tempfile
from node_agent.cli.simulated import simulation
simulation("{PROFILE}", pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))).__enter__()
"""

PROGRAMS = ("", IMPORTS, SIMULATED)

REGISTERED, LOADED = "start → registered at the kubelet", "  the agent's imports"
TARGETS = {REGISTERED: Target(limit=0.8), LOADED: Target(limit=0.4)}


async def measure(effort: Effort) -> Sequence[Figure]:
    async with stand() as place:
        rounds = [await _round(place) for _ in range(effort.pick(full=12, quick=2))]
    return [
        figure(name, [Turn(subject=[marks[name]], floor=[floor]) for floor, marks in rounds], INTERPRETER, target)
        for name, target in ((name, TARGETS.get(name)) for name in rounds[0][1])
    ]


async def _round(place: Stand) -> tuple[float, Mapping[str, float]]:
    """What an interpreter takes, and how long after its start the agent had come how far."""
    runs = [partial(place.run, "-c", code + END, str(place.folder)) for code in PROGRAMS]
    floor, loaded, simulated = [await timed(run) for run in runs]
    async with place.agent() as agent:
        registered, cpu = agent.age, agent.cpu_seconds
        return floor, {
            REGISTERED: registered,
            LOADED: loaded - floor,
            "  making the simulated node": simulated - loaded,
            "start → first inventory": agent.first("inventory changed"),
            "start → CDI spec on disk": agent.first("CDI spec written"),
            "processor time until registered": cpu,
        }
