"""The generated pages of what the agent writes in Kubernetes: attributes of devices, taints, conditions and Events."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from node_agent.dra.attribute_names import ATTRIBUTES, CAPACITIES
from node_agent.dra.taints import HELD
from node_agent.health.rules import Policy
from node_agent.model.health import Reason, Severity
from node_agent.model.vendor import NVIDIA
from node_agent.reporting.told import CONDITIONS, EVENTS

DRIVER = NVIDIA.driver

# Slices as they are made of simulated nodes; a test keeps them true.
EXAMPLES = Path(__file__).resolve().parent.parent / "tests" / "golden" / "slices"

ATTRIBUTES_HEAD = f"""# Attributes and capacities of devices

Generated from `node_agent/dra/attribute_names.py` by `python -m tools.documents --write`: what a ResourceSlice says
of a device. A name without a domain is in the domain of the driver, so that CEL has
`device.attributes["{DRIVER}"].productName`; one with `resource.kubernetes.io` is Kubernetes' own. What is not known is
absent, never zero. The example is a simulated node's.
[claims.md](claims.md#what-is-published) says what is published.

| attribute | type | example | what |
| --- | --- | --- | --- |
"""
OBJECTS_HEAD = f"""# What the agent writes in Kubernetes

Generated from `node_agent/reporting/told.py`, `node_agent/model/health.py` and `node_agent/health/rules.py` by
`python -m tools.documents --write`. Beside these there are [labels](label-names.md) of the Node, ResourceSlices with
[attributes](attributes.md), and, where asked for, a [topology object](topology-object.md).

## Taints of devices

Of a device in a ResourceSlice. The key is `{DRIVER}/` and the cause, the value the driver's number for it, such as that
of an Xid. The effect is the one by default: `agent.health.rules` may say otherwise, and [xids.md](xids.md) has that of
each Xid.
[health.md](health.md) says what each cause is and when it ends.

| key | effect |
| --- | --- |
"""
EFFECTS = {Severity.EVICTED: "NoExecute", Severity.WITHDRAWN: "NoSchedule", Severity.DEGRADED: "None"}

Device = Mapping[str, Any]


def attributes_page() -> str:
    seen = {name: value for device in _devices() for name, value in device["attributes"].items()}
    rows = [f"| `{name}` | {_example(seen.get(name))} | {what} |\n" for name, what in ATTRIBUTES.items()]
    capacities = [f"| `{name}` | {what} |\n" for name, what in CAPACITIES.items()]
    return ATTRIBUTES_HEAD + "".join(rows) + "\n| capacity | what |\n| --- | --- |\n" + "".join(capacities)


def objects_page() -> str:
    taints = [f"| `{DRIVER}/{reason}` | {_effect(reason)} |\n" for reason in Reason]
    held = f"| `{DRIVER}/{HELD}` | NoSchedule: sound, but a pod with limits or another claim has its hardware |\n"
    conditions = (
        f"\n## Condition of the {kind}\n\n| reason | status | means |\n| --- | --- | --- |\n"
        + "".join(f"| `{reason}` | {status} | {means} |\n" for reason, (status, means) in reasons.items())
        for kind, reasons in CONDITIONS.items()
    )
    events = "".join(f"| `{reason}` | {kind} | {when} |\n" for reason, (kind, when) in EVENTS.items())
    head = "\n## Events of the Node\n\n| reason | type | written when |\n| --- | --- | --- |\n"
    return OBJECTS_HEAD + "".join(taints) + held + "".join(conditions) + head + events


def _effect(reason: Reason) -> str:
    if reason is Reason.XID:
        return "by the Xid"
    return EFFECTS.get(Policy().decide(reason).severity, "no taint")


def _devices() -> Iterator[Device]:
    for example in sorted(EXAMPLES.glob("*.json")):
        for published in json.loads(example.read_text()):
            yield from published["spec"].get("devices", ())


def _example(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "string | "
    ((kind, shown),) = value.items()
    return f"{kind} | `{json.dumps(shown) if kind == 'bool' else shown}`"
