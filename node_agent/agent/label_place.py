"""Chooses the place where the node's labels are written, by the settings and by what the cluster has."""

from functools import partial

from node_agent.agent.access import access_of
from node_agent.config.settings import Settings
from node_agent.errors import NotFound
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import NODE_FEATURES
from node_agent.reporting.label_places import (
    FeatureFile,
    FeatureObject,
    FirstFitting,
    LabelPlace,
    NodeLabels,
    owners_of_pod,
)

ONLINE = ("auto", "node-feature", "node")
"""The writers that need a way to the API server."""


def label_place(settings: Settings, client: KubeClient | None, namespace: str) -> LabelPlace | None:
    """Where the labels go; None where nowhere. ``namespace`` is that of the agent's own pod."""
    wanted, file = settings.labels, FeatureFile(settings.labels.file)
    if wanted.writer == "nfd-file":
        return file
    if client is None:
        return file if wanted.writer == "auto" and wanted.file.parent.is_dir() else None
    feature, node = _feature(settings, client, namespace), NodeLabels(client, settings.node_name)

    async def fitting() -> LabelPlace:
        if wanted.node_feature and await _has_features(client):
            return feature
        return file if wanted.file.parent.is_dir() else node

    places: dict[str, LabelPlace] = {"node-feature": feature, "node": node, "auto": FirstFitting(fitting)}
    return places.get(wanted.writer)


async def remove_labels(settings: Settings) -> list[str]:
    """Take away what stands of the agent's labels in any place; returns the places where there was something.

    Raises:
        KubeError: there is no way to the API server, or a right is missing.
        LabelsNotWritten: the file cannot be removed.
    """
    access = access_of(settings)
    async with KubeClient(access) as client:
        places: list[LabelPlace] = [NodeLabels(client, settings.node_name)]
        if await _has_features(client):
            places.append(_feature(settings, client, access.namespace))
        if settings.labels.file.parent.is_dir():
            places.append(FeatureFile(settings.labels.file))
        found = [place for place in places if (await place.look()).own]
        for place in found:
            await place.put({})
    return [place.name for place in found]


def _feature(settings: Settings, client: KubeClient, namespace: str) -> FeatureObject:
    owners = partial(owners_of_pod, client, settings.pod_name, namespace)
    return FeatureObject(client, settings.node_name, namespace, owners)


async def _has_features(client: KubeClient) -> bool:
    try:
        await client.newest_version(NODE_FEATURES.group, (NODE_FEATURES.version,))
    except NotFound:
        return False
    return True
