"""The API server: whether it is reached, what may be done there, and whether it serves claims."""

from collections.abc import AsyncIterator, Iterator

from msgspec import Struct

from node_agent.agent.access import access_of
from node_agent.config.settings import Settings
from node_agent.doctor import neighbours, owners
from node_agent.doctor.finding import Finding, failed, ok, or_ok, skipped, warning
from node_agent.doctor.place import Place
from node_agent.errors import Forbidden, KubeAccessError, KubeError, NotFound
from node_agent.kube.access import Access
from node_agent.kube.calls import Patience
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import NODES, RESOURCE_GROUP, RESOURCE_SLICES, RESOURCE_VERSIONS, Object, Resource

PATIENCE = Patience(attempt=5.0, budget=5.0)

ACCESS_REVIEWS = Resource(
    plural="selfsubjectaccessreviews", kind="SelfSubjectAccessReview", group="authorization.k8s.io", namespaced=False
)


class Right(Struct, frozen=True, kw_only=True):
    """What has to be allowed, in RBAC's words, and what for."""

    resource: str
    verbs: tuple[str, ...]
    needed_for: str
    group: str = ""
    subresource: str = ""


def rights_of(settings: Settings) -> Iterator[Right]:
    """The rights that these settings need."""
    if settings.dra is not False:
        verbs = ("list", "watch", "create", "update", "delete")
        yield Right(resource="resourceslices", verbs=verbs, needed_for="publishing devices", group=RESOURCE_GROUP)
        yield Right(
            resource="resourceclaims",
            verbs=("get", "list"),
            needed_for="preparing claims",
            group=RESOURCE_GROUP,
        )
        yield Right(
            resource="resourceclaims",
            verbs=("patch",),
            needed_for="the status of claims",
            group=RESOURCE_GROUP,
            subresource="status",
        )
    if settings.dra is not False or settings.node_condition or settings.node_events:
        yield Right(resource="nodes", verbs=("get",), needed_for="knowing the node")
    if settings.node_condition:
        yield Right(resource="nodes", verbs=("patch",), needed_for="the condition GPUHealthy", subresource="status")
    if settings.node_topology:
        yield Right(
            resource="noderesourcetopologies",
            verbs=("get", "create", "patch"),
            needed_for="the NodeResourceTopology",
            group="topology.node.k8s.io",
        )
    yield from _rights_of_labels(settings)
    if settings.node_events:
        yield Right(resource="events", verbs=("create", "patch"), needed_for="Events", group="events.k8s.io")


def _rights_of_labels(settings: Settings) -> Iterator[Right]:
    """Those for the labels that are written, in any place that may be chosen for them, and for those that are read."""
    writer, layouts = settings.labels.writer, settings.mig_layouts != "never"
    patched = [*["labels on the Node"] * (writer in ("auto", "node")), *["the state of the MIG layout"] * layouts]
    if patched:
        yield Right(resource="nodes", verbs=("patch",), needed_for=" and ".join(patched))
    if layouts:
        yield Right(resource="nodes", verbs=("list", "watch"), needed_for="the label that names the MIG layout")
    if writer == "node-feature" or (writer == "auto" and settings.labels.node_feature):
        yield Right(
            resource="nodefeatures",
            verbs=("list", "create", "patch", "delete"),
            needed_for="labels by NFD",
            group="nfd.k8s-sigs.io",
        )


async def cluster(place: Place) -> AsyncIterator[Finding]:
    """All that is asked of the API server."""
    settings = place.settings
    try:
        access = access_of(settings)
    except KubeAccessError as error:
        fix = "run it in the agent's pod, or name a kubeconfig (agent.kubeconfig, KUBECONFIG) and NODE_NAME"
        if settings.dra is True:
            yield failed("cluster.access", str(error), fix=fix)
        else:
            yield skipped("cluster.access", str(error))
        return
    yield ok("cluster.access", f"the API server is {access.server}", access.source)
    async with KubeClient(access, patience=PATIENCE) as client:
        try:
            async for finding in _asked(client, access, place):
                yield finding
        except KubeError as error:
            fix = "see that the API server is up and reached from here, and that the token is not too old"
            yield failed("cluster.server", str(error), access.server, fix=fix)


async def _asked(client: KubeClient, access: Access, place: Place) -> AsyncIterator[Finding]:
    settings = place.settings
    try:
        node = await client.get(NODES, settings.node_name)
    except NotFound:
        fix = "set NODE_NAME from spec.nodeName of the pod"
        yield failed("cluster.node", f"there is no Node {settings.node_name!r}", access.server, fix=fix)
        return
    except Forbidden as error:
        yield failed("cluster.node", str(error), access.server, fix=_APPLY)
        node = {"metadata": {}}
    else:
        facts = (node.get("status") or {}).get("nodeInfo") or {}
        yield ok("cluster.node", f"the Node is there; kubelet {facts.get('kubeletVersion', '?')}", settings.node_name)
    for finding in (*owners.node_labels(node, place), *neighbours.registered(node, place)):
        yield finding
    for finding in await _rights(client, settings):
        yield finding
    async for finding in _claims(client, settings):
        yield finding
    try:
        groups = await client.groups()
    except Forbidden as error:
        yield skipped("neighbours.counting", str(error))
        return
    for finding in neighbours.counting(node, groups, settings):
        yield finding


async def _rights(client: KubeClient, settings: Settings) -> tuple[Finding, ...]:
    wanted = [(right, verb) for right in rights_of(settings) for verb in right.verbs]
    missing = [
        failed("cluster.rights", f"may not {verb} {_named(right)}, for {right.needed_for}", fix=_APPLY)
        for right, verb in wanted
        if not await _may(client, right, verb)
    ]
    return or_ok(missing, "cluster.rights", f"all {len(wanted)} rights that are needed are there")


_APPLY = "apply the manifests of the mode, deploy/daemonset, or switch it off"


def _named(right: Right) -> str:
    return f"{right.resource}{'/' if right.subresource else ''}{right.subresource}"


async def _may(client: KubeClient, right: Right, verb: str) -> bool:
    attributes = {"group": right.group, "resource": right.resource, "subresource": right.subresource, "verb": verb}
    asked: Object = {
        "apiVersion": ACCESS_REVIEWS.api_version,
        "kind": ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(ACCESS_REVIEWS, asked)
    return bool(answer["status"]["allowed"])


async def _claims(client: KubeClient, settings: Settings) -> AsyncIterator[Finding]:
    """Whether the cluster serves claims at all, and who has published devices of the driver for this node."""
    if settings.dra is False:
        yield skipped("cluster.claims", "claims are not served as it is configured")
        return
    try:
        version = await client.newest_version()
    except NotFound as error:
        fix = "use Kubernetes 1.34 or later, or enable the API group and the gate DynamicResourceAllocation"
        say = failed if settings.dra is True else warning
        yield say("cluster.claims", str(error), fix=fix)
        return
    if version == RESOURCE_VERSIONS[0]:
        yield ok("cluster.claims", f"{RESOURCE_GROUP}/{version} is served")
    else:
        fix = "upgrade the cluster: beta versions of the API are removed one by one"
        yield warning("cluster.claims", f"only {RESOURCE_GROUP}/{version} is served", fix=fix)
    try:
        listed = await client.list(
            RESOURCE_SLICES.at(version),
            fields=f"spec.nodeName={settings.node_name},spec.driver={settings.vendor.driver}",
        )
    except Forbidden:
        yield skipped("owners.slices", "slices may not be listed")
        return
    for finding in owners.slices(list(listed.items), settings.vendor):
        yield finding
