"""What the running agent says of itself, part by part."""

from collections.abc import Iterator

from node_agent import __version__
from node_agent.doctor.finding import Finding, failed, ok, or_ok, skipped, warning
from node_agent.doctor.place import Place
from node_agent.reporting.parts import PartState, PartStatus
from node_agent.reporting.status import Status

_FIXES = {
    "services": "its log says more; the agent starts them again by itself",
    "library": "see driver.library",
    "driver": "see driver.module and driver.library",
    "devices": "node-agent health says what ends it",
    "cdi": "see cdi.folder and driver.version",
    "registration": "see kubelet.device-plugins and the kubelet's log",
    "claims": "see kubelet.registry, and that the kubelet serves DRA (Kubernetes 1.34 or later)",
    "slices": "see cluster.server, cluster.rights and cluster.claims",
    "mps": "see docs/user/sharing.md; node-agent status names the GPU",
    "mig": "see gpus.mig",
}


def agent(status: Status | None, why: str) -> Iterator[Finding]:
    """Whether an agent runs, and whether it is of this version."""
    if status is None:
        yield warning("running.agent", f"no agent runs here: {why}", fix="start it, or name its socket by --socket")
        return
    said = f"node-agent {status.version} runs and is {status.phase}"
    if status.version != __version__:
        fix = "use the doctor of the agent's own image: kubectl exec … -- node-agent doctor"
        yield warning("running.agent", f"{said}; this is {__version__}", fix=fix)
    else:
        yield ok("running.agent", said)


def parts(place: Place) -> Iterator[Finding]:
    """How each part of the running agent stands."""
    for part in place.status.parts if place.status is not None else ():
        check, what = f"running.{part.name}", "; ".join(part.messages) or part.reason
        fix = _FIXES.get(part.name, "the agent's log says more")
        if part.state.blocks:
            yield failed(check, what, fix=fix)
        elif part.state is PartState.DEGRADED:
            yield warning(check, what, fix=fix)
        else:
            yield _calm(check, part)


def _calm(check: str, part: PartStatus) -> Finding:
    return skipped(check, part.reason) if part.state is PartState.OFF else ok(check, part.reason)


def configuration(place: Place) -> Iterator[Finding]:
    """Whether the newest configuration is in force."""
    config = place.status.config if place.status is not None else None
    if config is None:
        return
    found = []
    if config.trouble:
        fix = "mend it: node-agent config check says what is wrong with a file"
        found.append(failed("running.configuration", f"it was refused: {config.trouble}", config.source, fix=fix))
    if config.after_restart:
        keys = ", ".join(config.after_restart)
        what = f"in force only after a restart: {keys}"
        found.append(warning("running.configuration", what, config.source, fix="restart the agent"))
    yield from or_ok(found, "running.configuration", "the newest configuration is in force", config.source)
