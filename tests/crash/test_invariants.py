"""Each invariant finds what it is there for: one thing is put out of order at a time."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node_agent.allocation.grants import Books, Door, Grant, Hold, Holder, State
from node_agent.cdi.names import file_name
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import Part, Placement
from node_agent.sharing.mps.plan import Limits
from node_agent.sharing.mps.records import Record
from tests.crash.invariants import Facts, GpuFacts, Unit, contradictions, disorder, read_daemons, torn
from tests.fakes.builders import uuid
from tests.fakes.names import CLAIM_KIND as KIND

ONE, OTHER = uuid(0), uuid(1)


def grant(uid: str, gpu: GpuUuid, *, start: int | None = None, state: State = State.PREPARED) -> Grant:
    part = None if start is None else Part(profile="3g.71gb", placement=Placement(start=start, length=4))
    hold = Hold(device="d", gpus=(gpu,), part=part, cdi_ids=(f"{KIND}={uid}-d",))
    return Grant(holder=Holder(door=Door.CLAIM, id=uid, name=uid), holds=(hold,), state=state)


def books(*grants: Grant) -> Books:
    return Books(grants={one.holder.id: one for one in grants})


def spec(uid: str, **edits: Any) -> dict[str, Any]:
    """The file of a claim."""
    return {file_name(KIND, uid): {"kind": KIND, "devices": [{"name": f"{uid}-d", "containerEdits": edits}]}}


def slices(*names: str, generation: int = 1, count: int = 1) -> list[dict[str, Any]]:
    pool = {"name": "node", "generation": generation, "resourceSliceCount": count}
    return [{"spec": {"pool": pool, "devices": [{"name": name} for name in names]}}]


WELL = Facts(
    books=books(grant("a", ONE)),
    specs=spec("a"),
    gpus={gpu: GpuFacts(uuid=gpu, exclusive=False, mig=False) for gpu in (ONE, OTHER)},
    prepared={"a": frozenset({f"{KIND}=a-d"})},
    healthy=frozenset({OTHER}),
    slices=slices("gpu-0", "gpu-1"),
    sockets={"the driver": 1},
)
CUT = replace(
    WELL,
    books=books(grant("a", ONE, start=4)),
    cut=frozenset({ONE}),
    gpus={
        ONE: GpuFacts(
            uuid=ONE,
            exclusive=False,
            mig=True,
            instances=frozenset({("3g.71gb", 4)}),
            made=frozenset({("3g.71gb", 4)}),
        ),
        OTHER: WELL.gpus[OTHER],
    },
)
RECORD = Record(devices=(ONE,), users={"claim a": Limits()})
SERVED = replace(
    WELL,
    records={"k": RECORD},
    daemons={7: frozenset({ONE})},
    gpus={**WELL.gpus, ONE: replace(WELL.gpus[ONE], exclusive=True)},
)


@pytest.mark.parametrize("facts", [WELL, CUT, SERVED])
def test_a_node_in_order_is_found_to_be(facts: Facts) -> None:
    assert disorder(facts) == []


def test_claims_have_pieces_of_one_gpu_side_by_side() -> None:
    both = replace(
        CUT,
        books=books(grant("a", ONE, start=0), grant("b", ONE, start=4)),
        prepared={"a": frozenset({f"{KIND}=a-d"}), "b": frozenset({f"{KIND}=b-d"})},
        specs=spec("a") | spec("b"),
    )
    assert contradictions(both) == []


DOUBLE = [
    (
        replace(
            WELL, books=books(grant("a", ONE), grant("b", ONE, start=0)), prepared={"a": frozenset(), "b": frozenset()}
        ),
        "claim a has Unit",
    ),
    (replace(WELL, pods={"p": [Unit(gpu=ONE)]}), "pod p has Unit"),
    (replace(WELL, pods={"p": [Unit(gpu=OTHER)], "q": [Unit(gpu=OTHER, shared="limits")]}), "pod p has Unit"),
    (replace(WELL, books=Books()), "the ledger knows nothing of it"),
    (replace(WELL, specs={}), "which 0 files define"),
    (replace(WELL, specs=spec("a") | {"copy.json": spec("a")[file_name(KIND, "a")]}), "which 2 files define"),
    (replace(WELL, specs=spec("a", deviceNodes=[{"path": "/dev/none"}])), "names /dev/none, which is not there"),
    (replace(WELL, specs=spec("a", mounts=[{"hostPath": "/none"}])), "names /none, which is not there"),
    (replace(WELL, torn=["/state/x.json"]), "/state/x.json is half a file"),
]


@pytest.mark.parametrize(("facts", "words"), DOUBLE)
def test_what_must_never_be_is_told(facts: Facts, words: str) -> None:
    assert any(words in one for one in contradictions(facts)), contradictions(facts)


LASTING = [
    (replace(WELL, books=books(grant("a", ONE, state=State.PREPARING))), "claim a: the kubelet has"),
    (replace(WELL, prepared={"a": frozenset({f"{KIND}=a-d", "another"})}), "claim a: the kubelet has"),
    (replace(WELL, prepared={}), "claim a holds devices, and nobody has asked for it"),
    (
        replace(WELL, books=msgspec.structs.replace(WELL.books, unreconciled=frozenset({Door.CLAIM}))),
        "who holds what is not known",
    ),
    (replace(WELL, specs=spec("a") | spec("b")), "claim b has a CDI spec and no grant"),
    (replace(WELL, prepared={}, doubtful=frozenset({"a"}), specs={}), "claim a has a grant and no CDI spec"),
    (replace(WELL, healthy=frozenset({ONE, OTHER})), "is offered to pods with limits, and a claim has it"),
    (replace(WELL, healthy=frozenset()), "is offered to no pod, and no claim has it"),
    (replace(WELL, pods={"p": [Unit(gpu=OTHER)]}), "is offered to claims, and a pod has it by its limits"),
    (replace(WELL, tainted=frozenset({OTHER})), "is kept from claims, and no pod has it"),
    (replace(CUT, gpus=WELL.gpus), "claims have [('3g.71gb', 4)]"),
    (replace(CUT, gpus={**CUT.gpus, ONE: replace(CUT.gpus[ONE], made=frozenset())}), "(usable: [])"),
    (
        replace(CUT, books=Books(), prepared={}, specs={}, healthy=frozenset({ONE, OTHER})),
        "is in MIG mode for nobody",
    ),
    (replace(SERVED, daemons={}), "0 daemons run for"),
    (replace(SERVED, daemons={7: frozenset({ONE}), 8: frozenset({ONE})}), "2 daemons run for"),
    (replace(SERVED, records={}), "records want 0"),
    (replace(SERVED, records={"k": msgspec.structs.replace(RECORD, users={})}, daemons={}), "stays without users"),
    (replace(SERVED, gpus=WELL.gpus), "is not in exclusive mode"),
    (replace(WELL, gpus=SERVED.gpus), "is in exclusive mode"),
    (replace(WELL, slices=slices("gpu-0", "gpu-0")), "a device is published twice"),
    (replace(WELL, slices=slices("gpu-0", count=2)), "the slices are no whole pool"),
    (replace(WELL, slices=[*slices("a", count=2), *slices("b", generation=2, count=2)]), "are no whole pool"),
    (replace(WELL, sockets={"the driver": 2}), "2 sockets for the driver"),
]


@pytest.mark.parametrize(("facts", "words"), LASTING)
def test_what_must_not_last_is_told(facts: Facts, words: str) -> None:
    assert any(words in one for one in disorder(facts)), disorder(facts)


def test_what_is_out_of_service_is_at_no_door() -> None:
    assert disorder(replace(WELL, healthy=frozenset(), out=frozenset({OTHER}))) == []


def test_half_a_file_is_told_from_a_whole_one_and_from_one_that_is_being_written(tmp_path: Path) -> None:
    (tmp_path / "whole.json").write_text("{}")
    (tmp_path / "half.json").write_text('{"a":')
    (tmp_path / ".whole.json.abcd1234").write_text("")
    assert torn([tmp_path]) == [str(tmp_path / "half.json")]


def test_a_daemon_is_known_by_its_name_and_by_its_pipe(tmp_path: Path) -> None:
    program = "import sys; open('/proc/self/comm','w').write('nvidia-cuda-mps-control'[:15]); print(); sys.stdin.read()"
    environment = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/k/pipe",
        "CUDA_VISIBLE_DEVICES": f"{ONE},{OTHER}",
    }
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        assert read_daemons(tmp_path) == {daemon.pid: frozenset({ONE, OTHER})}
        assert read_daemons(tmp_path / "elsewhere") == {}
        daemon.communicate()
    assert read_daemons(tmp_path) == {}
