"""Pods on the node: made from few words, awaited, and looked into through their logs and through containerd."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tests.node.rig.api import Api, Object
from tests.node.rig.image import BUSYBOX
from tests.node.rig.machine import Machine
from tests.node.rig.waiting import PATIENCE, NotYet, RigError, wait_until

FINAL = ("Succeeded", "Failed")
# The first process of a container ignores SIGTERM unless it says otherwise, and a pod would take seconds to end.
ENDS_AT_ONCE = "trap 'exit 143' TERM; ({script}) & wait $!"


def busybox_pod(
    name: str, script: str = "sleep 1000000", *, limits: Mapping[str, str | int] | None = None, **spec: Any
) -> Object:
    """A pod of one container, ``main``, which runs a shell script once; ``spec`` adds to the pod's spec or replaces.

    It is in the host's network, and gets a second to end: with none, the API server would forget it while its
    containers still hold their devices.
    """
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", ENDS_AT_ONCE.format(script=script)],
        "resources": {"limits": dict(limits or {})},
    }
    defaults = {
        "restartPolicy": "Never",
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": defaults | spec}


class Pods:
    """The pods of one node, each named by its name and its namespace."""

    def __init__(self, api: Api, machine: Machine) -> None:
        self._api = api
        self._machine = machine

    def run(self, manifest: Object, phase: str = "Running", *, timeout: float = PATIENCE) -> Object:
        """Make a pod and await a phase of it; returns the pod as it is then."""
        metadata = self._api.create(manifest)["metadata"]
        return self.wait(metadata["name"], phase, metadata["namespace"], timeout=timeout)

    def wait(
        self, name: str, phase: str = "Running", namespace: str = "default", *, timeout: float = PATIENCE
    ) -> Object:
        """Await a phase of a pod; a RigError as soon as it has ended in another one, or after ``timeout`` seconds."""

        def in_phase() -> Object:
            pod = self._api.get("Pod", name, namespace)
            now = pod["status"]["phase"]
            if now != phase and now in FINAL:
                raise RigError(f"pod {namespace}/{name} shall be {phase}, but ended as {self.describe(pod)}")
            if now != phase:
                raise NotYet(f"it is {self.describe(pod)}")
            return pod

        return wait_until(f"pod {namespace}/{name} is {phase}", in_phase, timeout=timeout)

    def wait_gone(self, name: str, namespace: str = "default", *, timeout: float = PATIENCE) -> None:
        """Await that a deleted pod is gone: the kubelet has ended its containers and their devices are free."""
        wait_until(
            f"pod {namespace}/{name} is gone",
            lambda: self._api.find("Pod", name, namespace) is None,
            timeout=timeout,
        )

    def why_pending(self, name: str, namespace: str = "default", *, timeout: float = PATIENCE) -> str:
        """What the scheduler says of a pod that it cannot place; awaited, since it says so after a moment."""

        def refusal() -> str:
            status = self._api.get("Pod", name, namespace)["status"]
            scheduled = _by(status.get("conditions", []), "type", "PodScheduled")
            return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""

        return wait_until(f"the scheduler has refused pod {namespace}/{name}", refusal, timeout=timeout)

    def events(self, name: str, namespace: str = "default", kind: str = "Pod") -> list[str]:
        """What was reported of an object, as ``reason: message``, oldest first."""
        selector = f"involvedObject.kind={kind},involvedObject.name={name}"
        events = self._api.list("Event", namespace, fieldSelector=selector)
        events.sort(key=lambda event: str(event["metadata"]["creationTimestamp"]))
        return [f"{event['reason']}: {event['message']}" for event in events]

    def log(self, pod: Object, container: str = "main") -> str:
        """What a container has written since its latest start, both of its outputs; empty when it never started."""
        metadata = pod["metadata"]
        folder = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        files = self._machine.path("/var/log/pods").joinpath(folder, container).glob("*.log")
        latest = sorted(files, key=lambda path: int(path.stem))[-1:]
        return "".join(_logged(line) for file in latest for line in file.read_text().splitlines())

    def execute(self, pod: Object, command: Sequence[str], container: str = "main") -> str:
        """Run a command in a container that runs, and return its output."""
        execution = f"--exec-id={secrets.token_hex(4)}"
        return self._containerd("tasks", "exec", execution, self.container_id(pod, container), *command)

    def runtime_spec(self, pod: Object, container: str = "main") -> Object:
        """The OCI runtime spec that containerd made, CDI edits included: ``process.env``, ``linux.devices``, ..."""
        spec: Object = json.loads(self._containerd("containers", "info", self.container_id(pod, container)))["Spec"]
        return spec

    def container_id(self, pod: Object, container: str = "main") -> str:
        """containerd's id of a container, as the API server has it now."""
        metadata = pod["metadata"]
        status = self._api.get("Pod", metadata["name"], metadata["namespace"])["status"]
        found = _by(status.get("containerStatuses", []), "name", container).get("containerID")
        if not found:
            raise RigError(f"container {container} of pod {metadata['name']} was not made: {self.describe(pod)}")
        return str(found).removeprefix("containerd://")

    def describe(self, pod: Object) -> str:
        """A pod's state for an error's message: phase, what its conditions and containers lack, its events and logs."""
        status = pod["status"]
        containers = status.get("containerStatuses", [])
        states = [state for container in containers for state in container["state"].items()]
        lines = [
            status["phase"],
            status.get("message"),
            *(condition.get("message") for condition in status.get("conditions", [])),
            *(f"{state}: {facts.get('reason')} {facts.get('message', '')}" for state, facts in states),
            *self.events(pod["metadata"]["name"], pod["metadata"]["namespace"]),
            *(f"{container['name']} wrote: {self.log(pod, container['name'])}" for container in containers),
        ]
        return "\n  ".join(filter(None, lines))

    def _containerd(self, *arguments: str) -> str:
        return self._machine.run(["ctr", "--namespace=k8s.io", *arguments])


def _by(items: Sequence[Object], key: str, value: str) -> Object:
    return next((item for item in items if item[key] == value), {})


def _logged(line: str) -> str:
    """One line of the kubelet's log format: time, stream, F for a full line or P for a part of one, text."""
    _, _, tag, text = line.split(" ", 3)
    return text if tag == "P" else f"{text}\n"
