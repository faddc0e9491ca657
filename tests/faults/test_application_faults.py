"""Faults that a user's program causes itself. Users met: a crash in a pod took a good GPU out of service (B01)."""

import asyncio

import pytest
from msgspec.structs import replace

from tests.faults.conftest import Place, lines, until

USUAL = (13, 31, 43, 45, 68, 109)


async def test_a_crash_in_a_users_program_takes_no_gpu_out_of_service(
    h200: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of the codes that an application can cause is logged once, and the kubelet never hears of it."""
    caplog.set_level("INFO", logger="node_agent")
    async with h200.serving():
        messages = h200.view.messages
        for code in USUAL:
            h200.node.faults.xid(3, code)
        await until(lambda: len(lines(caplog, "hardware event")) >= len(USUAL))
        await asyncio.sleep(0.3)

        assert h200.view.messages == messages
        assert h200.view.allocatable == 8

    heard = [(line["gpu"], line["code"]) for line in lines(caplog, "hardware event")]
    assert heard == [(h200.uuid(3), code) for code in USUAL]


async def test_a_code_that_the_operator_ignores_takes_no_gpu_out_of_service(h200: Place) -> None:
    health = replace(h200.settings.health, ignored_xids=frozenset({*USUAL, 94}))
    async with h200.serving(replace(h200.settings, health=health)):
        h200.node.faults.recovery_action(5, "gpu-reset")
        h200.node.faults.xid(3, 94)
        await h200.only_withdrawn(5)

        assert not (await h200.status_of(3)).causes


async def test_a_code_that_is_not_ignored_takes_its_gpu_and_no_other_out_of_service(h200: Place) -> None:
    async with h200.serving():
        h200.node.faults.recovery_action(3, "gpu-reset")
        h200.node.faults.xid(3, 94)
        await h200.only_withdrawn(3)
        await h200.causes(3, "recovery-needed", "xid")
