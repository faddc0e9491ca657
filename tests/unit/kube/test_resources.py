"""Objects are found at the paths that the API gives them, and no name leads anywhere else."""

import pytest

from node_agent.kube.resources import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
    key_of,
)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (NODES.path(), "/api/v1/nodes"),
        (NODES.path(name="n0"), "/api/v1/nodes/n0"),
        (NODES.path(name="n0", subresource="status"), "/api/v1/nodes/n0/status"),
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("default"), "/api/v1/namespaces/default/pods"),
        (PODS.path("default", "a"), "/api/v1/namespaces/default/pods/a"),
        (RESOURCE_SLICES.path(name="s"), "/apis/resource.k8s.io/v1/resourceslices/s"),
        (RESOURCE_CLAIMS.path("ns", "c", "status"), "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c/status"),
        (RESOURCE_SLICES.at("v1beta1").path(), "/apis/resource.k8s.io/v1beta1/resourceslices"),
        (EVENTS.path("ns"), "/apis/events.k8s.io/v1/namespaces/ns/events"),
    ],
)
def test_an_object_has_the_path_that_the_api_gives_it(path: str, wanted: str) -> None:
    assert path == wanted


def test_a_resource_names_its_version_as_objects_do() -> None:
    assert NODES.api_version == "v1"
    assert RESOURCE_SLICES.api_version == "resource.k8s.io/v1"
    assert RESOURCE_SLICES.at("v1beta2").api_version == "resource.k8s.io/v1beta2"


def test_another_version_is_another_value_and_the_rest_stays() -> None:
    older = RESOURCE_CLAIMS.at("v1beta1")
    assert older != RESOURCE_CLAIMS
    assert older.at("v1") == RESOURCE_CLAIMS


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/", "../../secrets/x"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of an API object"):
        PODS.path("default", name)
    with pytest.raises(ValueError, match="cannot be the name of an API object"):
        PODS.path(name)


@pytest.mark.parametrize(("name", "quoted"), [("a?watch=1", "a%3Fwatch%3D1"), ("a b", "a%20b"), ("é", "%C3%A9")])
def test_a_name_cannot_add_to_the_request(name: str, quoted: str) -> None:
    assert NODES.path(name=name) == f"/api/v1/nodes/{quoted}"


def test_an_object_in_a_namespace_cannot_be_asked_for_without_it() -> None:
    with pytest.raises(ValueError, match="pods 'a' is in a namespace, and none was given"):
        PODS.path(name="a")


def test_what_is_in_no_namespace_cannot_be_asked_for_in_one() -> None:
    with pytest.raises(ValueError, match="nodes are in no namespace"):
        NODES.path("default", "n0")


def test_the_key_of_an_object_tells_it_from_its_namesakes() -> None:
    assert key_of({"metadata": {"name": "a", "namespace": "ns"}}) == "ns/a"
    assert key_of({"metadata": {"name": "a"}}) == "a"


def test_the_core_group_is_the_default() -> None:
    assert Resource(plural="configmaps", kind="ConfigMap").path("ns") == "/api/v1/namespaces/ns/configmaps"
