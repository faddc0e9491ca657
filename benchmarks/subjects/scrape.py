"""What a scrape takes of a node that is cut to MIG devices: time, series, and what it costs the agent."""

import asyncio
from collections.abc import Sequence
from http.client import HTTPConnection

from benchmarks.measure import Effort, Figure, Floor, Target, Unit, single, timed
from benchmarks.process import Process, growth, stand
from benchmarks.subjects.footprint import INSTANCE, INSTANCES, SETTLE_SECONDS, partitioned

PORT = 19400
NOTHING = "an agent that nobody scrapes"
TARGET = Target(limit=0.05)

# As often as Prometheus does where nobody has said another interval.
EVERY_SECONDS = 15.0


async def measure(effort: Effort) -> Sequence[Figure]:
    async with stand() as place:
        settings = {"http": {"address": f"127.0.0.1:{PORT}"}}
        async with place.agent_on(partitioned(place.folder), settings) as agent:
            await asyncio.sleep(2 * SETTLE_SECONDS)
            idle = await _minute(agent, effort, scraped=False)
            healthz = Floor(name="GET /healthz", median=min([await timed(lambda: _get("/healthz")) for _ in range(20)]))
            await _get("/metrics")
            scrapes = [await timed(lambda: _get("/metrics")) for _ in range(effort.pick(full=200, quick=50))]
            grown = await growth(agent, lambda: _get("/metrics"), effort, "scrapes")
            body = await _get("/metrics")
            busy = await _minute(agent, effort, scraped=True)
    series = sum(not line.startswith("#") for line in body.splitlines())
    return [
        Figure(name=f"scrape, {8 * INSTANCES} × {INSTANCE}", samples=tuple(scrapes), floor=healthz, target=TARGET),
        single("  series", series, Unit.COUNT),
        single("  bytes", len(body), Unit.BYTES),
        *grown,
        single("  processor time in a minute, scraped", busy, Unit.SECONDS, Floor(name=NOTHING, median=idle)),
    ]


async def _minute(agent: Process, effort: Effort, *, scraped: bool) -> float:
    """Processor time in a minute, with a scrape now and then."""
    used, began = agent.cpu_seconds, agent.age
    for _ in range(effort.pick(full=4, quick=1)):
        if scraped:
            await _get("/metrics")
        await asyncio.sleep(EVERY_SECONDS)
    return (agent.cpu_seconds - used) / (agent.age - began) * 60


async def _get(path: str) -> str:
    return await asyncio.to_thread(_asked, path)


def _asked(path: str) -> str:
    connection = HTTPConnection("127.0.0.1", PORT, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()
