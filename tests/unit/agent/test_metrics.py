"""What an agent at work tells Prometheus: over its socket, of a simulated node with a kubelet."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping

import pytest

from node_agent.agent.agent import Agent
from node_agent.hardware.simulated.gpu import Process
from node_agent.kit.http_client import get
from tests.fakes.scraped import Found, of_openmetrics, of_text, series
from tests.unit.agent.conftest import Place
from tests.unit.reporting.metrics.test_dcgm import DEFAULT

RESOURCE = "nvidia.com/gpu"
TEMPERATURE, XIDS = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS"

# What dashboard 12239, the most used one, asks for.
DASHBOARD = {
    "DCGM_FI_DEV_GPU_TEMP": (10, 100),
    "DCGM_FI_DEV_POWER_USAGE": (10, 2000),
    "DCGM_FI_DEV_SM_CLOCK": (100, 4000),
    "DCGM_FI_DEV_GPU_UTIL": (0, 100),
    "DCGM_FI_DEV_FB_USED": (0, 300_000),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0, 1),
}


async def scrape(place: Place) -> str:
    status, body = await asyncio.to_thread(get, place.folder / "run" / "agent.sock", "/metrics")
    assert status == 200
    return body.decode()


async def until(place: Place, name: str, wanted: Mapping[str, str]) -> Found:
    """Scrape until a series of this name has these labels."""
    async with asyncio.timeout(30):
        while True:
            found = series(of_text(await scrape(place)))
            if any(wanted.items() <= labels.items() for labels, _ in found.get(name, ())):
                return found
            await asyncio.sleep(0.1)


@pytest.fixture
async def agent(place: Place) -> AsyncIterator[Agent]:
    async with place.kubelet.running(), place.agent() as agent:
        await place.kubelet.until(RESOURCE, allocatable=8)
        yield agent


async def test_every_query_of_the_usual_dashboard_has_one_series_for_each_gpu_in_its_unit(
    place: Place, agent: Agent
) -> None:
    found = await until(place, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", {"gpu": "7"})
    for name, (least, most) in DASHBOARD.items():
        assert [labels["gpu"] for labels, _ in found[name]] == [str(number) for number in range(8)]
        assert all(least <= value <= most for _, value in found[name])
        assert all(labels["Hostname"] == labels["hostname"] == "node-a" for labels, _ in found[name])


async def test_every_default_family_of_dcgm_exporter_has_one_series_for_each_gpu(place: Place, agent: Agent) -> None:
    await until(place, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", {"gpu": "7"})
    found = await until(place, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", {"gpu": "7"})
    # Xids are told of from a GPU's first on.
    assert {name: len(found.get(name, ())) for name in DEFAULT} == {**dict.fromkeys(DEFAULT, 8), XIDS: 0}


async def test_a_pods_series_appear_with_its_name_and_go_with_it(place: Place, agent: Agent) -> None:
    ids, _ = await place.kubelet.admit("train", RESOURCE, 1)
    await agent.limits.held()
    found = await until(place, TEMPERATURE, {"UUID": ids[0], "pod": "train", "namespace": "default"})
    assert [labels["UUID"] for labels, _ in found["node_agent_device_holder_info"]] == list(ids)
    place.kubelet.release("train")
    await agent.limits.held()
    text = await scrape(place)
    assert 'pod="' not in text
    assert len(series(of_text(text))[TEMPERATURE]) == 8


async def test_many_pods_that_come_and_go_leave_no_series_behind(place: Place, agent: Agent) -> None:
    # By the second look with figures all families are there.
    found = await until(place, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", {"gpu": "7"})
    before = {(name, len(rows)) for name, rows in found.items() if "DCGM" in name}
    for number in range(20):
        await place.kubelet.admit(f"pod-{number}", RESOURCE, 1)
        await agent.limits.held()
        await scrape(place)
        place.kubelet.release(f"pod-{number}")
    await agent.limits.held()
    after = {(name, len(rows)) for name, rows in series(of_text(await scrape(place))).items() if "DCGM" in name}
    assert after == before


async def test_two_equal_xids_count_as_two_and_the_gpu_is_unhealthy_only_as_long_as_it_is(
    place: Place, agent: Agent
) -> None:
    found = series(of_text(await scrape(place)))
    assert "node_agent_xids_total" not in found
    assert {value for _, value in found["node_agent_gpu_unhealthy"]} == {0}
    for count in (1, 2):
        place.simulated.node.faults.xid(0, 31)
        async with asyncio.timeout(30):
            while set(agent.board.counts.values()) != {count}:
                await asyncio.sleep(0.05)
        found = series(of_text(await scrape(place)))
        assert [value for _, value in found["node_agent_xids_total"]] == [count]
        assert [value for _, value in found["DCGM_EXP_XID_ERRORS_TOTAL"]] == [count]
        assert [(labels["err_code"], value) for labels, value in found[XIDS]] == [("31", 31)]
    # An application's own fault: nothing is out of service.
    assert {value for _, value in found["node_agent_gpu_unhealthy"]} == {0}


async def test_a_gpu_out_of_service_says_so_with_its_cause(place: Place, agent: Agent) -> None:
    place.simulated.node.faults.xid(0, 48)
    found = await until(place, "node_agent_gpu_health_cause", {"reason": "xid", "code": "48"})
    assert sum(value for _, value in found["node_agent_gpu_unhealthy"]) == 1


async def test_a_gpu_that_falls_off_the_bus_keeps_the_series_that_say_so(place: Place, agent: Agent) -> None:
    (lost,) = [labels for labels, _ in series(of_text(await scrape(place)))[TEMPERATURE] if labels["gpu"] == "3"]
    gpu = {"gpu": "3", "UUID": lost["UUID"]}
    place.simulated.node.faults.lose(3, xid=True)
    async with asyncio.timeout(30):
        while lost["UUID"] in agent.keeper.inventory.value.by_uuid:
            await asyncio.sleep(0.05)
    found = await until(place, "node_agent_gpu_health_cause", {**gpu, "reason": "gpu-lost"})
    assert [labels for labels, value in found["node_agent_gpu_unhealthy"] if value] == [gpu]
    assert found["node_agent_xids_total"] == [({**gpu, "xid": "79"}, 1)]
    assert lost["UUID"] not in {labels["UUID"] for labels, _ in found[TEMPERATURE]}
    place.simulated.node.faults.restore(3)
    await until(place, TEMPERATURE, gpu)
    async with asyncio.timeout(30):
        while any(value for _, value in series(of_text(await scrape(place)))["node_agent_gpu_unhealthy"]):
            await asyncio.sleep(0.05)


async def test_a_gpu_that_could_never_be_read_is_out_of_service_by_its_index(place: Place) -> None:
    place.simulated.node.faults.lose(2)
    async with place.kubelet.running(), place.agent():
        await place.kubelet.until(RESOURCE, allocatable=7)
        found = series(of_text(await scrape(place)))
    assert [labels["gpu"] for labels, value in found["node_agent_gpu_unhealthy"] if value] == ["2"]
    assert (len(found["node_agent_gpu_unhealthy"]), found["node_agent_gpus_missing"]) == (8, [({}, 1)])


async def test_gpus_whose_driver_is_gone_are_told_of_by_their_index(place: Place, agent: Agent) -> None:
    place.simulated.node.faults.driver("not-loaded")
    async with asyncio.timeout(30):
        while agent.keeper.inventory.value.problem is None:
            await asyncio.sleep(0.05)
    found = series(of_text(await scrape(place)))
    assert {labels["gpu"]: value for labels, value in found["node_agent_gpu_unhealthy"]} == {
        str(number): 1 for number in range(8)
    }


async def test_what_was_allocated_and_refused_is_timed(place: Place, agent: Agent) -> None:
    def allocations(found: Found) -> float:
        rows = found.get("node_agent_allocation_seconds_count", ())
        return sum(value for labels, value in rows if labels == {"resource": RESOURCE, "result": "ok"})

    before = allocations(series(of_text(await scrape(place))))
    await place.kubelet.admit("train", RESOURCE, 2)
    found = series(of_text(await scrape(place)))
    assert allocations(found) == before + 1
    assert dict((labels["door"], value) for labels, value in found["node_agent_grants"]) == {"limit": 2}


async def test_it_is_valid_for_prometheus_and_as_openmetrics_with_the_same_names(place: Place, agent: Agent) -> None:
    await place.kubelet.admit("train", RESOURCE, 1)
    plain = await until(place, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", {"gpu": "7"})
    reader, writer = await asyncio.open_unix_connection(place.folder / "run" / "agent.sock")
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
    writer.write(f"GET /metrics HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\nconnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b"application/openmetrics-text; version=1.0.0" in head
    assert body.endswith(b"# EOF\n")
    of_dcgm = {name for name in plain if name.startswith("DCGM")}
    found = series(of_openmetrics(body.decode()))
    assert {name for name in found if name.startswith("DCGM")} == of_dcgm
    assert {name for name in plain if not name.startswith("DCGM")} <= found.keys()


async def test_the_newer_names_take_the_place_of_the_older_ones_where_they_are_wanted(place: Place) -> None:
    settings = place.settings(agent_metrics_names="current")
    async with place.kubelet.running(), place.agent(settings):
        await place.kubelet.until(RESOURCE, allocatable=8)
        found = series(of_text(await scrape(place)))
    (labels, hertz), *_ = found["DCGM_FI_DEV_SM_CLOCK_HERTZ"]
    assert hertz == 345_000_000
    assert ("Hostname" in labels, labels["hostname"]) == (False, "node-a")
    assert labels["DCGM_FI_SYSTEM_DRIVER_VERSION"] == "580.95.05"
    assert not {"DCGM_FI_DEV_SM_CLOCK", TEMPERATURE} & found.keys()


@pytest.mark.parametrize("place", ["mixed-5", "none", "vgpu-1", "t4-4", "gb10-1"], indirect=True)
async def test_every_kind_of_node_is_told_of_validly(place: Place) -> None:
    async with place.kubelet.running(), place.agent() as agent:
        async with asyncio.timeout(30):
            while not agent.keeper.inventory.value.generation:
                await asyncio.sleep(0.05)
        found = series(of_text(await scrape(place)))
        gpus = agent.keeper.inventory.value.gpus
        assert found["node_agent_gpus"] == [({}, len(gpus))]
        assert {labels["UUID"] for labels, _ in found.get(TEMPERATURE, ())} <= {gpu.uuid for gpu in gpus}


async def test_a_node_of_mig_devices_has_series_for_each_with_its_own_memory(place: Place, agent: Agent) -> None:
    simulated = place.simulated.node.faults.gpu(0)
    assert simulated.mig is not None
    simulated.mig.set_mode(True)
    profile = next(one for one in simulated.mig.table.profiles if one.name == "1g.18gb")
    for start in range(7):
        instance = simulated.mig.create(profile.id, start)
        simulated.mig.create_compute(instance, instance.compute_profiles()[-1].id)
    simulated.processes.append(Process(pid=1, memory=64 << 20, instance=instance.id, compute_instance=0))
    await agent.keeper.look()
    found = await until(place, TEMPERATURE, {"GPU_I_ID": str(instance.id)})
    of_mig = [labels for labels, _ in found[TEMPERATURE] if "GPU_I_ID" in labels]
    assert len(of_mig) == 7
    assert {labels["UUID"] for labels in of_mig} == {simulated.uuid}
    async with asyncio.timeout(30):
        while sum(value for labels, value in found["DCGM_FI_DEV_FB_USED"] if "GPU_I_ID" in labels) != 64:
            await asyncio.sleep(0.1)
            found = series(of_text(await scrape(place)))
    assert not [labels for labels, _ in found["DCGM_FI_DEV_GPU_UTIL"] if labels["UUID"] == simulated.uuid]


async def test_while_the_driver_hangs_a_scrape_is_answered(place: Place, agent: Agent) -> None:
    await scrape(place)
    place.simulated.node.faults.hang("nvmlDeviceGetTemperature", 60.0)
    await asyncio.sleep(1.1)
    began = time.monotonic()
    text = await scrape(place)
    assert time.monotonic() - began < 20
    place.simulated.node.faults.clear()
    found = series(of_text(text))
    assert found["node_agent_gpus"] == [({}, 8)]


async def test_no_label_of_the_agents_own_names_a_pod_but_where_it_is_the_point(place: Place, agent: Agent) -> None:
    await place.kubelet.admit("train", RESOURCE, 1)
    await agent.limits.held()
    named = re.findall(r'^(node_agent_\w+)\{[^}]*pod="train"', await scrape(place), re.MULTILINE)
    assert named == ["node_agent_device_holder_info"]
