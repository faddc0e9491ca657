"""The health document: what it says of each GPU, and when a watcher hears of it."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from node_agent.kit.latest import Latest
from node_agent.model.health import Cause, HealthReport, Instance, Reason, Severity
from node_agent.model.inventory import Inventory, MissingGpu
from node_agent.reporting.health import (
    CauseStatus,
    GpuHealth,
    HealthDocument,
    cause_status,
    found,
    health_document,
    not_found,
)
from node_agent.reporting.health_view import HealthView
from tests.fakes.builders import uuid
from tests.fakes.health import NODE, NOT_PROBED, Ward, remap, xid


def test_a_gpu_with_nothing_wrong_is_healthy_and_has_no_causes() -> None:
    first, second = Ward().view.document.gpus
    assert first == GpuHealth(name="gpu-0", uuid=uuid(0), health="healthy")
    assert second.name == "gpu-1"


def test_a_cause_is_told_with_its_number_its_time_and_what_clears_it() -> None:
    ward = Ward()
    ward.ail(1, xid(79))
    (cause,) = ward.view.document.gpus[1].causes
    assert cause == CauseStatus(
        reason="xid",
        code=79,
        severity="withdrawn",
        message="Xid 79",
        since=1000.0,
        clears="back when the driver asks for no recovery",
    )
    assert cause.text == "Xid 79 (back when the driver asks for no recovery)"


@pytest.mark.parametrize(
    ("severity", "word", "in_service"),
    [
        (Severity.NONE, "healthy", True),
        (Severity.DEGRADED, "degraded", True),
        (Severity.WITHDRAWN, "withdrawn", False),
        (Severity.EVICTED, "evicted", False),
    ],
)
def test_a_gpu_is_as_bad_as_its_worst_cause(severity: Severity, word: str, in_service: bool) -> None:
    ward = Ward()
    ward.ail(0, xid(48, Severity.NONE), xid(79, severity))
    assert ward.view.document.gpus[0].health == word
    assert ward.view.document.gpus[0].in_service is in_service


def test_a_cause_of_one_mig_instance_degrades_the_gpu_and_is_told_as_bad_as_it_is_there() -> None:
    ward = Ward()
    ward.ail(0, Cause(reason=Reason.ECC, severity=Severity.WITHDRAWN, message="m", since=1, instance=Instance(id=3)))
    gpu = ward.view.document.gpus[0]
    assert (gpu.health, gpu.causes[0].severity, gpu.causes[0].instance) == ("degraded", "withdrawn", "3")


def test_a_compute_instance_and_the_peers_of_a_dead_link_are_named() -> None:
    part = Cause(reason=Reason.ECC, severity=Severity.NONE, message="m", since=1, instance=Instance(id=3, compute=0))
    assert cause_status(part).instance == "3/0"
    link = Cause(
        reason=Reason.NVLINK, severity=Severity.NONE, message="m", since=1, peers=frozenset({uuid(2), uuid(1)})
    )
    assert cause_status(link).peers == (uuid(1), uuid(2))


def test_a_gpu_that_has_gone_is_told_by_its_name_after_those_that_are_there() -> None:
    ward = Ward(3)
    ward.ail(0, NOT_PROBED)
    ward.take(0)
    names = [(gpu.name, gpu.present) for gpu in ward.view.document.gpus]
    assert names == [("gpu-1", True), ("gpu-2", True), ("gpu-0", False)]
    assert not ward.view.document.gpus[2].in_service


def test_xids_are_counted_by_number_also_where_they_opened_nothing() -> None:
    ward = Ward()
    ward.counts = {(uuid(1), 79): 1, (uuid(0), 13): 4, (uuid(1), 13): 2}
    assert [gpu.xids for gpu in ward.view.document.gpus] == [{"13": 4}, {"13": 2, "79": 1}]


def test_gpus_that_cannot_be_read_are_told() -> None:
    inventory = Inventory(generation=1, missing=(MissingGpu(index=2, reason="lost", uuid=uuid(2)),))
    document = health_document(node=NODE, inventory=inventory, report=HealthReport(), names={}, counts={})
    assert [(one.index, one.reason, one.uuid) for one in document.missing] == [(2, "lost", uuid(2))]


@pytest.mark.parametrize(
    ("inventory", "trouble"),
    [
        (Inventory(), "the GPUs have not been looked at yet"),
        (Inventory(generation=3, problem="the driver is not loaded"), "the driver is not loaded"),
        (Inventory(generation=1), None),
    ],
)
def test_a_node_of_which_nothing_is_known_says_why(inventory: Inventory, trouble: str | None) -> None:
    document = health_document(node=NODE, inventory=inventory, report=HealthReport(), names={}, counts={})
    assert document.trouble == trouble


def test_the_document_reads_back_as_it_was_written() -> None:
    ward = Ward()
    ward.ail(0, xid(), remap())
    ward.counts = {(uuid(0), 79): 1}
    document = ward.view.document
    assert msgspec.json.decode(msgspec.json.encode(document), type=HealthDocument) == document


def test_a_gpu_is_found_by_its_name_and_its_uuid() -> None:
    document = Ward().view.document
    assert found(document, "gpu-1") == found(document, uuid(1)) == document.gpus[1]
    assert found(document, "gpu-7") is None


def test_who_names_a_gpu_that_is_not_there_is_told_what_comes_nearest() -> None:
    document = Ward().view.document
    assert not_found(document, "gpu1").endswith("did you mean gpu-1 or gpu-0?")
    assert "there is gpu-0, gpu-1" in not_found(document, "?")
    assert "there is none" in not_found(HealthDocument(node=NODE), "gpu-0")


async def test_a_watcher_gets_the_document_at_once_and_at_each_change() -> None:
    ward = Ward()
    async with asyncio.timeout(30), aclosing(ward.view.watch()) as documents:
        assert (await anext(documents)).gpus[0].health == "healthy"
        ward.ail(0, xid())
        assert (await anext(documents)).gpus[0].health == "withdrawn"


async def test_a_slow_watcher_gets_the_newest_document_alone() -> None:
    ward = Ward()
    async with asyncio.timeout(30), aclosing(ward.view.watch()) as documents:
        await anext(documents)
        for code in range(100):
            ward.ail(0, xid(code))
        assert [cause.code for cause in (await anext(documents)).gpus[0].causes] == [99]


async def test_a_watcher_hears_the_same_again_after_a_silence() -> None:
    view = HealthView(node=NODE, inventory=Latest(Inventory()), report=Latest(HealthReport()), names=dict, counts=dict)
    async with asyncio.timeout(30), aclosing(view.watch(again_seconds=0.01)) as documents:
        assert await anext(documents) == await anext(documents)
