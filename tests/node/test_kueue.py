"""Jobs under the quotas of the real Kueue, by limit and by claim: `make test-kueue`.

Kueue runs as its own manifests have it, but for what the rig has no use for. The agent is installed as shipped.
"""

import http
import shutil
from collections.abc import Iterator
from functools import partial

import pytest
import yaml

from tests.node import agent as agents
from tests.node import examples
from tests.node.rig import binaries, image
from tests.node.rig.api import ApiError, Object
from tests.node.rig.command import run
from tests.node.rig.node import RealNode
from tests.node.rig.waiting import NotYet, wait_until
from tests.node.test_claims import devices
from tests.node.test_claims_and_scheduler import rule

pytestmark = pytest.mark.kueue

NAMESPACE, NAME, IMAGE = "kueue-system", "kueue-controller-manager", "rig.local/kueue:1"
SETTINGS = "controller_manager_config.yaml"
FOLDER = examples.EXAMPLES / "kueue"
# The API server has no aggregation of other servers here, and nobody asks for the lists that Kueue would serve.
OURS = {"featureGates": {"VisibilityOnDemand": False}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealNode]:
    """A node with Kueue, set up for claims as the examples say, with their queue, and with the agent."""
    with RealNode() as node:
        agents.start(node)
        wait_until("the slices are there", lambda: len(devices(node)) == 8)
        install(node)
        for manifest in yaml.safe_load_all((FOLDER / "queue.yaml").read_text()):
            wait_until(f"Kueue takes {manifest['kind']}", partial(taken, node, manifest))
        yield node


def install(node: RealNode) -> None:
    bring_image(node)
    for manifest in manifests():
        node.api.create(manifest)
    wait_until("Kueue runs", lambda: runs(node), timeout=120)


def bring_image(node: RealNode) -> None:
    content, archive = node.machine.folder / "kueue", node.machine.folder / "kueue.tar"
    content.mkdir()
    shutil.copy(binaries.build(binaries.KUEUE)["kueue"], content / "manager")
    image.write_archive(archive, name=IMAGE, content=content, command=["/manager"])
    node.machine.run(["ctr", "--namespace=k8s.io", "images", "import", str(archive)], timeout=300)


def manifests() -> Iterator[Object]:
    kubectl = binaries.build(binaries.KUBECTL)["kubectl"]
    rendered = run([str(kubectl), "kustomize", str(binaries.KUEUE.source / "config" / "default")])
    for manifest in yaml.safe_load_all(rendered):
        if manifest["kind"] == "Deployment":
            on_the_rig(manifest["spec"]["template"]["spec"])
        if SETTINGS in manifest.get("data", {}):
            manifest["data"][SETTINGS] = yaml.safe_dump(settings(manifest["data"][SETTINGS]))
        if manifest["kind"] != "APIService":
            yield manifest


def on_the_rig(spec: Object) -> None:
    """Say what Kueue's own image does of its user, and that no image is pulled."""
    spec["securityContext"]["runAsUser"] = 65532
    spec["containers"][0] |= {"image": IMAGE, "imagePullPolicy": "Never"}


def settings(shipped: str) -> Object:
    """Kueue's settings, the example's beside them."""
    wanted = yaml.safe_load((FOLDER / "settings.yaml").read_text())
    gates = wanted["featureGates"] | OURS["featureGates"]
    return {**yaml.safe_load(shipped), **wanted, "featureGates": gates}


def runs(node: RealNode) -> bool:
    if node.api.get("Deployment", NAME, NAMESPACE)["status"].get("availableReplicas"):
        return True
    raise NotYet(f"{[node.pods.describe(pod) for pod in node.api.list('Pod', NAMESPACE)]}")


def taken(node: RealNode, manifest: Object) -> bool:
    """Whether an object is made: the API server hears a moment later than we do where Kueue's webhooks are."""
    try:
        return bool(node.api.create(manifest))
    except ApiError as error:
        if error.code != http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        raise NotYet(str(error)) from error


@pytest.fixture
def node(cluster: RealNode) -> Iterator[RealNode]:
    before = len(cluster.api.created)
    yield cluster
    for made in reversed(cluster.api.created[before:]):
        cluster.api.delete(made["kind"], made["metadata"]["name"])
    del cluster.api.created[before:]
    wait_until("all jobs are gone", lambda: not [*cluster.api.list("Workload"), *pods(cluster)], timeout=60)


def submit(node: RealNode, job: Object) -> None:
    """Hand a job in; one after the other, since those of one second have no order.

    The shell in its pod does not heed SIGTERM, which would take half a minute each.
    """
    job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    node.api.create(job)
    wait_until(f"Kueue has looked at {job['metadata']['name']}", lambda: word(node, job["metadata"]["name"]))


def word(node: RealNode, job: str) -> Object:
    """What Kueue says of a job's quota: a condition, empty until there is one."""
    uid = node.api.get("Job", job)["metadata"]["uid"]
    workloads = node.api.list("Workload", "default", labelSelector=f"kueue.x-k8s.io/job-uid={uid}")
    said: list[Object] = [it for one in workloads for it in one.get("status", {}).get("conditions", ())]
    return next((it for it in said if it["type"] == "QuotaReserved"), {})


def waits(node: RealNode, job: str, reason: str) -> bool:
    """Whether Kueue says of a job that it waits and why, and has let it make no pod."""
    said = word(node, job)
    if said["status"] != "False" or reason not in said["message"]:
        raise NotYet(f"Kueue says of it: {said}")
    return node.api.get("Job", job)["spec"]["suspend"] is True and not pods(node, job)


def pods(node: RealNode, job: str = "") -> list[Object]:
    return node.api.list("Pod", "default", labelSelector=f"job-name={job}" if job else "job-name")


def gpus(node: RealNode, job: str) -> set[str]:
    """The GPUs that a job's one pod sees, once it runs."""
    (pod,) = wait_until(f"job {job} has its pod", lambda: pods(node, job), timeout=60)
    running = node.pods.wait(pod["metadata"]["name"], timeout=60)
    return set(node.pods.execute(running, examples.SEES).split())


def end(node: RealNode, job: str) -> None:
    """Have a job's work done before its ten minutes are over."""
    (pod,) = pods(node, job)
    node.pods.execute(pod, ["killall", "sleep"])
    wait_until(f"job {job} is complete", lambda: node.api.get("Job", job)["status"].get("succeeded"))


def shown(node: RealNode, name: str) -> None:
    """Make an example's objects and hold each job to what is expected."""
    example = examples.example(name)
    for manifest in example.objects:
        submit(node, manifest) if manifest["kind"] == "Job" else node.api.create(manifest)
    seen = {job: gpus(node, job) for job, outcome in example.expected.items() if not outcome.pending}
    for job, outcome in example.expected.items():
        if outcome.pending:
            wait_until(f"job {job} waits", partial(waits, node, job, outcome.pending))
        else:
            assert len(seen[job]) == outcome.gpus, job
        if outcome.apart_from:
            assert not seen[job] & seen[outcome.apart_from], job


def test_a_job_beyond_the_quota_waits_and_says_why_until_one_before_it_has_ended(node: RealNode) -> None:
    shown(node, "kueue/limits")
    end(node, "first")
    assert len(gpus(node, "second")) == 4


def test_limits_and_claims_draw_on_one_quota(node: RealNode) -> None:
    shown(node, "kueue/claims")
    end(node, "by-limit")
    assert len(gpus(node, "over")) == 2


def test_a_gang_of_two_with_claims_is_let_in_whole_or_not_at_all(node: RealNode) -> None:
    """One GPU of the quota is left, which is enough for one of its pods."""
    shown(node, "kueue/gang")
    end(node, "three")
    workers = wait_until("both workers are made", lambda: two(pods(node, "gang")))
    seen = [set(node.pods.execute(node.pods.wait(one["metadata"]["name"]), examples.SEES).split()) for one in workers]
    assert [len(one) for one in seen] == [1, 1]
    assert not seen[0] & seen[1]


def two(found: list[Object]) -> list[Object]:
    return found if len(found) == 2 else []


def test_gpus_that_an_operators_rule_taints_go_to_no_job_of_kueues(node: RealNode) -> None:
    """Without the rules the job would have these four, which come first."""
    for device in ("gpu-0", "gpu-1", "gpu-2", "gpu-3"):
        node.api.create(rule(device, device, "NoSchedule"))
    template, job = (
        one for one in examples.example("kueue/gang").objects if one["metadata"]["name"] in ("three-gpus", "three")
    )
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    request["exactly"]["count"] = 4
    node.api.create(template)
    submit(node, job)
    assert gpus(node, "three") == {f"/dev/nvidia{number}" for number in range(4, 8)}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("claim-by-memory", "CEL selectors are not supported"),
        ("claim-close", "device constraints (MatchAttribute) are not supported"),
        ("claim-first-available", "FirstAvailable device selection is not supported"),
        ("claim-time-sliced", "device config is not supported"),
        ("claim-shared", "does not support use of resource claims"),
    ],
)
def test_a_claim_that_kueue_cannot_count_is_never_let_in_and_says_why(node: RealNode, name: str, reason: str) -> None:
    """The page names these; a Kueue that counts them fails here."""
    claims = [one for one in examples.example(name).objects if one["kind"].startswith("ResourceClaim")]
    pod = next(one for one in examples.example(name).objects if one["kind"] == "Pod")
    for one in claims:
        node.api.create(one)
    submit(node, job_of(pod))
    wait_until("it waits", partial(waits, node, "uncounted", reason))


def job_of(pod: Object) -> Object:
    """The pod of an example as a job in the examples' queue."""
    spec = pod["spec"] | {"restartPolicy": "Never", "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"}}
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    metadata = {"name": "uncounted", "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": spec}}}
