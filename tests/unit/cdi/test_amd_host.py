"""What containers get of AMD's GPUs: device nodes and nothing else, each GPU its own."""

from pathlib import Path

import pytest

from node_agent.cdi.build import Built
from node_agent.cdi.host import AmdHost
from node_agent.cdi.roots import DriverRoots
from node_agent.cdi.validate import validate
from node_agent.errors import CdiError
from node_agent.hardware.amd.scan import scan
from node_agent.hardware.inventory import joined
from node_agent.hardware.names import named
from node_agent.hardware.simulated.amd import PROFILES, SimulatedAmdNode
from node_agent.hardware.simulated.placeholders import stat
from node_agent.hardware.sysfs import Sysfs
from node_agent.model.inventory import Inventory
from node_agent.model.links import LinkGraph
from node_agent.model.vendor import AMD
from tests.fakes.builders import partition


class Node:
    """Eight MI300X in files, the inventory of them, and what containers would get."""

    def __init__(self, root: Path) -> None:
        self.root = root
        simulated = SimulatedAmdNode(PROFILES["mi300x-8"])
        simulated.write_tree(root, devices="placeholder")
        self.host = AmdHost(roots=DriverRoots(driver=root, dev=root, sysfs=root / "sys"), stat=stat)

    @property
    def inventory(self) -> Inventory:
        found = scan(self.root / "sys")
        before = Inventory(vendor=AMD)
        return joined(before, found, LinkGraph(), named({}, found.gpus), Sysfs(root=self.root / "sys"))

    def built(self) -> Built:
        return self.host.look(self.inventory)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_gpu_brings_its_own_nodes_and_the_one_that_all_share(node: Node) -> None:
    built = node.built()
    assert built.spec is not None
    validate(built.spec)
    assert built.spec.kind == "node-agent.gpu.amd.com/gpu"
    assert built.edits is not None
    assert [one.path for one in built.edits.common.device_nodes] == ["/dev/kfd"]
    gpu = node.inventory.gpus[2]
    (device,) = [one for one in built.spec.devices if one.name == gpu.uuid]
    assert [one.path for one in device.container_edits.device_nodes] == ["/dev/dri/renderD130", "/dev/dri/card3"]
    assert built.left_out == ()


def test_nothing_of_nvidias_is_in_the_spec(node: Node) -> None:
    built = node.built()
    spec, edits = built.spec, built.edits
    assert spec is not None
    assert edits is not None
    assert "nvidia" not in str(spec).lower().replace(str(node.root), "")
    for each in (edits.common, *edits.gpus.values()):
        assert (each.env, each.mounts, each.hooks) == ((), (), ())


def test_a_gpu_is_called_by_uuid_index_and_name_and_all_of_them_together(node: Node) -> None:
    spec = node.built().spec
    assert spec is not None
    names = {one.name for one in spec.devices}
    assert names == {"all", *(str(n) for n in range(8)), *(f"gpu-{n}" for n in range(8)), *node.inventory.by_uuid}


def test_without_kfd_no_gpu_can_be_given_out(node: Node) -> None:
    (node.root / "dev/kfd").unlink()
    built = node.built()
    assert built.spec is None
    assert {one.gpu for one in built.left_out} == set(node.inventory.by_uuid)
    assert "/dev/kfd" in str(built.left_out[0])


def test_a_gpu_whose_node_is_missing_is_left_out_and_the_others_are_not(node: Node) -> None:
    (node.root / "dev/dri/renderD131").unlink()
    built = node.built()
    lost = node.inventory.gpus[3]
    assert built.edits is not None
    assert built.edits.gpus.keys() == node.inventory.by_uuid.keys() - {lost.uuid}
    assert [(one.what, one.gpu) for one in built.left_out] == [("/dev/dri/renderD131", lost.uuid)]


def test_a_gpu_without_a_render_node_is_left_out(node: Node) -> None:
    inventory = node.inventory
    folder = node.root / "sys/bus/pci/devices" / inventory.gpus[0].pci / "drm/renderD128"
    (folder / "dev").unlink()
    folder.rmdir()
    (left,) = node.host.look(inventory).left_out
    assert left.gpu == inventory.gpus[0].uuid
    assert "no render node" in left.why


def test_there_are_no_partitions(node: Node) -> None:
    gpu = node.inventory.gpus[0]
    with pytest.raises(CdiError, match=f"{gpu.name} has no partitions"):
        node.host.capabilities(gpu, partition(gpu, "1g.5gb"))
