"""What a claim's status and the pod's metadata file say of prepared devices."""

import json

import pytest
from msgspec.structs import replace

from node_agent.allocation.grants import Hold
from node_agent.dra.metadata import metadata_of
from node_agent.dra.status import apply_patch, device_statuses
from node_agent.model.claim import AllocatedDevice, Claim, ClaimUid
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import device_name
from node_agent.model.health import Cause, DeviceHealth, HealthReport, Reason, Severity
from tests.fakes.builders import h200_node

DRIVER = "gpu.nvidia.com"
NODE = h200_node()
FIRST, SECOND = NODE.gpus[:2]
PUBLISHED: dict[str, PublishedDevice] = {
    FIRST.name: PublishedDevice(name=FIRST.name, kind=DeviceKind.GPU, gpus=(FIRST.uuid,)),
    "group-2-0": PublishedDevice(name=device_name("group-2-0"), kind=DeviceKind.GROUP, gpus=(FIRST.uuid, SECOND.uuid)),
}


def result(device: str, request: str = "gpus", driver: str = DRIVER, share_id: str | None = None) -> AllocatedDevice:
    return AllocatedDevice(request=request, driver=driver, pool="node-1", device=device, share_id=share_id)


def claim(*results: AllocatedDevice, pod_claim_name: str | None = None) -> Claim:
    return Claim(
        uid=ClaimUid("u-1"),
        namespace="team",
        name="four",
        results=results,
        generation=3,
        pod_claim_name=pod_claim_name,
    )


def sick(severity: Severity) -> HealthReport:
    cause = Cause(reason=Reason.ECC, severity=severity, message="3 errors", since=0.0)
    return HealthReport(devices={FIRST.uuid: DeviceHealth(causes=(cause,))})


def statuses(of: Claim, health: HealthReport | None = None) -> list[dict[str, object]]:
    return device_statuses(
        of, DRIVER, published=PUBLISHED, inventory=NODE, health=health or HealthReport(), now=1_700_000_000.0
    )


def test_a_prepared_device_is_ready_and_names_its_hardware() -> None:
    (entry,) = statuses(claim(result(FIRST.name), result("nic-0", driver="nic.example")))
    assert (entry["driver"], entry["pool"], entry["device"]) == (DRIVER, "node-1", FIRST.name)
    assert entry["conditions"] == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Prepared",
            "message": "prepared on the node",
            "lastTransitionTime": "2023-11-14T22:13:20Z",
        }
    ]
    assert entry["data"] == {
        "gpus": [
            {"name": FIRST.name, "uuid": FIRST.uuid, "pciBusID": FIRST.pci, "productName": FIRST.product},
        ],
        "links": [],
    }


def test_a_group_names_its_gpus_and_the_links_between_them() -> None:
    (entry,) = statuses(claim(result("group-2-0")))
    link = NODE.links.between(FIRST.uuid, SECOND.uuid)
    data = entry["data"]
    assert isinstance(data, dict)
    assert [gpu["uuid"] for gpu in data["gpus"]] == [FIRST.uuid, SECOND.uuid]
    assert data["links"] == [
        {"between": [FIRST.name, SECOND.name], "nvlinks": link.nvlinks, "bandwidthMBps": link.bandwidth}
    ]


def test_trouble_shows_in_the_condition_by_its_weight() -> None:
    told = []
    for severity in (Severity.NONE, Severity.DEGRADED, Severity.WITHDRAWN):
        (entry,) = statuses(claim(result(FIRST.name)), sick(severity))
        conditions = entry["conditions"]
        assert isinstance(conditions, list)
        told.append((conditions[0]["status"], conditions[0]["reason"], conditions[0]["message"]))
    assert told == [
        ("True", "Prepared", f"{FIRST.name}: 3 errors"),
        ("True", "Degraded", f"{FIRST.name}: 3 errors"),
        ("False", "Unhealthy", f"{FIRST.name}: 3 errors"),
    ]


def test_shares_are_told_apart_and_what_is_not_offered_is_left_out() -> None:
    entries = statuses(claim(result(FIRST.name, share_id="s-1"), result("gpu-99")))
    assert [(entry["device"], entry["shareID"]) for entry in entries] == [(FIRST.name, "s-1")]


def test_the_patch_is_for_this_claim_and_no_later_one_of_its_name() -> None:
    patch = apply_patch(claim(), "resource.k8s.io/v1", [])
    assert patch["metadata"] == {"name": "four", "namespace": "team", "uid": "u-1"}
    assert patch["status"] == {"devices": []}


def test_each_request_has_a_metadata_file_with_its_devices() -> None:
    attributes: dict[str, dict[str, dict[str, str]]] = {FIRST.name: {"uuid": {"string": FIRST.uuid}}}
    files = metadata_of(
        claim(result(FIRST.name, "big/fast"), result("gpu-1", "big/fast"), result("gpu-2", "small")),
        DRIVER,
        attributes,
    )
    assert [file.request for file in files] == ["big", "small"]
    big = files[0]
    assert str(big.host_path) == "dra-device-metadata/team_four/big/metadata.json"
    assert str(big.container_path) == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/four/big/gpu.nvidia.com-metadata.json"
    )
    document = json.loads(big.content)
    assert document["apiVersion"] == "metadata.resource.k8s.io/v1beta1"
    assert document["metadata"] == {"name": "four", "namespace": "team", "uid": "u-1", "generation": 3}
    assert document["requests"] == [
        {
            "name": "big",
            "devices": [
                {"driver": DRIVER, "pool": "node-1", "name": FIRST.name, "attributes": attributes[FIRST.name]},
                {"driver": DRIVER, "pool": "node-1", "name": "gpu-1", "attributes": {}},
            ],
        }
    ]
    assert "podClaimName" not in document


def test_a_templates_claim_is_found_by_the_name_that_the_pod_has_for_it() -> None:
    (file,) = metadata_of(claim(result(FIRST.name), pod_claim_name="mine"), DRIVER, {})
    assert "resourceclaimtemplates/mine/gpus" in str(file.container_path)
    assert json.loads(file.content)["podClaimName"] == "mine"


def test_a_claim_of_other_drivers_has_no_file_of_ours() -> None:
    assert metadata_of(claim(result("nic-0", driver="nic.example")), DRIVER, {}) == []
    assert metadata_of(replace(claim(), results=None), DRIVER, {}) == []


# Parts of shareable GPUs


def conditions(mode: str | None, *, share: str | None = "s", memory: str = "20Gi") -> list[tuple[str, str, str]]:
    """The conditions of a device that was prepared in this mode, and how it was; None where it was not."""
    of = replace(result(FIRST.name), share_id=share, consumed={"memory": memory, "cores": "25"})
    hold = Hold(device=FIRST.name, gpus=(FIRST.uuid,), request=of.request, share_id=share, mode=mode or "")
    holds = () if mode is None else (hold,)
    (entry,) = device_statuses(
        claim(of), DRIVER, published=PUBLISHED, inventory=NODE, health=HealthReport(), now=0.0, holds=holds
    )
    return [(each["type"], each["status"], each["message"]) for each in entry["conditions"]]


def test_a_claim_is_told_whether_it_is_held_to_its_part() -> None:
    assert conditions("MPS")[1] == (
        "LimitsEnforced",
        "True",
        "each CUDA process of the claim is held by MPS to its part (cores 25, memory 20Gi)",
    )
    kind, status, message = conditions("no MPS")[1]
    assert (kind, status) == ("LimitsEnforced", "False")
    assert "nothing on the node holds the claim to it" in message


@pytest.mark.parametrize(("mode", "share"), [(None, "s"), ("", None)])
def test_nothing_is_told_of_parts_where_there_are_none(mode: str | None, share: str | None) -> None:
    assert [kind for kind, _, _ in conditions(mode, share=share)] == ["Ready"]
