"""Troubles that cost speed, or only those who need several GPUs: they are shown, and take no GPU out by itself.

Users met: fabrics that were still joining, or unwell, and passed for broken or for fine (B64), and cards whose state no
event ever told (B09).
"""

from collections.abc import Callable

import pytest

from node_agent.hardware.simulated.faults import Faults
from tests.faults.conftest import Place, Simulate

Change = Callable[[Faults], None]


@pytest.mark.parametrize(
    ("reason", "health", "breaks", "mends"),
    [
        ("pcie-degraded", "degraded", lambda f: f.pcie(3, width=8), lambda f: f.pcie(3)),
        (
            "thermal-throttling",
            "degraded",
            lambda f: f.slow_down(3, ["hw-slowdown", "hw-thermal-slowdown"]),
            lambda f: f.slow_down(3, []),
        ),
        (
            "power-throttling",
            "degraded",
            lambda f: f.slow_down(3, ["hw-slowdown", "hw-power-brake-slowdown"]),
            lambda f: f.slow_down(3, ["sw-power-cap"]),
        ),
        (
            "fabric-joining",
            "healthy",
            lambda f: f.fabric(3, state="in-progress"),
            lambda f: f.fabric(3, state="completed"),
        ),
        (
            "fabric",
            "degraded",
            lambda f: f.fabric(3, summary="unhealthy"),
            lambda f: f.fabric(3, summary="healthy"),
        ),
        ("nvlink", "degraded", lambda f: f.link(3, 5, up=False), lambda f: f.link(3, 5, up=True)),
        ("reset-needed", "degraded", lambda f: f.remap_rows(3, pending=True), lambda f: f.restore(3)),
    ],
)
async def test_a_gpu_with_a_shortcoming_shows_it_and_goes_on_serving_until_it_is_mended(
    h200: Place, reason: str, health: str, breaks: Change, mends: Change
) -> None:
    async with h200.serving():
        breaks(h200.node.faults)
        assert (await h200.causes(3, reason)).health == health
        assert h200.view.allocatable == 8
        ids, _ = await h200.kubelet.admit("trainer", "nvidia.com/gpu", 8)
        assert len(ids) == 8

        mends(h200.node.faults)
        assert (await h200.causes(3)).health == "healthy"


async def test_a_dead_link_between_two_gpus_shows_on_both_and_on_no_other(simulate: Simulate) -> None:
    v100 = simulate("v100-8")
    async with v100.serving():
        v100.node.faults.link(0, 0, up=False)
        far = v100.node.faults.gpu(0).links[0].peer
        assert far is not None
        for gpu in range(8):
            await v100.causes(gpu, *(["nvlink"] if gpu in (0, far) else []))
        assert v100.view.allocatable == 8


async def test_a_board_with_too_many_retired_pages_is_shown_as_one_to_be_replaced(simulate: Simulate) -> None:
    v100 = simulate("v100-8")
    v100.node.faults.retire_pages(2, "double-bit", range(16), pending=False)
    async with v100.serving():
        found = await v100.causes(2, "retired-pages")
        assert "needs replacement" in found.causes[0].message
        assert found.health == "degraded"
        assert v100.view.allocatable == 8


async def test_a_busy_gpu_whose_pcie_link_stays_slow_is_shown_and_a_resting_one_is_not(simulate: Simulate) -> None:
    l40s = simulate("l40s-8")
    async with l40s.serving():
        l40s.node.faults.load(1, 1.0)
        l40s.node.faults.load(2, 1.0)
        l40s.node.faults.pcie(2, generation=1)
        await l40s.causes(2, "pcie-degraded")
        assert not (await l40s.status_of(0)).causes, "at rest its link is at generation 1, too"
        assert not (await l40s.status_of(1)).causes
