"""Readiness that says what is missing. Users met: a pod that was said to be ready while the driver, the library or the
kubelet was not there (B35, B06), and nothing that told which of them it was.
"""

import asyncio

from node_agent.reporting.status import Status
from tests.faults.conftest import PATIENCE, Place


async def standing(place: Place, **wanted: str) -> Status:
    """Wait until the parts of these names stand so."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await place.status()
            if wanted.items() <= {part.name: f"{part.state} {part.reason}" for part in found.parts}.items():
                return found
            await asyncio.sleep(0.02)


async def test_the_part_that_is_missing_is_named_while_a_driver_is_upgraded(h200: Place) -> None:
    async with h200.serving():
        await standing(h200, driver="ready Answers", library="ready Loaded", registration="ready Registered")
        h200.node.faults.driver("not-loaded")
        found = await standing(h200, driver="failed DriverUnavailable", library="ready Loaded")
        assert found.phase == "not-ready"
        h200.node.faults.driver("version-mismatch", version="570.124.06")
        await standing(h200, library="failed LibraryUnusable", driver="waiting LibraryUnusable")
        h200.node.faults.driver("loaded")
        found = await standing(h200, driver="ready Answers", library="ready Loaded", devices="ready AllInService")
        await h200.ready()


async def test_a_kubelet_that_is_away_and_a_sick_gpu_are_different_things(h200: Place) -> None:
    async with h200.agent():
        async with h200.kubelet.running():
            await h200.allocatable(8)
            h200.node.faults.lose(3, xid=True)
            await standing(h200, devices="degraded SomeOutOfService", registration="ready Registered")
            assert (await h200.ask("/readyz"))[0] == 200
        await standing(h200, registration="waiting NotRegistered")
        code, text = await h200.ask("/readyz?verbose")
        assert code == 503
        assert "[-]registration waiting: NotRegistered" in text.splitlines()
        assert "[+]devices degraded: SomeOutOfService" in text.splitlines()
