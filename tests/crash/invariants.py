"""What holds on a node whatever has died on it, and what is so again once the agent has come to rest.

``Facts`` is what can be seen from outside: the agent's files, the kubelet's and the API server's memory, the hardware
and the processes. ``contradictions`` is what must not be at any moment, ``disorder`` what must not last. Both judge by
themselves: nothing of the agent's own reasoning about conflicts is used.
"""

import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pynvml

from node_agent.allocation.checkpoint import decode
from node_agent.allocation.grants import Books, Door, Grant, State
from node_agent.cdi.names import transient_of
from node_agent.hardware.simulated import SimulatedNode
from node_agent.sharing.mps.records import Record, Records
from tests.fakes.names import CLAIM_KIND as KIND

WHOLE = range(8)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A GPU or the memory slices of one; ``shared`` is how it is shared, empty where it is had alone."""

    gpu: str
    slices: range = WHOLE
    shared: str = ""

    def collides(self, other: "Unit") -> bool:
        if self.gpu != other.gpu or (self.shared and self.shared == other.shared):
            return False
        return max(self.slices.start, other.slices.start) < min(self.slices.stop, other.slices.stop)


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """How a GPU stands: ``instances`` are its GPU instances, of which those in ``made`` have a compute instance."""

    uuid: str
    exclusive: bool
    mig: bool
    instances: frozenset[tuple[str, int]] = frozenset()
    made: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything at one moment.

    ``prepared`` are the CDI ids that the kubelet has of each claim, by UID, ``doubtful`` the claims of whose last call
    it knows no end. ``pods`` are the units of each pod with limits, ``healthy`` the GPUs that the kubelet would give
    out as a whole, ``tainted`` those whose device of a slice keeps claims away; GPUs in ``out`` are at neither door as
    a whole, whatever the reason. ``cut`` are the GPUs that claims cut. ``specs`` are the documents of the CDI folder by
    file name, ``sockets`` how many there are of each kind that should be there once, ``torn`` files that are not whole.
    """

    books: Books
    specs: Mapping[str, Any]
    gpus: Mapping[str, GpuFacts]
    daemons: Mapping[int, frozenset[str]] = field(default_factory=dict)
    records: Mapping[str, Record] = field(default_factory=dict)
    prepared: Mapping[str, frozenset[str]] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()
    pods: Mapping[str, Collection[Unit]] = field(default_factory=dict)
    healthy: frozenset[str] = frozenset()
    tainted: frozenset[str] = frozenset()
    out: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()
    slices: Collection[Mapping[str, Any]] = ()
    sockets: Mapping[str, int] = field(default_factory=dict)
    torn: Collection[str] = ()

    def claims(self) -> dict[str, Grant]:
        return {uid: grant for uid, grant in self.books.grants.items() if grant.holder.door is Door.CLAIM}


# Reading


def read_books(file: Path) -> Books:
    """The ledger's file; it can always be read, whoever died while it was written."""
    return decode(file.read_bytes()) if file.exists() else Books()


def read_specs(folder: Path) -> dict[str, Any]:
    """All that a runtime reads in the CDI folder; each is whole at any moment."""
    found = {}
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):
            found[path.name] = json.loads(path.read_text())
    return found


def read_gpus(node: SimulatedNode, count: int) -> dict[str, GpuFacts]:
    """How the simulated GPUs stand."""
    return {gpu.uuid: _gpu(gpu) for gpu in map(node.faults.gpu, range(count))}


def _gpu(gpu: Any) -> GpuFacts:
    lying = gpu.mig.instances.values() if gpu.mig is not None else ()
    return GpuFacts(
        uuid=gpu.uuid,
        exclusive=gpu.compute_mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
        mig=gpu.mig_enabled,
        instances=frozenset((one.profile.name, one.start) for one in lying),
        made=frozenset((one.profile.name, one.start) for one in lying if one.compute),
    )


def read_daemons(folder: Path) -> dict[int, frozenset[str]]:
    """The MPS control daemons that serve a pipe below a folder, by pid, with the devices of each."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "comm").read_text().strip() != "nvidia-cuda-mps-control"[:15]:
                continue
            pairs = (one.partition(b"=") for one in (process / "environ").read_bytes().split(b"\0"))
            environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
            if environment.get("CUDA_MPS_PIPE_DIRECTORY", "").startswith(f"{folder}/"):
                found[int(process.name)] = frozenset(environment.get("CUDA_VISIBLE_DEVICES", "").split(","))
    return found


def read_records(state: Path) -> dict[str, Record]:
    return Records(state / "mps").all() if (state / "mps").exists() else {}


def torn(folders: Collection[Path]) -> list[str]:
    """The JSON files that are not whole."""
    return [str(path) for folder in folders for path in folder.glob("**/*.json") if not _whole(path)]


def _whole(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    except FileNotFoundError:
        pass  # replaced or removed just now
    return True


# At any moment


def contradictions(facts: Facts) -> list[str]:
    """What nobody may find, however short after a death: a GPU given out twice, a container that cannot start."""
    return [*_given_twice(facts), *_unresolved(facts), *(f"{path} is half a file" for path in facts.torn)]


def _given_twice(facts: Facts) -> Iterator[str]:
    """By the kubelet's memory: what its claims and pods have."""
    held = {f"pod {pod}": list(units) for pod, units in facts.pods.items()}
    for uid in facts.prepared:
        grant = facts.books.grants.get(uid)
        if grant is None:
            yield f"claim {uid} is prepared, and the ledger knows nothing of it"
        else:
            held[f"claim {uid}"] = units_of(grant)
    for (one, ours), (other, theirs) in combinations(held.items(), 2):
        for mine, its in ((mine, its) for mine in ours for its in theirs if mine.collides(its)):
            yield f"{one} has {mine}, and {other} has {its}"


def units_of(grant: Grant) -> list[Unit]:
    """What a grant takes; admin access takes nothing."""
    return [
        Unit(gpu=place.gpu, slices=_slices(place), shared=f"claims {hold.mode}" if hold.share_id else "")
        for hold in grant.holds
        if not hold.admin
        for place in hold.places
    ]


def _slices(place: Any) -> range:
    if place.part is None:
        return WHOLE
    start = place.part.placement.start
    return range(start, start + place.part.placement.length)


def _unresolved(facts: Facts) -> Iterator[str]:
    """A runtime finds each id that it is given in exactly one file, and every node and file that this names."""
    defined = defaultdict(list)
    for name, spec in facts.specs.items():
        for device in spec["devices"]:
            defined[f"{spec['kind']}={device['name']}"].append((name, device["containerEdits"]))
    for uid, ids in facts.prepared.items():
        for one in ids:
            if len(defined[one]) != 1:
                yield f"claim {uid} was given {one}, which {len(defined[one])} files define"
            for name, edits in defined[one]:
                yield from (f"{name} names {path}, which is not there" for path in missing(edits))


def missing(edits: Mapping[str, Any]) -> list[str]:
    """The paths of the host that edits name and that are not there."""
    nodes = [node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", ())]
    mounts = [mount["hostPath"] for mount in edits.get("mounts", ())]
    return sorted(path for path in {*nodes, *mounts} if not Path(path).exists())


# At rest


def disorder(facts: Facts) -> list[str]:
    """What must not last: one part of the node knows something other than another."""
    return [
        *contradictions(facts),
        *_claims(facts),
        *_specs(facts),
        *_doors(facts),
        *_partitions(facts),
        *_daemons(facts),
        *_slice_set(facts),
        *(f"{count} sockets for {what}" for what, count in facts.sockets.items() if count != 1),
    ]


def _claims(facts: Facts) -> Iterator[str]:
    """No grant is forgotten, and none is nobody's."""
    for uid, ids in facts.prepared.items():
        grant = facts.books.grants.get(uid)
        has = frozenset(one for hold in grant.holds for one in hold.cdi_ids) if grant else frozenset()
        if grant is not None and (grant.state is not State.PREPARED or has != ids):
            yield f"claim {uid}: the kubelet has {sorted(ids)}, the ledger {grant.state} {sorted(has)}"
    for uid in facts.claims().keys() - facts.prepared.keys() - facts.doubtful:
        yield f"claim {uid} holds devices, and nobody has asked for it"
    if facts.books.unreconciled:
        yield f"who holds what is not known: {sorted(facts.books.unreconciled)}"


def _specs(facts: Facts) -> Iterator[str]:
    """No file without a grant, no grant without a file."""
    written = {transient_of(KIND, name) for name in facts.specs} - {None}
    ready = {uid for uid, grant in facts.claims().items() if grant.state is State.PREPARED}
    yield from (f"claim {uid} has a CDI spec and no grant" for uid in written - facts.claims().keys())
    yield from (f"claim {uid} has a grant and no CDI spec" for uid in ready - written)


def _doors(facts: Facts) -> Iterator[str]:
    """What one door has given out the other does not offer, and what nobody has both do."""
    claimed = {unit.gpu for grant in facts.claims().values() for unit in units_of(grant)}
    limited = {unit.gpu for units in facts.pods.values() for unit in units}
    for gpu in facts.gpus.keys() - facts.out:
        if gpu in facts.healthy and gpu in claimed:
            yield f"{gpu} is offered to pods with limits, and a claim has it"
        if gpu not in facts.healthy and gpu not in claimed:
            yield f"{gpu} is offered to no pod, and no claim has it"
        if gpu not in facts.tainted and gpu in limited:
            yield f"{gpu} is offered to claims, and a pod has it by its limits"
        if gpu in facts.tainted and gpu not in limited:
            yield f"{gpu} is kept from claims, and no pod has it"


def _partitions(facts: Facts) -> Iterator[str]:
    """On GPUs that claims cut lies what claims hold, and MIG is on only there; a claim that is in doubt may lack it."""
    for uuid in facts.cut:
        gpu, wanted, possible = facts.gpus[uuid], set[tuple[str, int]](), set[tuple[str, int]]()
        for grant in facts.claims().values():
            parts = [
                (p.part.profile, p.part.placement.start)
                for h in grant.holds
                for p in h.places
                if p.gpu == uuid and p.part
            ]
            (possible if grant.state is State.PREPARING else wanted).update(parts)
        if not wanted <= gpu.made or not gpu.instances <= wanted | possible:
            yield f"{uuid} has {sorted(gpu.instances)} (usable: {sorted(gpu.made)}), claims have {sorted(wanted)}"
        if gpu.mig and not wanted | possible:
            yield f"{uuid} is in MIG mode for nobody"


def _daemons(facts: Facts) -> Iterator[str]:
    """A daemon for each record with users, none beside, and the exclusive mode exactly where one is."""
    wanted = {frozenset(record.devices) for record in facts.records.values() if record.users}
    running = list(facts.daemons.values())
    for devices in {*running, *wanted}:
        if running.count(devices) != (devices in wanted):
            yield f"{running.count(devices)} daemons run for {sorted(devices)}, records want {int(devices in wanted)}"
    for record in facts.records.values():
        if not record.users:
            yield f"the record of an MPS daemon of {record.devices} stays without users"
    served = {device for devices in wanted for device in devices}
    for gpu in facts.gpus.values():
        if gpu.exclusive != (gpu.uuid in served):
            yield f"{gpu.uuid} is {'' if gpu.exclusive else 'not '}in exclusive mode, and MPS serves {sorted(served)}"


def _slice_set(facts: Facts) -> Iterator[str]:
    """The slices are one whole pool, each device once."""
    pools = [one["spec"]["pool"] for one in facts.slices]
    names = [device["name"] for one in facts.slices for device in one["spec"].get("devices", ())]
    if len({pool["generation"] for pool in pools}) != 1 or any(p["resourceSliceCount"] != len(pools) for p in pools):
        yield f"the slices are no whole pool: {pools}"
    if len(set(names)) < len(names):
        yield f"a device is published twice: {sorted(names)}"
