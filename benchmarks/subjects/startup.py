"""From the start of the process to its registration at the kubelet, and where that time goes.

The agent is started on a simulated node, so that making the node (reading its profile, writing its files) is part of
it. What is given as processor time is what remains of it on a machine with nothing else to do.
"""

from collections.abc import Mapping, Sequence

from benchmarks.floors import INTERPRETER
from benchmarks.measure import Effort, Figure, Target, Turn, figure
from benchmarks.process import PROFILE, Stand, stand

# What ``run`` loads on a real node.
IMPORTS = """\
import node_agent.cli.main, node_agent.cli.run, node_agent.config.resolve
from node_agent.kit.memory import nothing_to_collect
with nothing_to_collect():
    import node_agent.agent.build
"""

# The same, and a simulated node made.
SIMULATED = f"""\
{IMPORTS}
import pathlib, sys, tempfile
from node_agent.cli.simulated import simulation
simulation("{PROFILE}", pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))).__enter__()
"""

REGISTERED, LOADED = "start → registered at the kubelet", "  of it the agent's imports"
TARGETS = {REGISTERED: Target(limit=0.8), LOADED: Target(limit=0.4)}


async def measure(effort: Effort) -> Sequence[Figure]:
    async with stand() as place:
        rounds = [await _round(place) for _ in range(effort.pick(full=10, quick=2))]
    return [figure(name, [turns[name] for turns in rounds], INTERPRETER, TARGETS.get(name)) for name in rounds[0]]


async def _round(place: Stand) -> Mapping[str, Turn]:
    """How long after its start the agent had come how far, each beside what a bare interpreter takes."""
    bare, loaded, simulated = [await place.python(code) for code in ("", IMPORTS, SIMULATED)]
    async with place.agent() as agent:
        registered, processor = agent.age, agent.cpu_seconds
    elapsed = {
        REGISTERED: registered,
        "start → first inventory": agent.first("inventory changed"),
        "start → CDI spec on disk": agent.first("CDI spec written"),
    }
    used = {
        "processor time until registered": processor,
        LOADED: loaded.cpu_seconds - bare.cpu_seconds,
        "  of it making the simulated node": simulated.cpu_seconds - loaded.cpu_seconds,
    }
    return {
        **{name: Turn(subject=[seconds], floor=[bare.seconds]) for name, seconds in elapsed.items()},
        **{name: Turn(subject=[seconds], floor=[bare.cpu_seconds]) for name, seconds in used.items()},
    }
