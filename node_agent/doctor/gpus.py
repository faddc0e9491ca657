"""The GPUs themselves: those that are missing, what is wrong with the others, the fabric that joins them, and MIG."""

from collections.abc import Iterator, Mapping

from node_agent.agent.health import policy
from node_agent.agent.live import selection_of
from node_agent.doctor.finding import Finding, failed, ok, or_ok, skipped, warning
from node_agent.doctor.place import Place
from node_agent.health.findings import Finding as Wrong
from node_agent.health.rules import Policy
from node_agent.model.gpu import Gpu, GpuUuid, PartitionMode
from node_agent.model.health import Reason, Severity

Wrongs = Mapping[GpuUuid, tuple[Wrong, ...] | str]
"""What a look at each GPU found; a text where it did not answer."""

_OF_FABRIC = (Reason.FABRIC, Reason.FABRIC_JOINING)


def present(place: Place) -> Iterator[Finding]:
    """Whether every GPU that the driver counts can be read."""
    found = place.inventory
    if found.problem is not None:
        yield skipped("gpus.present", "the driver cannot be asked")
        return
    for one in found.missing:
        yield failed(
            "gpus.present",
            f"the GPU with index {one.index} cannot be read: {one.reason}",
            one.uuid or "",
            fix=f"{_RESET}; if it does not come back, replace it",
        )
    if not found.missing and found.gpus:
        yield ok("gpus.present", f"{len(found.gpus)} GPUs: {', '.join(sorted({gpu.product for gpu in found.gpus}))}")
    if not found.missing and not found.gpus:
        yield warning(
            "gpus.present", "the driver lists no GPU", fix="see driver.bound: is a GPU there, and bound to its driver?"
        )


def excluded(place: Place) -> Iterator[Finding]:
    """Which GPUs are somebody else's to give out."""
    left = selection_of(place.settings).left_to_others(place.inventory)
    if left:
        names = ", ".join(gpu.name for gpu in left)
        yield ok("gpus.excluded", f"left to others: {names}", "agent.devices.exclude")
    else:
        yield skipped("gpus.excluded", "no GPU here is left to others")


def health(place: Place, wrongs: Wrongs) -> Iterator[Finding]:
    """What each GPU says of itself, as the health watch would judge it."""
    if not place.inventory.gpus:
        yield skipped("gpus.health", "there is no GPU to ask")
        return
    rules = policy(place.settings)
    found = [finding for gpu in place.inventory.gpus for finding in _of_gpu(gpu, wrongs.get(gpu.uuid, ()), rules)]
    yield from or_ok(found, "gpus.health", "no GPU reports trouble")


def _of_gpu(gpu: Gpu, wrongs: tuple[Wrong, ...] | str, rules: Policy) -> Iterator[Finding]:
    if isinstance(wrongs, str):
        yield failed("gpus.health", f"{gpu.name} does not answer: {wrongs}", gpu.uuid, fix=_RESET)
        return
    for wrong in wrongs:
        if wrong.reason not in _OF_FABRIC:
            out = rules.decide(wrong.reason, wrong.code).severity >= Severity.WITHDRAWN
            say = failed if out else warning
            yield say("gpus.health", f"{gpu.name}: {wrong.message}", gpu.uuid, fix=_FIXES.get(wrong.reason, _RESET))


_RESET = "drain the GPU and reset it (nvidia-smi -r -i …), or reboot the node"
_FIXES = {
    Reason.ROW_REMAP: "replace the board",
    Reason.RETIRED_PAGES: "replace the board",
    Reason.PCIE: "see to the slot, the riser and the cables",
    Reason.THERMAL: "see to the cooling",
    Reason.POWER: "see to the power supply and the cables",
    Reason.NVLINK: "see to the NVLink bridge or the switches, then reset the GPU; nvidia-smi nvlink -s shows the links",
}


def fabric(place: Place, wrongs: Wrongs) -> Iterator[Finding]:
    """Whether GPUs behind NVSwitches have joined their fabric, which the fabric manager brings up."""
    links = place.inventory.links.links.values()
    if not any(link.switched for link in links):
        yield skipped("gpus.fabric", "no NVSwitch joins the GPUs")
        return
    found = [
        failed("gpus.fabric", f"{gpu.name}: {wrong.message}", gpu.uuid, fix=_FABRIC_FIX)
        for gpu in place.inventory.gpus
        for wrong in _listed(wrongs.get(gpu.uuid, ()))
        if wrong.reason in _OF_FABRIC
    ]
    if silent := [gpu.name for gpu in place.inventory.gpus if isinstance(wrongs.get(gpu.uuid), str)]:
        found.append(skipped("gpus.fabric", f"{', '.join(silent)} cannot be asked"))
    yield from or_ok(found, "gpus.fabric", "every GPU has joined its NVLink fabric")


_FABRIC_FIX = "start nvidia-fabricmanager of the driver's own version on the host; its log says what it waits for"


def _listed(wrongs: tuple[Wrong, ...] | str) -> tuple[Wrong, ...]:
    return () if isinstance(wrongs, str) else wrongs


def mig(place: Place) -> Iterator[Finding]:
    """Whether the MIG mode that is set is the one in force."""
    modes = {gpu.name: gpu.partition_mode for gpu in place.inventory.gpus if gpu.partition_mode is not None}
    if not modes:
        yield skipped("gpus.mig", "no GPU here can be cut into MIG devices")
        return
    pending = {PartitionMode.ENABLE_PENDING: "on", PartitionMode.DISABLE_PENDING: "off"}
    found = [
        warning(
            "gpus.mig",
            f"{name}: MIG mode is to be turned {pending[mode]}, which waits for a reset",
            name,
            fix="drain the GPU and reset it (nvidia-smi -r -i …), or reboot the node",
        )
        for name, mode in modes.items()
        if mode in pending
    ]
    for uuid, why in place.inventory.unlisted.items():
        what = f"{place.inventory.by_uuid[uuid].name}: its MIG devices cannot be listed: {why}"
        found.append(failed("gpus.mig", what, uuid, fix=_RESET))
    devices = len(place.inventory.partitions)
    active = sum(mode.active for mode in modes.values())
    yield from or_ok(
        found, "gpus.mig", f"MIG mode is on for {active} of {len(modes)} GPUs that have it, {devices} MIG devices"
    )
