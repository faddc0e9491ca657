"""The generated page of what each mode may do, from the manifests: rights at the API server, host folders, container.

The manifests say beside each of these what it is for; ``reasons`` finds that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).resolve().parent.parent / "deploy" / "daemonset"
MODES: Mapping[str, str] = {
    "base": "every mode",
    "components/limits": "`limits`: pods with limits, on by default",
    "components/claims": "`claims`: pods with ResourceClaims, on by default",
    "components/labels": "`labels`: labels about the GPUs, on by default",
    "components/mig": "`mig`: cutting GPUs",
    "components/mps": "`mps`: GPUs shared by MPS",
    "components/privileged": "`privileged`: nodes without NVIDIA's container runtime, and part of `mps`",
    "components/configs": "`configs`: named configurations",
    "components/compute-domains": "`compute-domains`: NVIDIA's ComputeDomains",
    "components/topology": "`topology`: the topology object",
}
"""Each folder that gives a right, and what to call it."""

_HEAD = """# What the agent may do

Generated from [deploy/daemonset](../../deploy/daemonset/kustomization.yaml) by `python -m tools.documents --write`,
which has the reason beside each line. A mode that is off has none of its rights, and the agent is told so by a
variable. [install.md](install.md#which-rights) says how modes are chosen.

The [policy](../../deploy/daemonset/base/policy.yaml) narrows what the rights say: by its token the agent is bound to
its node, and may write no other node's slices, labels, conditions or objects, whatever its role allows. Of its own
Node it may change status and labels of `nvidia.com`.
"""
_LIMITS = """
## What that does not keep out

Who takes over an agent's process is root on host folders that matter: it can read the host's files through the
driver's root (a driver in a container has a smaller one), connect to the sockets that lie there, announce devices to
the kubelet, and write CDI specs, which say what runtimes put into containers. So keep the image to yourselves, and the
namespace to administrators. It cannot become the agent of other nodes: what it writes at the API server stays its own
node's.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Right:
    """One right at the API server, where it holds, and what the manifest says that it is for."""

    group: str
    resource: str
    verb: str
    within: str
    reason: str


def page() -> str:
    return _HEAD + "".join(_section(folder, title) for folder, title in MODES.items()) + _LIMITS


def rights(folder: str) -> Iterator[Right]:
    """The rights that one folder of the manifests gives."""
    path = MANIFESTS / folder / "rbac.yaml"
    if not path.exists():
        return
    said = iter(reasons(path))
    for one in yaml.safe_load_all(path.read_text()):
        for rule in one.get("rules", ()):
            reason = next(said)
            within = "" if one["kind"] == "ClusterRole" else "in its namespace"
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        yield Right(group=group, resource=resource, verb=verb, within=within, reason=reason)


def reasons(path: Path) -> Iterator[str]:
    """The comment above each rule of a file, empty where there is none."""
    said: list[str] = []
    for line in path.read_text().splitlines():
        if line.strip().startswith("#"):
            said.append(line.strip("# "))
            continue
        if line.startswith("  - apiGroups:"):
            yield " ".join(said)
        said = []


def _section(folder: str, title: str) -> str:
    found = [*dict.fromkeys(_lines(folder))]
    return f"\n## {title[0].upper()}{title[1:]}\n\n| what | which | for |\n| --- | --- | --- |\n" + "".join(found)


def _lines(folder: str) -> Iterator[str]:
    granted: dict[tuple[str, str, str, str], list[str]] = {}
    for right in rights(folder):
        granted.setdefault((right.group, right.resource, right.within, right.reason), []).append(right.verb)
    for (group, resource, within, reason), verbs in granted.items():
        name = f"{resource}.{group}" if group else resource
        yield f"| API | `{name}`: {', '.join(verbs)}{' ' * bool(within)}{within} | {reason} |\n"
    yield from _of_the_pod(folder)


def _of_the_pod(folder: str) -> Iterator[str]:
    path = MANIFESTS / folder / "daemonset.yaml"
    if not path.exists():
        return
    text, pod = path.read_text(), _pod(folder)
    (container,) = pod["containers"]
    volumes = [*_pod("base")["volumes"], *pod.get("volumes", ())]
    hosts = {one["name"]: one["hostPath"]["path"] for one in volumes if "hostPath" in one}
    for mount in container.get("volumeMounts", ()):
        if mount["name"] in hosts:
            how = "read" if mount.get("readOnly") else "written"
            reason = beside(text, f"{{name: {mount['name']}, mountPath: ")
            yield f"| host | `{hosts[mount['name']]}`, {how} | {reason} |\n"
    yield from _of_the_container(text, pod, container.get("securityContext") or {})


def beside(text: str, word: str) -> str:
    """What a file says beside the first line that has a word: at its end, or else above it. Empty for neither."""
    above: list[str] = []
    for line in text.splitlines():
        code, _, said = line.partition("# ")
        if word in code:
            return said or " ".join(above)
        above = [] if code.strip() else [*above, said]
    return ""


def _pod(folder: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load((MANIFESTS / folder / "daemonset.yaml").read_text())
    return found["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def _of_the_container(text: str, pod: Mapping[str, Any], context: Mapping[str, Any]) -> Iterator[str]:
    added = (context.get("capabilities") or {}).get("add", ())
    facts = {
        "privileged: all capabilities, every device node": ("privileged: true", context.get("privileged")),
        "the host's processes (`hostPID`)": ("hostPID: true", pod.get("hostPID")),
        **{f"`CAP_{one}`": (one, True) for one in added},
        "no capability": ("drop: [ALL]", "drop" in (context.get("capabilities") or {})),
        "seccomp `RuntimeDefault`": ("seccompProfile: ", "seccompProfile" in pod.get("securityContext", {})),
        "root file system read-only": ("readOnlyRootFilesystem: true", context.get("readOnlyRootFilesystem")),
    }
    for fact, (word, holds) in facts.items():
        if holds:
            yield f"| container | {fact} | {beside(text, word)} |\n"
