"""The NodeResourceTopology that an agent keeps: of its own devices and of what the kubelet has given out."""

from node_agent.config.settings import Settings
from node_agent.kube.resources import NODE_TOPOLOGIES
from tests.fakes.api_server import ApiServer
from tests.unit.agent.conftest import Place
from tests.unit.agent.test_node_reports import settings_for, until

GPU = "nvidia.com/gpu"


def settings(place: Place, server: ApiServer, **flags: object) -> Settings:
    file = place.folder / "kubelet.yaml"
    file.write_text("kind: KubeletConfiguration\ntopologyManagerPolicy: restricted\n")
    return settings_for(
        place,
        server,
        agent_nodeReports_condition=False,
        agent_nodeReports_events=False,
        agent_nodeReports_kubeletConfig=str(file),
        **flags,
    )


def zones(server: ApiServer) -> dict[str, tuple[str, ...]]:
    """Capacity, allocatable and available GPUs by zone."""
    return {
        zone["name"]: tuple(entry[key] for key in ("capacity", "allocatable", "available"))
        for one in server.objects(NODE_TOPOLOGIES)
        for zone in one["zones"]
        for entry in zone["resources"]
        if entry["name"] == GPU
    }


async def test_the_object_has_the_gpus_of_each_zone_and_follows_pods_and_health(place: Place) -> None:
    async with (
        ApiServer() as server,
        place.kubelet.running(),
        place.agent(settings(place, server, agent_nodeReports_topology=True)) as agent,
    ):
        await place.kubelet.until(GPU, allocatable=8)
        place.simulated.node.faults.xid("gpu-6", 79)
        await until(lambda: zones(server) == {"node-0": ("4", "4", "4"), "node-1": ("4", "3", "3")})
        await place.kubelet.admit("pod", GPU, 3)
        await until(lambda: {available for *_, available in zones(server).values()} in ({"1", "3"}, {"0", "4"}))
        (made,) = server.objects(NODE_TOPOLOGIES)
        assert {"name": "topologyManagerPolicy", "value": "restricted"} in made["attributes"]
        assert [report.standing for report in agent.status().reports] == ["NodeResourceTopology node-a"]


async def test_nobody_writes_the_object_who_is_not_asked_to(place: Place) -> None:
    async with ApiServer() as server, place.agent(settings(place, server)) as agent:
        await until(lambda: agent.keeper.inventory.value.generation)
        assert "node reports" not in agent.supervisor.states.value
    assert [asked for asked in server.requests if NODE_TOPOLOGIES.plural in asked.path] == server.writes() == []
