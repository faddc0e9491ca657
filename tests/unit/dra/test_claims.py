"""Claims as the API server has them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.dra.claims import POD_CLAIM_NAME, claim_of
from node_agent.errors import ClaimUnreadable
from node_agent.model.claim import AllocatedDevice, OpaqueConfig

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def document(**devices: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "uid": "u-1",
            "namespace": "team",
            "name": "four",
            "generation": 2,
            "annotations": {"resource.kubernetes.io/pod-claim-name": "gpus"},
        },
        "spec": {"devices": {"requests": [{"name": "gpus"}]}},
        "status": {"allocation": {"devices": devices, "nodeSelector": {}}, "reservedFor": [{"name": "pod"}]},
    }


RESULT = {"request": "gpus/big", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-3"}


def test_an_allocated_claim_is_read_with_all_that_a_node_needs() -> None:
    shared = {**RESULT, "request": "part", "adminAccess": True, "shareID": "s-1", "consumedCapacity": {"memory": "8Gi"}}
    claim = claim_of(document(results=[RESULT, shared]))

    assert (claim.uid, claim.full_name, claim.generation, claim.pod_claim_name) == ("u-1", "team/four", 2, "gpus")
    assert claim.results == (
        AllocatedDevice(request="gpus/big", driver="gpu.nvidia.com", pool="n", device="gpu-3"),
        AllocatedDevice(
            request="part",
            driver="gpu.nvidia.com",
            pool="n",
            device="gpu-3",
            admin=True,
            share_id="s-1",
            consumed={"memory": "8Gi"},
        ),
    )
    assert [result.base_request for result in claim.results] == ["gpus", "part"]


def test_a_claim_without_allocation_has_no_results_and_one_of_others_none_for_this_driver() -> None:
    bare = document()
    del bare["status"]["allocation"]
    assert claim_of(bare).results is None
    assert claim_of(document(results=[{**RESULT, "driver": "nic.example"}])).of_driver("gpu.nvidia.com") == ()


def test_class_configs_come_before_claim_configs_whatever_their_order() -> None:
    configs = [
        {"source": "FromClaim", "requests": ["gpus"], "opaque": {"driver": "d", "parameters": {"b": 1}}},
        {"source": "FromClass", "opaque": {"driver": "d", "parameters": {"a": 1}}},
        {"source": "FromClaim", "requests": []},
    ]
    assert claim_of(document(results=[RESULT], config=configs)).configs == (
        OpaqueConfig(driver="d", parameters={"a": 1}, from_class=True),
        OpaqueConfig(driver="d", parameters={"b": 1}, requests=("gpus",)),
    )


@pytest.mark.parametrize(
    ("result", "path"),
    [
        ({**RESULT, "device": 3}, "status.allocation.devices.results"),
        ({"request": "gpus"}, "status.allocation.devices.results"),
        ({**RESULT, "request": "../../../etc"}, "status.allocation.devices.results"),
        ({**RESULT, "request": "gpus/a/b"}, "status.allocation.devices.results"),
        ({**RESULT, "request": "gpus\n"}, "status.allocation.devices.results"),
    ],
)
def test_what_is_not_understood_is_an_error_that_names_claim_and_path(result: dict[str, Any], path: str) -> None:
    with pytest.raises(ClaimUnreadable, match=rf"claim four cannot be read: .*{path}"):
        claim_of(document(results=[result]))


@pytest.mark.parametrize("name", ["../../../../etc", "gpus\n", "", "a" * 64, "a/b", "\0", "Gpus"])
def test_what_no_pod_can_call_a_claim_is_nobodys_name_for_it(name: str) -> None:
    """The claim's owner may write anything there, and a path in the container is made of it."""
    found = document()
    found["metadata"]["annotations"] = {POD_CLAIM_NAME: name}
    assert claim_of(found).pod_claim_name is None


@given(JSON)
def test_any_json_is_read_or_refused(status: Any) -> None:
    try:
        claim = claim_of({**document(), "status": status})
    except ClaimUnreadable:
        return
    assert claim.name == "four"
