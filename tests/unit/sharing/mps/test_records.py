"""Who uses which daemon, on disk."""

import stat
from pathlib import Path
from threading import Thread

import pytest

from node_agent.errors import MpsImpossible, StateError
from node_agent.hardware.provider import ComputeMode
from node_agent.model.gpu import GpuUuid
from node_agent.model.partition import DeviceUuid
from node_agent.sharing.mps.plan import Limits, Wanted, daemon_key
from node_agent.sharing.mps.processes import Process
from node_agent.sharing.mps.records import Record, Records

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "mps")


def test_a_record_comes_back_as_it_was_written(records: Records, tmp_path: Path) -> None:
    limits = Limits(memory={A: 1 << 30}, threads=20)
    records.join("claim a", Wanted(devices=(A, B), limits=limits, multi_user=True), own_shm=True)
    modes: dict[DeviceUuid, ComputeMode] = {A: ComputeMode.EXCLUSIVE_PROCESS}
    process = Process(pid=7, started=8, boot="b")
    key = daemon_key([A, B])
    full = Record(
        devices=(A, B), users={"claim a": limits}, multi_user=True, own_shm=True, modes=modes, process=process
    )
    assert records.change(key, lambda record: full) == full
    assert Records(tmp_path / "mps").all() == {key: full}
    assert stat.S_IMODE((tmp_path / "mps" / f"{key}.json").stat().st_mode) == 0o600


def test_a_node_that_never_had_a_daemon_has_no_record_and_no_folder(records: Records, tmp_path: Path) -> None:
    assert records.all() == {}
    assert not (tmp_path / "mps").exists()


def test_one_who_left_is_told_again_which_daemon_has_to_end_until_that_is_forgotten(records: Records) -> None:
    key = daemon_key([A])
    records.join("a", Wanted(devices=(A,)), own_shm=False)
    assert not records.forget(key)
    assert records.leave("a") == records.leave("a") == [key]
    assert records.leave("b") == []
    assert records.forget(key)
    assert records.leave("a") == []
    assert records.forget(key)


def test_one_who_comes_in_time_keeps_the_daemon(records: Records) -> None:
    key = daemon_key([A])
    records.join("a", Wanted(devices=(A,)), own_shm=False)
    records.leave("a")
    records.join("b", Wanted(devices=(A,)), own_shm=False)
    assert not records.forget(key)
    assert records.leave("a") == []
    assert records.leave("b") == [key]


def test_a_record_that_is_gone_is_not_changed(records: Records) -> None:
    assert records.change(daemon_key([A]), lambda record: record) is None
    assert records.all() == {}


def test_a_daemon_that_is_about_to_end_is_in_the_way_as_well(records: Records) -> None:
    records.join("a", Wanted(devices=(A,)), own_shm=False)
    records.leave("a")
    with pytest.raises(MpsImpossible, match="for nobody any more; it is about to end"):
        records.join("b", Wanted(devices=(A, B)), own_shm=False)


def test_no_more_users_than_clients_that_a_gpu_takes(records: Records) -> None:
    for user in ("a", "b", "a"):
        records.join(user, Wanted(devices=(A,), most=2), own_shm=False)
    with pytest.raises(MpsImpossible, match=r"c wants the MPS daemon of GPU-a, which has 2 users: it takes 2 clients"):
        records.join("c", Wanted(devices=(A,), most=2), own_shm=False)


def test_changes_of_many_at_once_are_all_kept(records: Records) -> None:
    joins = [Thread(target=lambda n=n: records.join(str(n), Wanted(devices=(A,)), own_shm=False)) for n in range(20)]
    for thread in joins:
        thread.start()
    for thread in joins:
        thread.join()
    (record,) = records.all().values()
    assert set(record.users) == set(map(str, range(20)))


def test_a_damaged_file_costs_its_own_daemon_only(
    records: Records, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for gpu in (A, B):
        records.join("a", Wanted(devices=(gpu,)), own_shm=False)
    damaged = tmp_path / "mps" / f"{daemon_key([A])}.json"
    damaged.write_text('{"devices": 3}')
    assert records.all().keys() == {daemon_key([B])}
    what = rf"{damaged} is not the record of an MPS daemon: .*; remove it"
    with pytest.raises(StateError, match=what):
        records.join("b", Wanted(devices=(A,)), own_shm=False)
    assert records.leave("a") == [daemon_key([B])]
    assert damaged.read_text() == '{"devices": 3}'
    assert caplog.messages == ["an MPS daemon is left as it is"]
    damaged.unlink()
    assert records.join("b", Wanted(devices=(A,)), own_shm=False).users.keys() == {"b"}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"cannot keep who uses which MPS daemon in .*/file/mps: Not a directory"):
        Records(tmp_path / "file" / "mps").join("a", Wanted(devices=(A,)), own_shm=False)
