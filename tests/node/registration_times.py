"""How long each route takes to bring GPUs to a real kubelet: ``python -m tests.node.registration_times [REPETITIONS]``.

It prints the figures of docs/dev/registration.md, in seconds: median, longest, and of how many. What the kubelet
knows is its own word, given on the socket for pod resources; the node's status follows with its next report.
"""

import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from node_agent.kit.unix import identity
from tests.node import agent
from tests.node.rig.node import RealNode
from tests.node.rig.program import Program

ROUTES = ("socket", "watcher")
AWAY_SECONDS = 5


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with RealNode() as node:
        for route in ROUTES:
            offers = [seconds_to_register(node, route) for _ in range(repetitions)]
            line(route, "GPUs offered → registered", offers)
            for away in (0, AWAY_SECONDS):
                with started(node, route):
                    returns = [
                        seconds_to_return(node, number, away)
                        for number in (signal.SIGTERM, signal.SIGKILL)
                        for _ in range(repetitions)
                    ]
                line(route, f"kubelet back after {away} s → it knows the GPUs", returns)


def line(route: str, what: str, figures: list[float]) -> None:
    print(f"{route}: {what}: {statistics.median(figures):.2f}, {max(figures):.2f} of {len(figures)}", flush=True)


@contextlib.contextmanager
def started(node: RealNode, route: str) -> Iterator[Program]:
    program = agent.start_process(node, {"agent": {"registration": route}})
    yield program
    program.stop()
    agent.offered(node, 0)


def seconds_to_register(node: RealNode, route: str) -> float:
    """Seconds from the agent's first offer to its registration, by its own log."""
    with started(node, route) as program:
        log = program.text()
    return (moment(log, " registered ") - moment(log, " offered ")).total_seconds()


def moment(log: str, event: str) -> datetime:
    """When an event was first logged."""
    return datetime.fromisoformat(next(line for line in log.splitlines() if event in line).split()[0])


def seconds_to_return(node: RealNode, number: signal.Signals, away: float) -> float:
    """Seconds from the moment at which a restarted kubelet takes registrations until it knows the GPUs again."""
    path = node.device_plugins / "kubelet.sock"
    before = identity(path)
    node.stop_kubelet(number)
    time.sleep(away)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(node.start_kubelet)
        agent.seconds_until(lambda: identity(path) not in (before, None), 0)
        took = agent.seconds_until(lambda: agent.knows(node), time.monotonic())
        starting.result()
    return took


if __name__ == "__main__":
    main()
