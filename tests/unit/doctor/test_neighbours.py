"""The doctor and what is around the node's driver: the agent, the kubelet, other programs, and the API server."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from node_agent import __version__
from node_agent.doctor import cluster, running
from node_agent.doctor.finding import Result
from node_agent.kube.calls import Patience
from node_agent.kube.resources import NODES, RESOURCE_SLICES, Object
from node_agent.reporting.status import Status
from tests.fakes.api_server import ApiServer
from tests.unit.agent.test_node_reports import kubeconfig
from tests.unit.doctor.conftest import Patient, only

GPU = "nvidia.com/gpu"


# The kubelet and the agent


async def test_an_agent_at_work_is_asked_for_each_of_its_parts(patient: Patient) -> None:
    async with patient.place.kubelet.running(), patient.place.agent() as agent:
        await patient.place.kubelet.until(GPU, allocatable=8)
        async with asyncio.timeout(30):
            while not agent.status().ready:
                await asyncio.sleep(0.05)
        found = await patient.examined()
    assert not found.failed
    said = {one.check: one for one in found.findings}
    assert said["running.agent"].what == f"node-agent {__version__} runs and is ready"
    assert said["running.registration"].result is Result.OK
    assert said["kubelet.registration"].what == f"the kubelet has 8 {GPU}"
    assert said["kubelet.device-plugins"].result is Result.OK


async def test_an_agent_in_trouble_is_told_with_its_words(patient: Patient) -> None:
    async with patient.place.agent():
        async with asyncio.timeout(30):
            while not (found := await patient.of("running.registration")) or "no kubelet" not in found[0].what:
                await asyncio.sleep(0.05)
    assert "waiting for the kubelet" in only(found, Result.FAILED).what


async def test_a_kubelet_that_is_not_there_and_one_that_does_not_listen(patient: Patient) -> None:
    found = await patient.failure("kubelet.device-plugins")
    assert found.what == "the folder of the kubelet's socket is not there"
    patient.listen("device-plugins/kubelet.sock")
    patient.sockets[-1].close()
    assert (await patient.failure("kubelet.device-plugins")).what == "nobody listens on the kubelet's socket"
    only(await patient.of("kubelet.registration"), Result.SKIPPED)


async def test_a_kubelet_without_the_agents_devices(patient: Patient) -> None:
    async with patient.place.kubelet.running():
        found = await patient.warning("kubelet.registration")
    assert found.what == f"the kubelet has no {GPU}"
    assert found.fix.startswith("start the agent")


async def test_a_folder_for_announcements_that_is_not_there(patient: Patient) -> None:
    (patient.place.folder / "kubelet/plugins_registry").rmdir()
    await patient.warning("kubelet.registry")
    settings = patient.place.settings(agent_registration="watcher")
    await patient.failure("kubelet.registry", settings)


def test_an_agent_of_another_version_is_to_be_asked_by_its_own_doctor() -> None:
    found = only(list(running.agent(Status(version="9", node="n", started=0.0), "")), Result.WARNING)
    assert "9 runs" in found.what


async def test_a_configuration_that_was_refused(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"source": "/config.yaml", "generation": 1, "since": 1.0, "trouble": "flag: unknown key"}
    status = msgspec.convert(
        {"version": __version__, "node": "n", "started": 0.0, "config": {**config, "after_restart": ["agent.paths"]}},
        Status,
    )
    monkeypatch.setattr("node_agent.doctor.examine._status", lambda _: (status, ""))
    found = {one.result: one.what for one in await patient.of("running.configuration")}
    assert found == {
        Result.FAILED: "it was refused: flag: unknown key",
        Result.WARNING: "in force only after a restart: agent.paths",
    }


# Other programs


@pytest.mark.parametrize("name", ["nvidia-gpu.sock", "nvidia-mig-1g.10gb.sock"])
async def test_nvidias_device_plugin_beside_the_agent(patient: Patient, name: str) -> None:
    path = patient.listen(f"device-plugins/{name}")
    found = await patient.failure("owners.device-plugin")
    assert found.where == str(path)


@pytest.mark.parametrize("name", ["gpu.nvidia.com-reg.sock", "gpu.nvidia.com-0a1b2c3d-1111-2222-reg.sock"])
async def test_another_driver_of_the_same_name(patient: Patient, name: str) -> None:
    path = patient.listen(f"plugins_registry/{name}")
    assert (await patient.failure("owners.dra-driver")).where == str(path)


@pytest.mark.parametrize("serves", [True, False])
async def test_nvidias_plugin_for_domains_is_a_rival_where_the_agent_serves_them(
    patient: Patient, serves: bool
) -> None:
    path = patient.listen("plugins_registry/compute-domain.nvidia.com-reg.sock")
    settings = patient.place.settings(agent_frontDoors_computeDomains=serves)
    if serves:
        found = await patient.failure("owners.dra-driver", settings)
        assert found.where == str(path)
        assert "compute-domain.nvidia.com" in found.what
    else:
        only(await patient.of("owners.dra-driver", settings), Result.OK)


async def test_sockets_that_others_have_left_and_the_agents_own_are_nobodys_rivals(patient: Patient) -> None:
    patient.listen("device-plugins/nvidia-gpu.sock")
    patient.listen("plugins_registry/gpu.nvidia.com-reg.sock")
    for left in patient.sockets:
        left.close()
    patient.listen("plugins_registry/gpu.nvidia.com-0a1b2c3d-reg.sock")
    only(await patient.of("owners.device-plugin"), Result.OK)
    only(await patient.of("owners.dra-driver"), Result.OK)


async def test_labels_that_gpu_feature_discovery_has_written(patient: Patient) -> None:
    file = patient.write("etc/kubernetes/node-feature-discovery/features.d/gfd", "nvidia.com/gpu.count=8\n")
    assert (await patient.warning("owners.labels")).where == str(file)


# The API server


def put_node(server: ApiServer, **labels: str) -> None:
    server.put(NODES, {"metadata": {"name": "node-a", "labels": labels}})


def settings(patient: Patient, server: ApiServer, **flags: object) -> Object:
    return {"settings": patient.place.settings(agent_kubeconfig=str(kubeconfig(patient.place, server)), **flags)}


async def test_no_api_server_is_a_failure_only_where_claims_must_be_served(patient: Patient) -> None:
    only(await patient.of("cluster.access"), Result.SKIPPED)
    await patient.failure("cluster.access", patient.place.settings(agent_frontDoors_dra=True))


async def test_a_cluster_that_is_as_it_should_be(patient: Patient) -> None:
    async with ApiServer() as server:
        put_node(server)
        found = await patient.examined(**settings(patient, server))
    said = {one.check: one for one in found.findings}
    assert said["cluster.rights"].what == "all 19 rights that are needed are there"
    checks = ("cluster.access", "cluster.node", "cluster.rights", "cluster.claims", "owners.slices", "owners.operator")
    assert {said[check].result for check in checks} == {Result.OK}


async def test_every_right_that_is_missing_is_named(patient: Patient) -> None:
    async with ApiServer() as server:
        put_node(server)
        server.forbid("update", "resourceslices")
        server.forbid("patch", "nodes/status")
        found = await patient.of("cluster.rights", **settings(patient, server))
    assert [one.what for one in found] == [
        "may not update resourceslices, for publishing devices",
        "may not patch nodes/status, for the condition GPUHealthy",
    ]
    assert {one.result for one in found} == {Result.FAILED}


@pytest.mark.parametrize(
    ("flags", "verb", "resource", "needed_for"),
    [
        ({"agent_labels_writer": "node", "agent_mig_layouts": "never"}, "patch", "nodes", "labels on the Node"),
        ({"agent_labels_writer": "none"}, "patch", "nodes", "the state of the MIG layout"),
        ({}, "patch", "nodes", "labels on the Node and the state of the MIG layout"),
        ({}, "watch", "nodes", "the label that names the MIG layout"),
        ({}, "create", "nodefeatures", "labels by NFD"),
        ({"agent_labels_writer": "node-feature"}, "delete", "nodefeatures", "labels by NFD"),
        ({"agent_nodeReports_topology": True}, "patch", "noderesourcetopologies", "the NodeResourceTopology"),
    ],
)
async def test_what_is_switched_on_needs_its_own_right(
    patient: Patient, flags: dict[str, object], verb: str, resource: str, needed_for: str
) -> None:
    async with ApiServer() as server:
        put_node(server)
        server.forbid(verb, resource)
        found = await patient.failure("cluster.rights", **settings(patient, server, **flags))
    assert found.what == f"may not {verb} {resource}, for {needed_for}"


async def test_a_server_that_is_away(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PATIENCE", Patience(attempt=0.5, budget=0.5))
    async with ApiServer() as server:
        put_node(server)
        where = settings(patient, server)
        server.fail(1, verb="get", code=401)
        assert "401" in (await patient.failure("cluster.server", **where)).what
    assert "did not answer" in (await patient.failure("cluster.server", **where)).what


async def test_a_node_of_another_name(patient: Patient) -> None:
    async with ApiServer() as server:
        found = await patient.failure("cluster.node", **settings(patient, server))
    assert found.what == "there is no Node 'node-a'"


@pytest.mark.parametrize(
    ("versions", "flags", "result"),
    [
        (["v1beta1"], {}, Result.WARNING),
        (["v1alpha1"], {}, Result.WARNING),
        (["v1alpha1"], {"agent_frontDoors_dra": True}, Result.FAILED),
        (["v1"], {"agent_frontDoors_dra": False}, Result.SKIPPED),
    ],
)
async def test_a_cluster_that_is_too_old_for_claims(
    patient: Patient, versions: list[str], flags: dict[str, object], result: Result
) -> None:
    async with ApiServer() as server:
        put_node(server)
        server.serve("resource.k8s.io", *versions)
        only(await patient.of("cluster.claims", **settings(patient, server, **flags)), result)


async def test_slices_that_somebody_else_writes(patient: Patient) -> None:
    async with ApiServer() as server:
        put_node(server)
        entry = {"manager": "gpu-kubelet-plugin", "operation": "Update"}
        spec = {"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": {"name": "node-a"}}
        server.put(RESOURCE_SLICES, {"metadata": {"name": "node-a-1", "managedFields": [entry]}, "spec": spec})
        found = await patient.failure("owners.slices", **settings(patient, server))
    assert found.what.endswith("node-a-1 by gpu-kubelet-plugin")


@pytest.mark.parametrize(
    ("label", "value", "who"),
    [("nvidia.com/gpu.deploy.device-plugin", "true", "NVIDIA's device plugin"), ("gpu", "on", "HAMi")],
)
async def test_a_label_that_tells_somebody_else_to_serve_here(
    patient: Patient, label: str, value: str, who: str
) -> None:
    async with ApiServer() as server:
        put_node(server, **{label: value})
        found = await patient.warning("owners.operator", **settings(patient, server))
    assert who in found.what


@pytest.mark.parametrize(
    ("groups", "labels", "who"),
    [
        (["scheduling.run.ai"], {}, "KAI Scheduler"),
        (["autoscaling.x-k8s.io"], {}, "cluster-autoscaler"),
        ([], {"karpenter.sh/nodepool": "gpus"}, "Karpenter"),
    ],
)
async def test_who_would_count_gpus_twice_is_named_where_both_front_doors_are_open(
    patient: Patient, groups: list[str], labels: dict[str, str], who: str
) -> None:
    async with ApiServer() as server:
        put_node(server, **labels)
        for group in groups:
            server.serve(group, "v1")
        found = await patient.warning("neighbours.counting", **settings(patient, server))
        assert found.what.startswith(f"{who} does not see")
        assert found.where.endswith([*groups, *labels][0])
        for door in ("devicePlugin", "dra"):
            alone = {f"agent_frontDoors_{door}": False}
            only(await patient.of("neighbours.counting", **settings(patient, server, **alone)), Result.SKIPPED)


async def test_a_cluster_that_hides_its_groups_is_examined_to_the_end(patient: Patient) -> None:
    async with ApiServer() as server:
        put_node(server)
        server.forbid("get", "/apis")
        where = settings(patient, server)
        assert "cannot get path" in only(await patient.of("neighbours.counting", **where), Result.SKIPPED).what
        server.permit()
        only(await patient.of("neighbours.counting", **where), Result.OK)


async def test_a_gpu_that_hami_has_registered_is_named_until_it_is_left_to_it(patient: Patient) -> None:
    gpu = patient.place.simulated.node.faults.gpu(7)  # named by its minor number: gpu-5
    register = {"hami.io/node-nvidia-register": f"{gpu.uuid},10,143771,100,NVIDIA-H200,1,true:"}
    async with ApiServer() as server:
        server.put(NODES, {"metadata": {"name": "node-a", "annotations": register}})
        found = await patient.failure("owners.gpus", **settings(patient, server))
        assert found.what == "HAMi's device plugin gives out gpu-5 too"
        left = settings(patient, server, agent_devices_exclude=["7"])
        only(await patient.of("owners.gpus", **left), Result.OK)
        assert only(await patient.of("gpus.excluded", **left), Result.OK).what == "left to others: gpu-5"
    only(await patient.of("gpus.excluded"), Result.SKIPPED)


def test_the_tests_use_a_folder_of_their_own(patient: Patient) -> None:
    assert patient.place.settings().paths.state_dir != Path("/var/lib/gpu-node-agent")
