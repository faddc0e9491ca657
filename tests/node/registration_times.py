"""How long each route takes to bring GPUs to a real kubelet: ``python -m tests.node.registration_times [REPETITIONS]``.

It prints the table of docs/dev/registration.md. "Known to the kubelet" is its own word, which it gives on the socket
for pod resources; the node's status follows with the kubelet's next report, which the rig makes once a second.
"""

import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import grpc

from node_agent.kit.unix import identity
from tests.node import agent
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until

ROUTES = ("socket", "watcher")
AWAY_SECONDS = 5


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with RealNode() as node:
        for route in ROUTES:
            starts = [seconds_to_start(node, route) for _ in range(repetitions)]
            line(route, "GPUs offered → registered", [each[0] for each in starts])
            line(route, "agent started → known to the kubelet", [each[1] for each in starts])
            line(route, "agent started → allocatable in the node's status", [each[2] for each in starts])
            for number, away in ((signal.SIGTERM, 0), (signal.SIGKILL, 0), (signal.SIGTERM, AWAY_SECONDS)):
                with started(node, route):
                    returns = [seconds_to_return(node, number, away) for _ in range(repetitions)]
                line(route, f"kubelet back {away} s after {number.name} → known to it again", returns)
            takeovers = [seconds_to_take_over(node, route) for _ in range(repetitions)]
            line(route, "agent ended, a second one waits → known to the kubelet again", takeovers)


def line(route: str, what: str, figures: list[float]) -> None:
    print(f"| {route} | {what} | {statistics.median(figures):.2f} | {max(figures):.2f} |", flush=True)


@contextlib.contextmanager
def started(node: RealNode, route: str) -> Iterator[None]:
    program = agent.start(node, {"agent": {"registration": route}})
    yield
    program.stop()
    agent.offered(node, 0)


def seconds_to_start(node: RealNode, route: str) -> tuple[float, float, float]:
    """Seconds from the offer to the registration, and from the program's start to the kubelet's and the node's word."""
    began = time.monotonic()
    program = agent.launch(node, {"agent": {"registration": route}})
    at_kubelet = agent.seconds_until(lambda: known(node), began)
    in_status = agent.seconds_until(lambda: node.allocatable(agent.GPU) == 8, began)
    program.stop()
    agent.offered(node, 0)
    took = moment(program.text(), " registered ") - moment(program.text(), " offered ")
    return took.total_seconds(), at_kubelet, in_status


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
        took = agent.seconds_until(lambda: known(node), time.monotonic())
        starting.result()
    return took


def seconds_to_take_over(node: RealNode, route: str) -> float:
    """Seconds from the signal that ends an agent until the kubelet knows the GPUs from another that was waiting."""
    first = agent.start(node, {"agent": {"registration": route}})
    second = agent.launch(
        node, {"agent": {"registration": route, "paths": {"runDir": "/run/gpu-node-agent-2"}}}, name="agent-2"
    )
    wait_until("the second agent waits", lambda: "waiting for another agent" in second.text())
    began = time.monotonic()
    first.send(signal.SIGTERM)
    took = agent.seconds_until(lambda: agent.registrations(second) and known(node), began)
    first.wait()
    second.stop()
    agent.offered(node, 0)
    return took


def known(node: RealNode) -> bool:
    """Whether the kubelet has all GPUs; a kubelet that is starting does not answer yet."""
    with contextlib.suppress(grpc.RpcError):
        return len(agent.healthy_at_kubelet(node)) == 8
    return False


if __name__ == "__main__":
    main()
