"""The labels of a running agent. Users met: a name with brackets or slashes that cost its label or all of them (B41),
and labels of a node with two models, or one that was being cut anew, that came and went with each look (B42).
"""

import asyncio
import ctypes
import re
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from node_agent.config.settings import Labels, Settings
from node_agent.errors import KubeAccessError
from tests.fakes.api_server import ApiServer
from tests.faults.claims import Cluster
from tests.faults.conftest import Place, Simulate, lines, until

VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
GPU = "nvidia.com/gpu"


def written(place: Place) -> dict[str, str]:
    """The labels in the feature file, with the stamp: another one would tell of another write."""
    file = place.folder / "labels"
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def gfds(place: Place) -> dict[str, str]:
    """Those of GPU Feature Discovery, which say nothing of health, without the stamp."""
    own = ("node-agent.gpu.nvidia.com/", "nvidia.com/gfd.")
    return {key: value for key, value in written(place).items() if not key.startswith(own)}


def settings(place: Place) -> Settings:
    return place.with_settings(labels=Labels(writer="nfd-file", file=place.folder / "labels"))


def named(name: bytes) -> Any:
    def answer(_handle: object, buffer: Any, length: Any) -> int:
        ctypes.memmove(buffer, name[: int(getattr(length, "value", length)) - 1] + b"\0", len(name) + 1)
        return 0

    return answer


@pytest.mark.parametrize(
    ("name", "product"),
    [
        (b"TITAN X (Pascal)", "TITAN-X-Pascal"),
        (b"A" * 80, "A" * 63),
        (b"NVIDIA Card.", "NVIDIA-Card"),
        ("NVIDIA 温 7".encode(), "NVIDIA-7"),
        (b"( )", None),
    ],
    ids=["brackets", "long", "dot", "no-ascii", "nothing-left"],
)
async def test_no_name_of_a_board_or_machine_costs_another_label(h200: Place, name: bytes, product: str | None) -> None:
    firmware = Path(h200.settings.paths.sysfs_root) / "class/dmi/id"
    firmware.mkdir(parents=True)
    (firmware / "product_name").write_text("X9SRA/X9SRA-3\n")
    h200.answer("nvmlDeviceGetName", named(name))
    async with h200.serving(settings(h200)):
        await until(lambda: written(h200))
        found = written(h200)
    assert [line for line in found.items() if not VALUE.fullmatch(line[1])] == []
    assert found.get(f"{GPU}.product") == product
    assert (found[f"{GPU}.machine"], found[f"{GPU}.count"]) == ("X9SRAX9SRA-3", "8")


async def test_a_card_that_only_displays_is_not_counted_and_however_often_one_looks_nothing_is_written(
    simulate: Simulate,
) -> None:
    place = simulate("mixed-5")
    async with place.kubelet.running(), place.agent(replace(settings(place), rescan_interval=0.05)) as agent:
        await until(lambda: written(place))
        found, stamp = written(place), (place.folder / "labels").stat().st_mtime_ns
        for _ in range(10):
            agent.keeper.rescan()
            await asyncio.sleep(0.12)
        assert (place.folder / "labels").stat().st_mtime_ns == stamp
    assert (found[f"{GPU}.product"], found[f"{GPU}.count"]) == ("NVIDIA-A100-SXM4-80GB", "4")


async def test_while_a_gpu_is_being_cut_anew_and_while_the_driver_is_away_the_labels_stay(simulate: Simulate) -> None:
    place = simulate("a30-2")
    async with place.kubelet.running(), place.agent(settings(place)) as agent:
        await until(lambda: written(place))
        before = gfds(place)
        for call in ("nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstances"):
            place.node.faults.fail(call, pynvml.NVML_ERROR_NOT_FOUND, gpu=1)
        await asyncio.sleep(1)
        assert gfds(place) == before
        place.node.faults.clear()
        place.node.faults.driver("not-loaded")
        await until(lambda: agent.keeper.inventory.value.problem)
        await asyncio.sleep(1)
        assert gfds(place) == before
        place.node.faults.driver("loaded")
        await until(lambda: len(agent.keeper.inventory.value.gpus) == 2)
    assert gfds(place) == before


async def test_a_gpu_that_falls_off_the_bus_is_counted_no_more_and_changes_no_other_label_of_gfds(h200: Place) -> None:
    async with h200.serving(settings(h200)):
        await until(lambda: written(h200))
        before = written(h200)
        h200.node.faults.lose(3)
        await until(lambda: written(h200)[f"{GPU}.count"] == "7")
        differ = {key for key in before if written(h200).get(key) != before[key]}
    own = {f"node-agent.gpu.nvidia.com/{name}" for name in ("health", "gpus-in-service", "nvlink.island-size")}
    assert differ - {"nvidia.com/gfd.timestamp"} == {f"{GPU}.count", *own}


async def test_without_the_nodes_name_gpus_are_offered_and_it_is_said_what_sets_it(
    h200: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """A manifest that lost its variable: pods with limits still get GPUs, and who insists on claims is told at once."""
    caplog.set_level("INFO", logger="node_agent")
    async with ApiServer() as server:
        nameless = replace(Cluster(h200, server).settings, node_name="", dra="auto")
        async with h200.serving(nameless):
            (line,) = lines(caplog, "no claims are served")
            assert "set NODE_NAME" in str(line["reason"])
            assert server.requests == []
        with pytest.raises(KubeAccessError, match="set NODE_NAME"):
            async with h200.agent(replace(nameless, dra=True)):
                pass
