"""The shipped examples, and what each says of its own outcome.

An example is a file of ``deploy/examples``: first a comment with a block ``Expected:``, which says in YAML what becomes
of each pod, or of a container as ``pod/container``; then perhaps a ConfigMap with the agent's configuration; then the
rest.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.node.agent import offered
from tests.node.rig.api import Object
from tests.node.rig.kustomized import DEPLOY
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import wait_until

EXAMPLES = DEPLOY / "examples"
SEES = ["sh", "-c", "ls -d /dev/nvidia[0-9]* /dev/nvidia-caps/* 2>/dev/null || true"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is expected of a pod or container: that it runs and sees this, or a word of why it does not."""

    gpus: int = 0
    partitions: int = 0
    numa_nodes: int = 0
    same_as: str = ""
    apart_from: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    resource: str = ""
    pending: str = ""
    failed: str = ""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One file, read."""

    name: str
    expected: dict[str, Outcome]
    settings: Object
    objects: list[Object]


def names() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def example(name: str) -> Example:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    objects = [one for one in yaml.safe_load_all(text) if one]
    configurations = [one for one in objects if one["kind"] == "ConfigMap"]
    settings = [yaml.safe_load(one["data"]["default"]) for one in configurations]
    return Example(
        name=name,
        expected=_expected(text),
        settings=settings[0] if settings else {},
        objects=[one for one in objects if one not in configurations],
    )


def _expected(text: str) -> dict[str, Outcome]:
    _, block = text.split("# Expected:\n")
    lines = [line.removeprefix("#") for line in block[: block.index("\napiVersion")].splitlines()]
    return {who: outcome(facts) for who, facts in yaml.safe_load("\n".join(lines)).items()}


def outcome(facts: dict[str, Any]) -> Outcome:
    """A fact of another name is an error."""
    return Outcome(**{name.replace("-", "_"): value for name, value in facts.items()})


def shown(node: RealNode, one: Example) -> None:
    """Make an example's objects and hold each pod to what is expected; what was made stays.

    One that shall find too little left is made when those before it have theirs: the scheduler takes them in any order.
    """
    for outcome in one.expected.values():
        if outcome.resource:
            resource, count = outcome.resource.split(": ")
            offered(node, int(count), resource)
    running: list[str] = []
    for manifest in one.objects:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "Pod" and name in one.expected and one.expected[name].pending:
            for before in running:
                node.pods.wait(before)
        elif manifest["kind"] == "Pod":
            running.append(name)
        node.api.create(manifest)
    held(node, one)


def held(node: RealNode, one: Example) -> None:
    """Hold each pod of an example, which is made, to what is expected."""
    seen = {who: _seen(node, who, outcome) for who, outcome in one.expected.items()}
    assert {who.split("/")[0] for who in seen} == {pod["metadata"]["name"] for pod in pods(one)}, "all pods are told of"
    for who, outcome in one.expected.items():
        gpus = _gpus(seen[who])
        assert len(gpus) == outcome.gpus, who
        assert len(seen[who] - gpus) == 2 * outcome.partitions, who
        if outcome.same_as:
            assert gpus == _gpus(seen[outcome.same_as]), who
        if outcome.apart_from:
            assert not gpus & _gpus(seen[outcome.apart_from]), who


def pods(one: Example) -> list[Object]:
    return [manifest for manifest in one.objects if manifest["kind"] == "Pod"]


def _gpus(paths: set[str]) -> set[str]:
    return {path for path in paths if "nvidia-caps" not in path}


def _seen(node: RealNode, who: str, outcome: Outcome) -> set[str]:
    """The device nodes that a container sees; none where its pod shall not run."""
    name, _, container = who.partition("/")
    if outcome.pending:
        assert outcome.pending in node.pods.why_pending(name)
        return set()
    if outcome.failed:
        wait_until(f"pod {name} has failed", lambda: outcome.failed in str(node.api.get("Pod", name)["status"]))
        return set()
    pod = node.pods.wait(name)
    container = container or "main"
    environment = node.pods.runtime_spec(pod, container)["process"]["env"]
    assert {f"{key}={value}" for key, value in outcome.environment.items()} <= set(environment), who
    paths = set(node.pods.execute(pod, SEES, container).split())
    if outcome.numa_nodes:
        assert len({_numa_node(path) for path in _gpus(paths)}) == outcome.numa_nodes, who
    return paths


def _numa_node(path: str) -> int:
    """Of the simulated node with eight H200: the lower half of its GPUs is on the first one."""
    return int(Path(path).name.removeprefix("nvidia")) // 4
