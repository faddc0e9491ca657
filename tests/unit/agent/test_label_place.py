"""Where an agent writes its labels, by its settings and by what the cluster has, and how they are taken away."""

from pathlib import Path

import pytest

from node_agent.agent.label_place import remove_labels
from node_agent.config.settings import Settings
from node_agent.errors import KubeAccessError
from node_agent.kube.resources import NODE_FEATURES, NODES
from tests.fakes.api_server import ApiServer
from tests.fakes.names import OWN_PREFIX
from tests.golden.labels_examples import FOLDER
from tests.unit.agent.conftest import Place
from tests.unit.agent.test_node_reports import settings_for, until

STAMP = "nvidia.com/gfd.timestamp"


def settings(place: Place, server: ApiServer, writer: str = "auto", **flags: object) -> Settings:
    file = place.folder / "features.d" / "gpu-node-agent"
    given = {"agent_labels_writer": writer, "flags_gfd_outputFile": str(file), **flags}
    return settings_for(place, server, agent_nodeReports_condition=False, agent_nodeReports_events=False, **given)


def expected(profile: str = "h200-8") -> dict[str, str]:
    """What the command says of the node, and that it is well."""
    printed = dict(line.split("=") for line in (FOLDER / f"{profile}.txt").read_text().splitlines())
    return printed | {f"{OWN_PREFIX}health": "healthy", f"{OWN_PREFIX}gpus-in-service": "8"}


def on_node(server: ApiServer) -> dict[str, str]:
    (node,) = server.objects(NODES)
    return {key: value for key, value in node["metadata"].get("labels", {}).items() if key != STAMP}


def in_feature(server: ApiServer) -> dict[str, str]:
    labels = [one["spec"]["labels"] for one in server.objects(NODE_FEATURES)]
    return {key: value for one in labels for key, value in one.items() if key != STAMP}


def in_file(place: Place) -> dict[str, str]:
    file = place.folder / "features.d" / "gpu-node-agent"
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(line.split("=") for line in lines if not line.startswith(("#", STAMP)))


async def test_where_nothing_of_nfd_is_the_node_has_the_labels_that_the_command_prints_and_its_health(
    place: Place,
) -> None:
    async with ApiServer() as server:
        server.serve("nfd.k8s-sigs.io")
        async with place.agent(settings(place, server)) as agent:
            await until(lambda: on_node(server) == expected())
            place.simulated.node.faults.xid("gpu-3", 79)
            await until(lambda: on_node(server)[f"{OWN_PREFIX}gpus-in-service"] == "7")
            assert on_node(server)["nvidia.com/gpu.count"] == "8"
            assert on_node(server)[f"{OWN_PREFIX}health"] == "withdrawn"
            (report,) = agent.status().reports
            assert (report.name, report.trouble) == ("labels", None)
            assert report.standing.endswith(" in Node node-a")


@pytest.mark.parametrize("writer", ["auto", "node-feature"])
async def test_where_the_cluster_has_nfds_objects_one_has_the_labels(place: Place, writer: str) -> None:
    async with ApiServer() as server:
        server.serve("nfd.k8s-sigs.io", "v1alpha1")
        async with place.agent(settings(place, server, writer)):
            await until(lambda: in_feature(server) == expected())
        assert on_node(server) == {}


@pytest.mark.parametrize(
    ("writer", "flags", "served"),
    [
        ("nfd-file", {}, ["v1alpha1"]),
        ("auto", {"flags_useNodeFeatureAPI": False}, ["v1alpha1"]),
        ("auto", {}, []),
        ("auto", {"agent_kubeconfig": "/none"}, []),
    ],
    ids=["asked-for", "no-objects-wanted", "no-objects-served", "no-api-server"],
)
async def test_the_file_has_the_labels_where_it_is_asked_for_or_all_there_is(
    place: Place, writer: str, flags: dict[str, object], served: list[str]
) -> None:
    (place.folder / "features.d").mkdir()
    async with ApiServer() as server:
        server.serve("nfd.k8s-sigs.io", *served)
        async with place.agent(settings(place, server, writer, **flags)):
            await until(lambda: in_file(place) == expected())
        assert (in_feature(server), on_node(server)) == ({}, {})
    assert in_file(place) == expected(), "an update is no farewell"


async def test_nobody_writes_labels_where_none_are_wanted(place: Place) -> None:
    async with ApiServer() as server, place.agent(settings(place, server, "none")) as agent:
        await until(lambda: agent.keeper.inventory.value.generation)
        assert "node reports" not in agent.supervisor.states.value
    assert server.writes() == []


async def test_a_driver_that_goes_takes_no_label_with_it(place: Place) -> None:
    async with ApiServer() as server, place.agent(settings(place, server, "node")) as agent:
        await until(lambda: on_node(server) == expected())
        place.simulated.node.faults.driver("not-loaded")
        agent.keeper.rescan()
        await until(lambda: agent.keeper.inventory.value.problem)
        assert on_node(server) == expected()


@pytest.mark.parametrize("writer", ["node", "node-feature", "nfd-file"])
async def test_what_an_agent_has_written_is_taken_away_on_demand(place: Place, writer: str) -> None:
    (place.folder / "features.d").mkdir()
    async with ApiServer() as server:
        chosen = settings(place, server, writer)
        server.serve("nfd.k8s-sigs.io", "v1alpha1")
        server.put(NODES, {"metadata": {"name": "node-a", "labels": {"example.com/zone": "a"}}})
        async with place.agent(chosen):
            await until(
                lambda: expected() in (in_feature(server), in_file(place)) or on_node(server).keys() > expected().keys()
            )
        assert len(await remove_labels(chosen)) == 1
        assert (on_node(server), in_feature(server), in_file(place)) == ({"example.com/zone": "a"}, {}, {})
        assert await remove_labels(chosen) == []


async def test_without_a_way_to_the_api_server_nothing_can_be_taken_away(place: Place, tmp_path: Path) -> None:
    with pytest.raises(KubeAccessError, match="kubeconfig"):
        await remove_labels(place.settings(agent_kubeconfig=str(tmp_path / "kubeconfig")))
