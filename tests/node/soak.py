"""Mixed load on a real node for as long as one likes: nothing grows, is given out twice, or is left behind.

``make soak`` (``python -m tests.node.soak --minutes 60``) starts its own node and prints its figures. Pods come and
go by limits and by claims, among them claims that have GPUs cut by MIG. Meanwhile Xids strike, GPUs fall off the bus,
the configuration changes, and the kubelet restarts. In the first third of the time agents are killed as well; in the
rest one agent lives, and its growth is what is measured.
"""

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from node_agent.allocation.grants import Door
from node_agent.hardware.simulated.control import send
from tests.node import agent as agents
from tests.node.installed import MODES, NAMESPACE
from tests.node.rig.api import Object
from tests.node.rig.node import RealNode
from tests.node.rig.pods import FINAL
from tests.node.rig.program import Program
from tests.node.rig.waiting import wait_until
from tests.node.spans import SCRIPT, Span, spans
from tests.node.test_claims import DRIVER, claim, devices, make_identity, pod_with, prepare_cluster

MIG = "mig.nvidia.com"
SIMULATE = "/run/gpu-node-agent/simulate.sock"
MOST_PODS = 8
CHURN = 1 / 3
"""The part of the time in which agents are killed, unless another is asked for."""
WARM = 1 / 4
"""The part of the last agent's life that does not count: what it keeps for good it has to get first."""
# Of a pod by its limits the kubelet says so when it had no GPU left, or when the agent did.
EXPECTED = {"UnexpectedAdmissionError", f"OutOf{agents.GPU}"}
# What fails a pod here and would not on a node with a driver: a container that starts in this very moment.
OF_RIG = {
    'error mounting "/tmp/node-agent-': "files of the simulated driver went with the agent that was killed",
    ": context canceled": "kubelet was killed",
}
FIGURES = ("memory_kib", "files", "threads")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What the agent's process took, ``at`` seconds of the monotonic clock."""

    at: float
    memory_kib: int
    files: int
    threads: int


def sample(pid: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    (memory,), (threads,) = (re.findall(rf"^{name}:\s+(\d+)", status, re.MULTILINE) for name in ("VmRSS", "Threads"))
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return Sample(at=time.monotonic(), memory_kib=int(memory), files=files, threads=int(threads))


def slope(samples: list[Sample], figure: str) -> float:
    """By how much a figure grows in an hour: the line of least squares."""
    at = [one.at / 3600 for one in samples]
    values = [float(getattr(one, figure)) for one in samples]
    middle, mean = sum(at) / len(at), sum(values) / len(values)
    spread = sum((x - middle) ** 2 for x in at)
    return sum((x - middle) * (y - mean) for x, y in zip(at, values, strict=True)) / spread if spread else 0.0


@dataclass(kw_only=True)
class Soak:
    """The load on one node; ``run`` it, then ask for ``figures`` and ``mistakes``."""

    node: RealNode
    seconds: float
    seed: int
    churn: float = CHURN
    counts: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._spans: list[Span] = []
        self._settings = self._make_settings()
        self._excluded = False
        self.agent = self._start()

    # The agent

    def _make_settings(self) -> Object:
        prepare_cluster(self.node, *MODES)
        identity = make_identity(self.node, "soak")
        kubeconfig = self.node.service_account_kubeconfig("gpu-node-agent", NAMESPACE, pod=identity)
        return {
            "agent": {
                "kubeconfig": str(kubeconfig),
                "frontDoors": {"dra": True, "devicePlugin": True},
                "mig": {"onDemand": ["gpu-6", "gpu-7"]},
                "health": {"probeInterval": "2s"},
                "log": {"level": "info"},
            }
        }

    def _start(self) -> Program:
        agent = agents.launch_process(self.node, self._settings)
        agents.registered(agent)
        wait_until("the slices are there", lambda: devices(self.node))
        return agent

    def _end(self, number: signal.Signals) -> None:
        self.agent.stop(number)
        self._look_into(self.agent.text())
        self.agent = self._start()

    def _look_into(self, log: str) -> None:
        lines = log.splitlines()
        told = [number for number, line in enumerate(lines) if "Traceback" in line or "a pod has what another" in line]
        self.mistakes += ["\n  ".join(lines[max(0, number - 3) : number + 40]) for number in told]

    # What happens

    def run(self) -> None:
        """Load the node, then let it come to rest, and see whether anything is left."""
        began, churn = time.monotonic(), self.seconds * self.churn
        due = {action: every * self._random.random() for action, every in self._actions(churning=True).items()}
        # A short run on a busy machine goes on until there is something to judge.
        while (now := time.monotonic() - began) < self.seconds or not (self.samples and self.counts["devices seen"]):
            actions = self._actions(churning=now < churn)
            for action in [one for one in actions if due[one] <= now]:
                action()
                due[action] = time.monotonic() - began + actions[action] * (0.5 + self._random.random())
            self._reap()
            if now >= churn:
                self.samples.append(sample(self.agent.pid))
            time.sleep(0.2)
        self._rest()
        self._look_into(self.agent.text())

    def _actions(self, *, churning: bool) -> dict[Callable[[], None], float]:
        """What is done, and every how many seconds about."""
        short = min(1.0, max(0.2, self.seconds / 600))
        steady: dict[Callable[[], None], float] = {
            self._add_pod: 0.7,
            self._application_xid: 3.0,
            self._break_gpu: 25.0 * short,
            self._lose_gpu: 40.0 * short,
            self._reload: 30.0 * short,
            self._restart_kubelet: 120.0 * short,
        }
        return steady | ({self._kill_agent: 45.0 * short} if churning else {})

    def _add_pod(self) -> None:
        alive = [pod for pod in self._pods() if pod["status"]["phase"] not in FINAL]
        if len(alive) >= MOST_PODS:
            return
        self.counts["pods"] += 1
        name, kind = f"soak-{self.counts['pods']}", self._random.choice(("limit", "limit", "claim", "claim", "mig"))
        self.counts[f"pods by {kind}"] += 1
        script = SCRIPT.format(seconds=self._random.choice((0.2, 1, 3, 6)))
        if kind == "limit":
            self.node.api.create(agents.gpu_pod(name, self._random.choice((1, 1, 2)), script))
            return
        if kind == "mig":
            profile = self._random.choice(("1g.18gb", "2g.35gb", "3g.71gb"))
            cel = {"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{profile}"'}}
            wanted = claim(name, selectors=[cel], deviceClassName=MIG)
        else:
            wanted = claim(name, self._random.choice((1, 1, 2)))
        self.node.api.create(wanted)
        self.node.api.create(pod_with(name, name, script))

    def _application_xid(self) -> None:
        self._simulate("xid", code=31)

    def _break_gpu(self) -> None:
        gpu = self._simulate("xid", code=79)
        time.sleep(1)
        self._simulate("restore-gpu", gpu)

    def _lose_gpu(self) -> None:
        gpu = self._simulate("lose-gpu")
        time.sleep(1)
        self._simulate("restore-gpu", gpu)

    def _simulate(self, command: str, gpu: str = "", **more: Any) -> str:
        gpu = gpu or str(self._random.randrange(8))
        self.counts[" ".join((command, *map(str, more.values())))] += 1
        send(self.node.machine.path(SIMULATE), {"command": command, "gpu": gpu, **more})
        return gpu

    def _reload(self) -> None:
        self.counts["reloads"] += 1
        self._excluded = not self._excluded
        self._write({"devices": {"exclude": ["gpu-5"] if self._excluded else []}})

    def _write(self, change: Object) -> None:
        settings = {"version": "v1", "agent": self._settings["agent"] | change}
        file = self.node.machine.folder / "agent.yaml"
        beside = file.with_suffix(".new")
        beside.write_text(yaml.safe_dump(settings))
        beside.replace(file)

    def _restart_kubelet(self) -> None:
        self.counts["kubelet restarts"] += 1
        self.node.restart_kubelet(self._random.choice((signal.SIGTERM, signal.SIGKILL)))

    def _kill_agent(self) -> None:
        number = self._random.choice((signal.SIGTERM, signal.SIGKILL))
        self.counts["agents killed" if number is signal.SIGKILL else "agents ended"] += 1
        self._end(number)

    # Pods that have ended

    def _pods(self) -> list[Object]:
        pods = self.node.api.list("Pod", "default")
        return [pod for pod in pods if pod["metadata"]["name"].startswith("soak-")]

    def _reap(self) -> None:
        """Note what ended pods saw and for how long, and remove them with their claims."""
        for pod in self._pods():
            if pod["status"]["phase"] in FINAL and "deletionTimestamp" not in pod["metadata"]:
                self._note(pod)
                self._remove(pod["metadata"]["name"])

    def _note(self, pod: Object) -> None:
        if pod["status"]["phase"] == "Failed":
            self._note_failure(pod)
            return
        seen = spans(pod["metadata"]["name"], self.node.pods.log(pod))
        if not seen:
            self.mistakes.append(f"{pod['metadata']['name']} saw no device")
        clashes = [(one, other) for one in seen for other in self._spans if one.clashes(other)]
        self.mistakes += [f"{one.path} at once: {one}, {other}" for one, other in clashes]
        # Nobody who is still to be noted began before the oldest of these ended.
        self._spans = [*self._spans[-500:], *seen]
        self.counts["devices seen"] += len(seen)

    def _note_failure(self, pod: Object) -> None:
        reason, told = pod["status"].get("reason", ""), self.node.pods.describe(pod)
        of_rig = [why for words, why in OF_RIG.items() if words in told]
        self.counts[f"failed: {reason or of_rig or 'otherwise'}"] += 1
        if not of_rig and (reason not in EXPECTED or "resourceClaims" in pod["spec"]):
            self.mistakes.append(f"{pod['metadata']['name']} failed: {told}")

    def _remove(self, name: str) -> None:
        for kind in ("Pod", "ResourceClaim"):
            self.node.api.remove(kind, name)
        self.node.api.created[:] = [one for one in self.node.api.created if one["metadata"]["name"] != name]

    # The end

    def _rest(self) -> None:
        """End all pods, and await that the node is as it was: every GPU on offer, and no trace of anybody."""
        self._write({"devices": {"exclude": []}})
        for pod in self._pods():
            self._remove(pod["metadata"]["name"])
        wait_until("all pods are gone", lambda: not self._pods())
        for one in self.node.api.list("ResourceClaim", "default"):
            self._remove(one["metadata"]["name"])
        try:
            agents.offered(self.node, 8)
            wait_until("nothing is left", lambda: not self.orphans(), every=1)
        finally:
            self.mistakes += self.orphans()

    def orphans(self) -> list[str]:
        """What is there although no pod is."""
        books = agents.books(self.node)
        assert books is not None, "an agent has run"
        grants = [grant for grant in books.grants.values() if grant.holder.door is Door.CLAIM]
        specs = [path.name for path in self.node.cdi_folder.iterdir() if "claim" in path.name]
        sick = [name for name, device in devices(self.node).items() if device.get("taints")]
        return [
            *(f"{grant.holder} holds devices" for grant in grants),
            *(f"{name} is there" for name in specs),
            *(f"{name} is tainted" for name in sick),
        ]

    def figures(self) -> list[str]:
        """What was done, and how the last agent grew."""
        done = f"seed {self.seed}: " + ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        steady = self.samples[int(len(self.samples) * WARM) :]
        if not steady:
            return [done]
        grown = [
            f"{figure}: {getattr(steady[0], figure)} at first, {getattr(steady[-1], figure)} at last, at most "
            f"{max(getattr(one, figure) for one in steady)}, {slope(steady, figure):+.1f} an hour"
            for figure in FIGURES
        ]
        quarters = [steady[len(steady) * part // 4].memory_kib for part in range(4)]
        grown.append(f"memory_kib at the beginning of each quarter: {quarters}")
        minutes = (steady[-1].at - steady[0].at) / 60
        return [done, f"one agent for {minutes:.1f} minutes, {len(steady)} samples:", *grown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--churn", type=float, default=CHURN, help="the part of the time in which agents are killed")
    wanted = parser.parse_args()
    with RealNode() as node:
        soak = Soak(node=node, seconds=wanted.minutes * 60, seed=wanted.seed, churn=wanted.churn)
        well = False
        try:
            soak.run()
            well = not soak.mistakes
        finally:
            print(*soak.figures(), *(f"MISTAKE {one}" for one in soak.mistakes), sep="\n", flush=True)
            if not well:
                kept = shutil.copytree(node.machine.logs, tempfile.mkdtemp(prefix="soak-"), dirs_exist_ok=True)
                print(f"the logs of all programs are in {kept}", flush=True)
    sys.exit(not well)


if __name__ == "__main__":
    main()
