import pytest

from node_agent.cdi.versions import VERSIONS, required_version
from tests.unit.cdi.documents import GOOD, HOOK, MOUNT, NETWORK, Document, edits, node, spec


@pytest.mark.parametrize(
    ("document", "version"),
    [
        pytest.param(spec(), "0.3.0", id="nothing of later versions"),
        pytest.param(edits(hooks=[HOOK], mounts=[MOUNT], env=["A=b"]), "0.3.0", id="hooks, mounts and variables"),
        pytest.param(edits(mounts=[MOUNT | {"type": "none"}]), "0.4.0", id="the type of a mount"),
        pytest.param(node(hostPath="/host/dev/nvidia0"), "0.5.0", id="a host path of a node"),
        pytest.param(spec(device={"name": "0"}), "0.5.0", id="a digit in front"),
        pytest.param(spec(annotations={"a": "b"}), "0.6.0", id="annotations of the spec"),
        pytest.param(spec(device={"annotations": {"a": "b"}}), "0.6.0", id="annotations of a device"),
        pytest.param(spec(kind="vendor.com/gpu.shared"), "0.6.0", id="a dot in the class"),
        pytest.param(edits(additionalGids=[44]), "0.7.0", id="groups of a device"),
        pytest.param(spec(containerEdits={"additionalGids": [44]}), "0.7.0", id="groups of the spec"),
        pytest.param(edits(intelRdt={"closID": "gold"}), "0.7.0", id="cache control"),
        pytest.param(edits(intelRdt={"schemata": ["L3:0=f"]}), "1.1.0", id="schemata"),
        pytest.param(spec(containerEdits={"netDevices": [NETWORK]}), "1.1.0", id="network interfaces of the spec"),
    ],
)
def test_a_spec_needs_the_version_that_added_what_it_uses(document: Document, version: str) -> None:
    assert required_version(document) == version


def test_the_newest_of_several_needs_counts() -> None:
    assert (
        required_version(edits(additionalGids=[44], netDevices=[NETWORK], mounts=[MOUNT | {"type": "none"}])) == "1.1.0"
    )


@pytest.mark.parametrize("empty", [{"annotations": {}}, {"containerEdits": {"additionalGids": [], "netDevices": []}}])
def test_an_empty_field_needs_no_version(empty: Document) -> None:
    assert required_version(spec(**empty)) == "0.3.0"


@pytest.mark.parametrize("name", GOOD)
def test_no_good_spec_declares_less_than_it_needs(name: str) -> None:
    document = GOOD[name]
    assert VERSIONS.index(required_version(document)) <= VERSIONS.index(document["cdiVersion"])
