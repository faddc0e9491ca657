"""Labels are written to the chosen place when they have changed, and those of others are left to them."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.errors import LabelsNotWritten
from node_agent.kit.latest import Latest
from node_agent.kit.tasks import running
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import NODE_FEATURES, NODES, PODS, Object
from node_agent.reporting import node_reporter
from node_agent.reporting.label_places import (
    FeatureFile,
    FeatureObject,
    LabelPlace,
    NodeLabels,
    Stored,
    owners_of_pod,
)
from node_agent.reporting.label_writer import STAMP, LabelWriter, planned
from node_agent.reporting.node_reporter import NodeReporter, Reports
from tests.fakes.api_server import ApiServer
from tests.fakes.health import NODE, Ward
from tests.fakes.patience import HASTY, PATIENT

QUIET = 0.2
COUNT, PRODUCT, CLIQUE = "nvidia.com/gpu.count", "nvidia.com/gpu.product", "nvidia.com/gpu.clique"
EIGHT = {COUNT: "8", PRODUCT: "NVIDIA-H200"}
SEVEN = EIGHT | {COUNT: "7"}
FEATURE = f"gpu-node-agent-{NODE}"


# What is to be written


def plan(
    wanted: Mapping[str, str], stored: Stored | None = None, *, take_over: bool = False, stamped: bool = True
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    made = planned(wanted, stored or Stored(), now=1000.9, take_over=take_over, stamped=stamped)
    return made.labels, made.left


def test_labels_that_are_new_are_stamped_with_the_time() -> None:
    assert plan(EIGHT) == ({STAMP: "1000", **EIGHT}, {})


def test_labels_that_stay_keep_their_stamp_and_those_that_change_get_another() -> None:
    stored = Stored(own={STAMP: "7", **EIGHT})
    assert plan(EIGHT, stored)[0] == stored.own
    assert plan(SEVEN, stored)[0][STAMP] == "1000"
    assert plan({COUNT: "8"}, stored)[0][STAMP] == "1000"


def test_without_a_stamp_an_old_one_goes() -> None:
    assert plan(EIGHT, Stored(own={STAMP: "7", **EIGHT}), stamped=False)[0] == EIGHT


def test_where_there_is_nothing_to_say_there_is_no_stamp_either() -> None:
    assert plan({}, Stored(own={STAMP: "7", **EIGHT})) == ({}, {})


def test_a_label_that_another_one_has_set_is_left_to_it_and_the_others_are_written() -> None:
    stored = Stored(others={CLIQUE: "dra-driver", "example.com/zone": "kubectl"})
    labels, left = plan({**EIGHT, CLIQUE: "a.1"}, stored, stamped=False)
    assert (labels, left) == (EIGHT, {CLIQUE: "dra-driver"})


def test_beside_gfd_nothing_of_gfds_is_written_not_even_the_stamp() -> None:
    gfd = {key: "nfd-master" for key in (STAMP, *EIGHT)}
    assert plan(EIGHT, Stored(others=gfd)) == ({}, {COUNT: "nfd-master", PRODUCT: "nfd-master"})


def test_who_is_told_to_take_over_writes_all() -> None:
    assert plan(EIGHT, Stored(others={COUNT: "kubectl"}), take_over=True) == ({STAMP: "1000", **EIGHT}, {})


NAMED = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"))


@given(wanted=NAMED, own=NAMED, others=NAMED)
def test_what_was_written_as_planned_needs_no_second_write(
    wanted: dict[str, str], own: dict[str, str], others: dict[str, str]
) -> None:
    first = plan(wanted, Stored(own=own, others=others))[0]
    again = planned(wanted, Stored(own=first, others=others), now=2000.0, take_over=False, stamped=True)
    assert again.labels == first
    assert not first.keys() & others.keys()


# The places


@dataclass
class Place:
    """An API server with a node, and what the labels shall be."""

    server: ApiServer
    ward: Ward = field(default_factory=Ward)
    wanted: Latest[Mapping[str, str] | None] = field(default_factory=lambda: Latest[Mapping[str, str] | None](EIGHT))
    reports: Reports = field(default_factory=lambda: Latest({}))
    patience: Patience = PATIENT

    @asynccontextmanager
    async def kept(
        self, make: Callable[[KubeClient], LabelPlace], *, take_over: bool = False, look_seconds: float = 60.0
    ) -> AsyncIterator[None]:
        async with KubeClient(self.server.access, patience=self.patience) as client:
            writer = LabelWriter(
                make(client), lambda: self.wanted.value, take_over=take_over, look_seconds=look_seconds
            )
            reporter = NodeReporter(
                self.ward.view, [writer], settle_seconds=0.01, more=[self.wanted], reports=self.reports
            )
            async with running(reporter.run()):
                yield

    @property
    def node(self) -> Object:
        (node,) = self.server.objects(NODES)
        return node

    @property
    def labels(self) -> dict[str, str]:
        """The Node's, without the stamp."""
        return {key: value for key, value in self.node["metadata"].get("labels", {}).items() if key != STAMP}

    def set_by(self, manager: str, labels: Mapping[str, str]) -> None:
        """Somebody labels the node."""
        node = self.node
        fields: Object = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in labels}}}
        node["metadata"].setdefault("managedFields", []).append({"manager": manager, "fieldsV1": fields})
        node["metadata"]["labels"] = {**node["metadata"].get("labels", {}), **labels}
        self.server.put(NODES, node)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)

    def standing(self) -> str:
        return "".join(one.standing + (one.trouble or "") for one in self.reports.value.values())


@pytest.fixture
async def place(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    monkeypatch.setattr(node_reporter, "FIRST_PAUSE", 0.05)
    async with ApiServer() as server:
        server.put(NODES, {"metadata": {"name": NODE, "labels": {"example.com/zone": "a"}}})
        yield Place(server=server)


def node_labels(client: KubeClient) -> NodeLabels:
    return NodeLabels(client, NODE)


def feature(client: KubeClient) -> FeatureObject:
    return FeatureObject(client, NODE, "gpu-system", lambda: owners_of_pod(client, "agent-x", "gpu-system"))


async def test_the_nodes_labels_follow_and_those_of_others_stay(place: Place) -> None:
    async with place.kept(node_labels):
        await place.until(lambda: place.labels == {"example.com/zone": "a", **EIGHT})
        place.wanted.set(SEVEN)
        await place.until(lambda: place.labels == {"example.com/zone": "a", **SEVEN})
        place.wanted.set({COUNT: "7"})
        await place.until(lambda: place.labels == {"example.com/zone": "a", COUNT: "7"})
        place.wanted.set({})
        await place.until(lambda: place.labels == {"example.com/zone": "a"})
    assert STAMP not in place.node["metadata"]["labels"]


async def test_labels_that_cannot_be_told_at_the_moment_stay(place: Place) -> None:
    async with place.kept(node_labels):
        await place.until(lambda: place.labels.keys() > EIGHT.keys())
        place.wanted.set(None)
        await asyncio.sleep(QUIET)
    assert place.labels == {"example.com/zone": "a", **EIGHT}


async def test_an_idle_agent_asks_nothing_and_one_that_starts_again_writes_nothing(place: Place) -> None:
    async with place.kept(node_labels):
        await place.until(lambda: place.labels.keys() > EIGHT.keys())
        asked = len(place.server.requests)
        await asyncio.sleep(QUIET)
        assert len(place.server.requests) == asked
    async with place.kept(node_labels):
        await asyncio.sleep(QUIET)
    assert [one.verb for one in place.server.writes()] == ["patch"]


async def test_a_label_that_was_removed_is_back(place: Place) -> None:
    async with place.kept(node_labels, look_seconds=0.05):
        await place.until(lambda: place.labels.keys() > EIGHT.keys())
        place.server.put(NODES, {"metadata": {"name": NODE}})
        await place.until(lambda: place.labels == EIGHT)


async def test_beside_gfd_the_agent_stands_back_and_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    theirs = EIGHT | {COUNT: "4", STAMP: "1"}
    place.set_by("nfd-master", theirs)
    async with place.kept(node_labels, look_seconds=0.02):
        await place.until(lambda: len(place.server.requests) > 3)
    assert place.server.writes() == []
    assert place.standing() == f"0 in Node {NODE}; 2 more are set by nfd-master and left alone"
    assert [one.__dict__["facts"]["owners"] for one in caplog.records] == ["nfd-master"]


async def test_told_to_take_over_the_agent_writes_what_gfd_has_written(place: Place) -> None:
    place.set_by("nfd-master", EIGHT | {COUNT: "4"})
    async with place.kept(node_labels, take_over=True):
        await place.until(lambda: place.labels == {"example.com/zone": "a", **EIGHT})


async def test_what_could_not_be_written_is_written_when_the_server_is_back(place: Place) -> None:
    place.patience = HASTY
    await place.server.stop()
    async with place.kept(node_labels):
        await place.until(lambda: "/api/v1/nodes/n0" in place.standing())
        await place.server.start()
        await place.until(lambda: place.labels.keys() > EIGHT.keys())
        await place.until(lambda: place.standing() == f"2 in Node {NODE}")


# The NodeFeature object


def features(place: Place) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in place.server.objects(NODE_FEATURES)}


async def test_the_object_is_the_nodes_and_goes_with_the_agents_daemonset(place: Place) -> None:
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u1", "controller": True}]
    place.server.put(PODS, {"metadata": {"name": "agent-x", "namespace": "gpu-system", "ownerReferences": owners}})
    async with place.kept(feature):
        await place.until(lambda: features(place))
    found = features(place)[FEATURE]
    assert found["metadata"]["namespace"] == "gpu-system"
    assert found["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": NODE}
    assert found["metadata"]["ownerReferences"] == owners
    assert found["spec"]["features"] == {"flags": {}, "attributes": {}, "instances": {}}
    assert {key: value for key, value in found["spec"]["labels"].items() if key != STAMP} == EIGHT
    assert place.labels == {"example.com/zone": "a"}


async def test_a_pod_that_may_not_be_read_costs_the_object_its_owner_alone(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.server.forbid("get", "pods")
    async with place.kept(feature):
        await place.until(lambda: features(place))
    assert "ownerReferences" not in features(place)[FEATURE]["metadata"]
    assert "cannot get resource" in str([one.__dict__["facts"]["reason"] for one in caplog.records])


async def test_the_object_follows_and_is_gone_with_the_last_label(place: Place) -> None:
    async with place.kept(feature):
        await place.until(lambda: features(place))
        place.wanted.set({COUNT: "7"})
        await place.until(lambda: features(place)[FEATURE]["spec"]["labels"].keys() == {COUNT, STAMP})
        place.wanted.set({})
        await place.until(lambda: not features(place))


async def test_what_gfds_object_has_is_left_to_it(place: Place) -> None:
    gfd = {
        "metadata": {
            "name": f"nvidia-features-for-{NODE}",
            "namespace": "gpu-operator",
            "labels": {"nfd.node.kubernetes.io/node-name": NODE},
        },
        "spec": {"labels": {**EIGHT, STAMP: "1"}},
    }
    elsewhere = {
        "metadata": {
            "name": "nvidia-features-for-n1",
            "namespace": "gpu-operator",
            "labels": {"nfd.node.kubernetes.io/node-name": "n1"},
        },
        "spec": {"labels": {CLIQUE: "a.1"}},
    }
    for one in (gfd, elsewhere):
        place.server.put(NODE_FEATURES, one)
    place.wanted.set({**EIGHT, CLIQUE: "a.1"})
    async with place.kept(feature, look_seconds=0.05):
        await place.until(lambda: FEATURE in features(place))
        assert features(place)[FEATURE]["spec"]["labels"] == {CLIQUE: "a.1"}
        theirs = f"2 more are set by NodeFeature gpu-operator/nvidia-features-for-{NODE}"
        await place.until(lambda: theirs in place.standing())
        place.server.remove(NODE_FEATURES, f"nvidia-features-for-{NODE}", "gpu-operator")
        await place.until(lambda: features(place)[FEATURE]["spec"]["labels"].keys() == {CLIQUE, STAMP, *EIGHT})


async def test_what_somebody_has_set_on_the_node_is_left_to_them_but_not_what_nfd_has_made_of_ours(
    place: Place,
) -> None:
    """NFD would take over a label that an administrator has set, and remove it when the agent goes."""
    present = "nvidia.com/gpu.present"
    place.wanted.set({**EIGHT, present: "true"})
    place.set_by("kubectl-label", {present: "true"})
    async with place.kept(feature, look_seconds=0.05):
        await place.until(lambda: FEATURE in features(place))
        assert features(place)[FEATURE]["spec"]["labels"].keys() == {STAMP, *EIGHT}
        await place.until(lambda: "1 more are set by kubectl-label" in place.standing())
        node = place.node
        listed = ",".join(["cpu-model.vendor_id", STAMP, *EIGHT])
        node["metadata"]["annotations"] = {"nfd.node.kubernetes.io/feature-labels": listed}
        place.server.put(NODES, node)
        place.set_by("nfd-master", EIGHT)
        asked = len(place.server.requests)
        await place.until(lambda: len(place.server.requests) > asked + 6)
    assert features(place)[FEATURE]["spec"]["labels"].keys() == {STAMP, *EIGHT}


# The feature file


async def test_the_file_has_a_line_for_each_label_and_says_whose_it_is(tmp_path: Path) -> None:
    file = FeatureFile(tmp_path / "gpu-node-agent", deaf_seconds=0)
    await file.put(EIGHT)
    assert (tmp_path / "gpu-node-agent").read_text() == (
        "# written by gpu-node-agent\nnvidia.com/gpu.count=8\nnvidia.com/gpu.product=NVIDIA-H200\n"
    )
    assert (tmp_path / "gpu-node-agent").stat().st_mode & 0o777 == 0o644
    assert await file.look() == Stored(own=EIGHT)
    await file.put({})
    assert list(tmp_path.iterdir()) == []
    assert await file.look() == Stored()


@pytest.mark.parametrize("labels", [EIGHT, {}])
async def test_the_worker_hears_of_a_change_once_more_when_it_is_not_deaf(
    tmp_path: Path, labels: dict[str, str]
) -> None:
    (tmp_path / "gpu-node-agent").write_text("# written by gpu-node-agent\n")
    began = time.time()
    await FeatureFile(tmp_path / "gpu-node-agent", deaf_seconds=0.2).put(labels)
    assert tmp_path.stat().st_mtime - began > 0.18


async def test_the_labels_of_other_files_are_theirs_but_not_those_that_nfd_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "gfd").write_text("# a comment\n# +expiry-time=2030-01-01T00:00:00Z\nnvidia.com/gpu.count=4\n")
    (tmp_path / "site").write_text("example.com/rack\n\n")
    (tmp_path / ".gfd.new").write_text(f"{PRODUCT}=x\n")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    found = await FeatureFile(tmp_path / "gpu-node-agent").look()
    assert found == Stored(others={COUNT: f"file {tmp_path}/gfd", "example.com/rack": f"file {tmp_path}/site"})


async def test_another_programs_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "gfd").write_text("nvidia.com/gpu.count=4\n")
    with pytest.raises(LabelsNotWritten, match="is another program's: remove it, or name another"):
        await FeatureFile(tmp_path / "gfd").look()


async def test_a_folder_that_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LabelsNotWritten, match=r"features.d: No such file or directory: .* is to be mounted"):
        await FeatureFile(tmp_path / "features.d" / "gpu-node-agent").look()
    with pytest.raises(LabelsNotWritten, match="cannot be written: No such file"):
        await FeatureFile(tmp_path / "features.d" / "gpu-node-agent").put(EIGHT)


async def test_the_file_follows_and_a_trouble_shows_until_it_is_over(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "features.d"
    async with place.kept(lambda _: FeatureFile(folder / "own", deaf_seconds=0)):
        await place.until(lambda: "is to be mounted" in place.standing())
        folder.mkdir()
        await place.until((folder / "own").exists)
        assert f"{COUNT}=8" in (folder / "own").read_text().splitlines()
        place.wanted.set(SEVEN)
        await place.until(lambda: f"{COUNT}=7" in (folder / "own").read_text().splitlines())
        await place.until(lambda: place.standing() == f"2 in file {folder}/own")


async def test_a_change_is_written_at_once(place: Place) -> None:
    async with place.kept(node_labels):
        await place.until(lambda: place.labels.keys() > EIGHT.keys())
        began = time.monotonic()
        place.wanted.set(SEVEN)
        await place.until(lambda: place.labels.get(COUNT) == "7")
    assert time.monotonic() - began < 20
