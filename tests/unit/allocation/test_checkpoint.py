"""The file says exactly what was written, or that it does not; it is never half of anything."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from node_agent.allocation.checkpoint import VERSION, Checkpoint, decode, encode
from node_agent.allocation.grants import Books, Door, Grant, Hold, Holder, Notes, State
from node_agent.errors import CheckpointDamaged, StateError
from node_agent.kit.sealed import seal
from node_agent.model.partition import Part, Placement
from tests.fakes.builders import uuid
from tests.unit.allocation.support import LEDGER, grant

BOOKS = Books(
    grants={
        one.holder.id: one
        for one in (
            replace(grant("a", 0, 1, state=State.PREPARED), boot_id="boot-1", steps={"setting": {"was": 3}}, since=1.5),
            replace(grant("b", 2, share_id="0f0e"), steps={"first": {}, "second": {"deep": {"er": [1, None]}}}),
            grant("c", 3, door=Door.LIMIT, admin=True),
        )
    },
    unreconciled=frozenset({Door.LIMIT}),
)

words = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
any_holds = st.builds(
    Hold,
    device=words,
    gpus=st.lists(st.integers(0, 7).map(uuid), min_size=1, max_size=1).map(tuple),
    part=st.none()
    | st.builds(
        Part,
        profile=words,
        placement=st.builds(Placement, start=st.integers(0, 7), length=st.integers(1, 8)),
        computes=st.none() | st.tuples(st.integers(0, 6), st.integers(1, 7)),
    ),
    request=words,
    pool=words,
    share_id=st.none() | words,
    admin=st.booleans(),
    cdi_ids=st.lists(words, max_size=2).map(tuple),
)
whole_holds = st.builds(
    Hold, device=words, gpus=st.lists(st.integers(0, 7).map(uuid), min_size=1, unique=True).map(tuple)
)
any_grants = st.builds(
    Grant,
    holder=st.builds(Holder, door=st.sampled_from(Door), id=st.text(min_size=1, max_size=9), name=words),
    holds=st.lists(any_holds | whole_holds, min_size=1, max_size=3).map(tuple),
    state=st.sampled_from(State),
    boot_id=words,
    since=st.floats(0, 2**40),
    steps=st.dictionaries(words, st.dictionaries(words, json_values, max_size=2), max_size=2),
)
any_books = st.builds(
    Books,
    grants=st.lists(any_grants, max_size=5).map(lambda found: {one.holder.id: one for one in found}),
    unreconciled=st.frozensets(st.sampled_from(Door)),
)


@given(any_books)
def test_what_is_read_is_what_was_written(books: Books) -> None:
    assert decode(encode(books)) == books


def test_a_file_from_before_there_were_parts_is_of_whole_gpus() -> None:
    old = json.loads(encode(BOOKS))
    payload = old["payload"]
    for one in payload["grants"]:
        for hold in one["holds"]:
            del hold["part"]
    books = decode(seal(json.dumps(payload).encode(), VERSION))
    assert books == BOOKS


def test_steps_keep_their_order() -> None:
    steps: dict[str, Notes] = {name: {} for name in ("z", "a", "m")}
    books = Books(grants={"a": replace(grant("a", 0), holder=Holder(door=Door.CLAIM, id="a", name="a"), steps=steps)})
    assert list(decode(encode(books)).grants["a"].steps) == ["z", "a", "m"]


def test_the_file_is_one_json_document_with_its_version_outside() -> None:
    document = json.loads(encode(BOOKS))
    assert set(document) == {"version", "checksum", "payload"}
    assert document["version"] == VERSION
    assert [one["holder"]["name"] for one in document["payload"]["grants"]] == ["a", "b", "c"]


@given(st.integers(0, len(encode(BOOKS)) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_noticed_or_changes_nothing(place: int, bit: int) -> None:
    content = bytearray(encode(BOOKS))
    content[place] ^= 1 << bit
    try:
        assert decode(bytes(content)) == BOOKS
    except CheckpointDamaged:
        return
    # Only white space between the parts may differ.
    assert json.loads(bytes(content)) == json.loads(encode(BOOKS))


@given(st.integers(0, len(encode(BOOKS)) - 2))
def test_a_file_that_was_cut_is_noticed(length: int) -> None:
    with pytest.raises(CheckpointDamaged):
        decode(encode(BOOKS)[:length])


@given(st.binary(max_size=60))
def test_no_content_does_worse_than_being_damaged(content: bytes) -> None:
    with pytest.raises(CheckpointDamaged):
        decode(content)


def rewritten(change: str, value: object) -> bytes:
    """The books with a key of the envelope changed, and a checksum that fits."""
    return json.dumps(json.loads(encode(BOOKS)) | {change: value}).encode()


@pytest.mark.parametrize("version", [0, VERSION + 1, 99])
def test_another_version_is_not_guessed_at(version: int) -> None:
    with pytest.raises(CheckpointDamaged, match=f"version {version}"):
        decode(rewritten("version", version))


def test_a_payload_whose_checksum_is_of_another_one_is_noticed() -> None:
    with pytest.raises(CheckpointDamaged, match="checksum"):
        decode(rewritten("payload", {"grants": []}))


def with_payload(payload: str) -> bytes:
    """A file as another minor version would write it: any payload, with a checksum that fits."""
    checksum = f"sha256:{hashlib.sha256(payload.encode()).hexdigest()}"
    return f'{{"version": {VERSION}, "checksum": "{checksum}", "by": "another", "payload": {payload}}}'.encode()


def test_a_newer_minor_version_may_write_keys_that_are_not_known_here() -> None:
    document = json.loads(encode(BOOKS))["payload"]
    document["new"] = {"any": "thing"}
    document["grants"][0]["new"] = 1
    document["grants"][0]["holder"]["new"] = 2
    document["grants"][0]["holds"][0]["new"] = [3]
    assert decode(with_payload(json.dumps(document, indent=3))) == BOOKS


def test_an_older_minor_version_may_lack_whatever_has_a_default() -> None:
    least = {"holder": {"door": "claim", "id": "u", "name": "ns/c"}, "holds": [{"device": "gpu-0", "gpus": ["GPU-0"]}]}
    (found,) = decode(with_payload(json.dumps({"grants": [least]}))).grants.values()
    assert (found.state, found.boot_id, found.steps) == (State.PREPARING, "", {})


@pytest.mark.parametrize(
    "payload",
    [
        '{"grants": [{}]}',
        '{"grants": {"u": 1}}',
        '{"grants": [{"holder": {"door": "window", "id": "u", "name": "c"}, "holds": []}]}',
        '{"grants": [{"holder": {"door": "claim", "id": "u", "name": "c"}, "holds": []}]}',
        '{"unreconciled": ["window"]}',
        "[]",
    ],
)
def test_a_payload_that_makes_no_sense_is_damage_even_with_a_good_checksum(payload: str) -> None:
    with pytest.raises(CheckpointDamaged, match="not the JSON of a checkpoint"):
        decode(with_payload(payload))


def test_where_there_is_no_file_nothing_is_read(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / LEDGER).read() is None


def test_what_was_saved_is_read_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / LEDGER).save(BOOKS) == encode(BOOKS)
    assert Checkpoint(tmp_path / LEDGER).read() == encode(BOOKS)
    assert (tmp_path / LEDGER).stat().st_mode & 0o777 == 0o600


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (f".{LEDGER}.x81h", ".other.json.x81h", "names.json", f"{LEDGER}.damaged-1"):
        (tmp_path / name).write_text("part")
    Checkpoint(tmp_path / LEDGER).save(BOOKS)
    Checkpoint(tmp_path / LEDGER).clear_away()
    assert Checkpoint(tmp_path / LEDGER).read() == encode(BOOKS)
    assert set(os.listdir(tmp_path)) == {LEDGER, ".other.json.x81h", "names.json", f"{LEDGER}.damaged-1"}


def test_a_file_that_cannot_be_read_says_where_and_why(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    with pytest.raises(StateError, match=rf"cannot read who holds which GPU from {tmp_path}/{LEDGER}: Is a directory"):
        Checkpoint(tmp_path / LEDGER).read()


def test_a_save_that_fails_says_where_and_why_and_keeps_the_last_books(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "gone" / LEDGER)
    with pytest.raises(
        StateError, match=rf"cannot write who holds which GPU to {tmp_path}/gone/{LEDGER}: No such file"
    ):
        checkpoint.save(BOOKS)


def test_a_damaged_file_is_kept_under_another_name_and_stays_until_the_next_save(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / LEDGER)
    (tmp_path / LEDGER).write_text("what?")
    assert checkpoint.set_aside() == tmp_path / f"{LEDGER}.damaged-1"
    assert (tmp_path / LEDGER).read_text() == "what?"
    checkpoint.save(BOOKS)
    assert checkpoint.read() == encode(BOOKS)
    assert (tmp_path / f"{LEDGER}.damaged-1").read_text() == "what?"


def test_setting_the_same_file_aside_again_makes_no_second_copy(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text("what?")
    assert Checkpoint(tmp_path / LEDGER).set_aside() == Checkpoint(tmp_path / LEDGER).set_aside()
    assert len(os.listdir(tmp_path)) == 2


def test_an_earlier_damaged_file_is_never_overwritten(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / LEDGER)
    for content in ("first", "second"):
        (tmp_path / "new").write_text(content)
        os.replace(tmp_path / "new", tmp_path / LEDGER)
        checkpoint.set_aside()
    assert (tmp_path / f"{LEDGER}.damaged-1").read_text() == "first"
    assert (tmp_path / f"{LEDGER}.damaged-2").read_text() == "second"


def test_what_cannot_be_set_aside_says_so(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    with pytest.raises(StateError, match="cannot keep the damaged"):
        Checkpoint(tmp_path / LEDGER).set_aside()
