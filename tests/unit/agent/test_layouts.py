"""The layout's parts in the running agent: what it follows, who is in the way, and what people are told."""

import asyncio

from msgspec.structs import replace

from node_agent.agent.layouts import LayoutNews, in_words, mig_manager
from node_agent.allocation.grants import Door, Grant, Hold, Holder
from node_agent.kit.latest import Latest
from node_agent.kube.resources import EVENTS, NODES
from node_agent.kubelet.podresources import PodDevice
from node_agent.layouts.orders import LABEL, STATE_LABEL
from node_agent.layouts.state import GpuChange, LayoutState, Phase
from node_agent.model.gpu import device_name
from node_agent.reporting.holders import Holders
from tests.fakes.api_server import ApiServer
from tests.fakes.builders import uuid
from tests.fakes.names import DRIVER
from tests.unit.agent.conftest import Place
from tests.unit.agent.test_node_reports import settings_for, until

CLAIM = Holder(door=Door.CLAIM, id="uid", name="team/job")
LIMIT = Holder(door=Door.LIMIT, id="nvidia.com/gpu/GPU-1", name="nvidia.com/gpu")


def test_nvidias_mig_manager_is_known_by_its_pod() -> None:
    assert mig_manager(frozenset({"gpu-operator/nvidia-mig-manager-x7k2p", "team/job"})) == (
        "NVIDIA's MIG manager (gpu-operator/nvidia-mig-manager-x7k2p) cuts this node's GPUs"
    )
    assert mig_manager(frozenset({"team/nvidia", "kube-system/nvidia-device-plugin-1"})) == ""


def test_holders_are_named_by_their_pods_as_far_as_these_are_known() -> None:
    hold = Hold(device="gpu-0", gpus=(uuid(0),), pool="node-a", request="gpus")
    limit = Hold(device="GPU-1", gpus=(uuid(1),))
    grants = {
        "uid": Grant(holder=CLAIM, holds=(hold,)),
        LIMIT.id: Grant(holder=LIMIT, holds=(limit,)),
    }
    pods = (
        PodDevice(of=DRIVER, device="gpu-0", namespace="team", pod="a", claim="team/job", pool="node-a"),
        PodDevice(of=DRIVER, device="gpu-0", namespace="team", pod="b", claim="team/job", pool="node-a"),
        PodDevice(of="nvidia.com/gpu", device="GPU-1", namespace="team", pod="c"),
    )
    known = Holders(DRIVER, Latest(grants), Latest(pods))
    assert in_words(known, CLAIM, hold) == "claim team/job (uid) of pod team/a, pod team/b"
    assert in_words(known, LIMIT, limit) == "pod team/c"
    unknown = Holders(DRIVER, Latest(grants), Latest(()))
    assert in_words(unknown, LIMIT, limit) == "limit nvidia.com/gpu (nvidia.com/gpu/GPU-1)"


def test_events_tell_what_is_waited_for_and_each_end_once() -> None:
    waits = GpuChange(gpu=device_name("gpu-3"), phase=Phase.PENDING, waits="the whole GPU is held by pod team/a")
    state = LayoutState(name="all-balanced", source="label nvidia.com/mig.config")
    source: Latest[LayoutState | None] = Latest(state)
    news = LayoutNews(source)

    def told(found: LayoutState | None) -> list[tuple[str, str]]:
        source.set(found)
        return [(one.reason, one.note) for one in news.notices()]

    assert told(state) == [], "what is just being done is no news"
    held = replace(state, gpus=(waits,))
    assert told(held) == [
        (
            "GPULayoutWaits",
            "all-balanced (label nvidia.com/mig.config): gpu-3: waits: the whole GPU is held by pod team/a",
        )
    ]
    assert told(held) == []
    assert [reason for reason, _ in told(replace(state, phase=Phase.SUCCESS))] == ["GPULayoutInForce"]
    assert [reason for reason, _ in told(replace(state, phase=Phase.FAILED, trouble="no"))] == ["GPULayoutFailed"]
    assert told(None) == []


def test_a_layout_that_an_agent_finds_in_force_when_it_starts_is_no_news() -> None:
    state = LayoutState(name="all-balanced", source="label", phase=Phase.SUCCESS)
    assert list(LayoutNews(Latest(state)).notices()) == []


async def test_the_running_agent_follows_the_label_and_tells_the_node(place: Place) -> None:
    async with ApiServer() as server:
        settings = settings_for(place, server)
        server.put(NODES, {"metadata": {"name": "node-a", "labels": {LABEL: "all-9g.1gb"}}})

        def state() -> str | None:
            (node,) = server.objects(NODES)
            found: str | None = node["metadata"]["labels"].get(STATE_LABEL)
            return found

        async with place.agent(settings) as agent:
            agent.limits.synced.set()  # nobody tells here what pods hold
            await until(lambda: state() == "failed")
            await until(lambda: "GPULayoutFailed" in [one["reason"] for one in server.objects(EVENTS)])
            layout = agent.status().layout
            assert layout is not None
            assert (layout.name, layout.phase) == ("all-9g.1gb", "failed")
            assert layout.reasons[0].startswith("no MIG layout is named 'all-9g.1gb'")
            server.put(NODES, {"metadata": {"name": "node-a", "labels": {STATE_LABEL: "failed"}}})
            await until(lambda: state() is None)
            await asyncio.sleep(0)
            assert agent.status().layout is None
