"""The kubelet's sockets, and what it knows of the agent's devices."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from node_agent.agent.live import selection_of
from node_agent.doctor.finding import Finding, failed, ok, or_ok, skipped, warning
from node_agent.doctor.place import Place, answers
from node_agent.kubelet import podresources

Listed = Mapping[str, frozenset[str]] | str
"""The ids of the devices that the kubelet has, by resource; a text where it does not tell."""


def sockets(place: Place) -> Iterator[Finding]:
    """Whether the kubelet listens where plugins register, and where it tells who holds what."""
    wanted = {"pod-resources": place.kubelet / podresources.SOCKET}
    if place.settings.device_plugin:
        wanted = {"device-plugins": place.kubelet / "device-plugins/kubelet.sock", **wanted}
    for name, path in wanted.items():
        if answers(path):
            yield ok(f"kubelet.{name}", "the kubelet listens", path)
        else:
            yield failed(f"kubelet.{name}", _silence(path), path, fix=_MOUNT.format(folder=path.parent))


_MOUNT = "see that the kubelet runs (systemctl status kubelet); in a container mount the host's {folder} there"


def _silence(path: Path) -> str:
    if not path.parent.is_dir():
        return "the folder of the kubelet's socket is not there"
    return "nobody listens on the kubelet's socket" if path.exists() else "the kubelet's socket is not there"


def registry(place: Place) -> Iterator[Finding]:
    """The folder in which DRA drivers announce themselves."""
    path = place.kubelet / "plugins_registry"
    if place.settings.dra is False and place.settings.registration != "watcher":
        yield skipped("kubelet.registry", "nothing is announced there as it is configured", path)
    elif path.is_dir():
        yield ok("kubelet.registry", "the kubelet's folder for announcements is there", path)
    else:
        fix = _MOUNT.format(folder=path)
        say = failed if place.settings.dra is True or place.settings.registration == "watcher" else warning
        yield say("kubelet.registry", "the kubelet's folder for announcements is not there", path, fix=fix)


def registration(place: Place, listed: Listed) -> Iterator[Finding]:
    """Whether the kubelet has the devices that the configuration offers, and whether they are the agent's."""
    if not place.settings.device_plugin:
        yield skipped("kubelet.registration", "limits are not served as it is configured")
        return
    if isinstance(listed, str):
        yield skipped("kubelet.registration", f"the kubelet does not tell what it has: {listed}")
        return
    expected = {one.resource for one in selection_of(place.settings).forms(place.inventory).values()}
    yield from or_ok(
        (found for resource in sorted(expected) for found in _of_resource(place, resource, listed.get(resource))),
        "kubelet.registration",
        f"the kubelet has {', '.join(f'{len(listed.get(one, ()))} {one}' for one in sorted(expected)) or 'nothing'}",
    )


def _of_resource(place: Place, resource: str, ids: frozenset[str] | None) -> Iterator[Finding]:
    if not ids:
        running = place.status is not None
        fix = (
            "see running.registration above for what the agent says, and the kubelet's log"
            if running
            else "start the agent: it registers within a second"
        )
        say = failed if running else warning
        yield say("kubelet.registration", f"the kubelet has no {resource}", fix=fix)
        return
    known = {gpu.uuid for gpu in place.inventory.gpus}
    foreign = sorted(one for one in ids if one.partition("::")[0] not in known and not one.startswith("MIG-"))
    if foreign and place.settings.device_id_strategy == "uuid":
        yield failed(
            "kubelet.registration",
            f"the kubelet's {resource} has devices that are none of this node's, such as {foreign[0]}",
            fix="another device plugin serves the same name: see owners.device-plugin, and run only one of the two",
        )
