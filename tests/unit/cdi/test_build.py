from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest
from msgspec.structs import replace

from node_agent.cdi.build import LOADER_FOLDERS, Built, assemble, common_edits, gpu_edits, node_spec, partition_edits
from node_agent.cdi.driver import DriverFiles
from node_agent.cdi.edits import ContainerEdits, DeviceNode, Hook, Mount, Spec, document, encode
from node_agent.cdi.files import READ_ONLY
from node_agent.cdi.hooks import CREATE_SYMLINKS, HOOKS, UPDATE_LDCACHE, HookProgram
from node_agent.cdi.left_out import LeftOut
from node_agent.cdi.libraries import Library
from node_agent.cdi.nodes import DeviceNodes, find_device_nodes
from node_agent.cdi.roots import DriverRoots
from node_agent.cdi.validate import validate
from node_agent.model.gpu import device_name
from node_agent.model.inventory import Inventory
from node_agent.model.partition import Partition, PartitionUuid
from tests.fakes.builders import cut, gpu, h200_node, inventory, partition, without
from tests.fakes.names import KIND
from tests.unit.cdi.installation import DEBIAN, VERSION, Capabilities, Nodes

NODE = h200_node()
FIRST = NODE.gpus[0]
HOOK = HookProgram(path="/usr/bin/nvidia-cdi-hook")

CUDA = Library(
    name=f"libcuda.so.{VERSION}",
    folder=PurePosixPath(DEBIAN),
    host_path=f"{DEBIAN}/libcuda.so.{VERSION}",
    architecture="x86_64",
    links={"libcuda.so.1": f"libcuda.so.{VERSION}", "libcuda.so": "libcuda.so.1"},
)
VDPAU = Library(
    name=f"libvdpau_nvidia.so.{VERSION}",
    folder=PurePosixPath(f"{DEBIAN}/vdpau"),
    host_path=f"{DEBIAN}/vdpau/libvdpau_nvidia.so.{VERSION}",
    architecture="x86_64",
    below="vdpau",
)
XORG = Library(
    name="nvidia_drv.so",
    folder=PurePosixPath("/usr/lib/xorg/modules/drivers"),
    host_path="/usr/lib/xorg/modules/drivers/nvidia_drv.so",
    architecture="x86_64",
    below=None,
)
SMI = Mount(host_path="/usr/bin/nvidia-smi", container_path="/usr/bin/nvidia-smi", options=READ_ONLY)
FILES = DriverFiles(version=VERSION, architecture="x86_64", libraries=(CUDA, VDPAU, XORG), mounts=(SMI,))


def nodes(inventory: Inventory = NODE, *, gone: Iterable[str] = (), mode: int = 0o666, gid: int = 0) -> DeviceNodes:
    stat = Nodes().server(inventory, mode=mode, gid=gid)
    for place in gone:
        stat.remove(place)
    return find_device_nodes(DriverRoots(), inventory, stat)


def spec_of(built: Built) -> Spec:
    assert built.spec is not None
    return built.spec


def devices(built: Built) -> dict[str, list[str]]:
    """The device nodes of every device of the spec."""
    spec = spec_of(built)
    return {device.name: [node.path for node in device.container_edits.device_nodes] for device in spec.devices}


def containers_view(files: DriverFiles, hook: HookProgram | None = None) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in common_edits(nodes(), files, hook).mounts}


def arguments(hooks: Iterable[Hook]) -> dict[str, tuple[str, ...]]:
    return {hook.args[1]: hook.args[2:] for hook in hooks}


def test_every_gpu_answers_to_its_uuid_its_index_and_its_name() -> None:
    found = devices(node_spec(NODE, nodes(), FILES))
    assert len(found) == 8 * 3 + 1
    for each in NODE.gpus:
        assert found[each.uuid] == found[str(each.index)] == found[each.name] == [f"/dev/nvidia{each.minor}"]


def test_all_stands_for_every_gpu() -> None:
    assert devices(node_spec(NODE, nodes(), FILES))["all"] == [f"/dev/nvidia{minor}" for minor in range(8)]


def test_a_spec_is_valid_and_of_the_agents_kind() -> None:
    spec = spec_of(node_spec(NODE, nodes(), FILES))
    validate(spec)
    assert spec.kind == KIND


def test_the_same_node_gives_the_same_bytes() -> None:
    assert encode(spec_of(node_spec(NODE, nodes(), FILES))) == encode(spec_of(node_spec(h200_node(), nodes(), FILES)))


def test_a_gpu_that_left_leaves_the_spec() -> None:
    rest = without(NODE, 3)
    found = devices(node_spec(rest, nodes(rest), FILES))
    assert NODE.gpus[3].uuid not in found
    assert len(found) == 7 * 3 + 1


def test_a_gpu_without_its_device_node_is_left_out_by_name_and_the_others_stay() -> None:
    built = node_spec(NODE, nodes(gone=["/dev/nvidia3"]), FILES)
    assert NODE.gpus[3].uuid not in devices(built)
    assert "/dev/nvidia3" not in devices(built)["all"]
    (note,) = [note for note in built.left_out if note.gpu]
    assert note.gpu == NODE.gpus[3].uuid
    assert "gpu-3" in str(note)


def test_while_a_node_is_missing_that_all_need_no_gpu_can_be_used() -> None:
    built = node_spec(NODE, nodes(gone=["/dev/nvidia-uvm"]), FILES)
    assert built.spec is None
    assert [note.gpu for note in built.left_out] == [each.uuid for each in NODE.gpus]
    assert all("/dev/nvidia-uvm" in note.why and "nvidia-modprobe -u" in note.why for note in built.left_out)


def test_a_node_without_gpus_has_no_spec() -> None:
    assert node_spec(Inventory(), nodes(), FILES) == Built(spec=None)


def test_what_was_not_found_is_passed_on() -> None:
    note = LeftOut(what="nvidia-imex", why="not installed")
    built = node_spec(NODE, nodes(gone=["/dev/nvidia-modeset"]), replace(FILES, left_out=(note,)))
    assert note in built.left_out
    assert "/dev/nvidia-modeset" in [other.what for other in built.left_out]


def test_a_name_that_is_another_gpus_index_is_left_out() -> None:
    clash = inventory([gpu(0), replace(gpu(1), name=device_name("0"))])
    built = node_spec(clash, nodes(clash), FILES)
    assert devices(built)["0"] == ["/dev/nvidia0"]
    assert [note.what for note in built.left_out] == [f"the name 0 for {clash.gpus[1].uuid}"]


def test_a_gpu_named_all_does_not_hide_the_others() -> None:
    clash = inventory([replace(gpu(0), name=device_name("all")), gpu(1)])
    assert devices(node_spec(clash, nodes(clash), FILES))["all"] == ["/dev/nvidia0", "/dev/nvidia1"]


def test_common_edits_hold_the_drivers_nodes_and_stop_a_second_injection() -> None:
    edits = common_edits(nodes(), FILES)
    assert [node.path for node in edits.device_nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits.env


def test_no_library_path_of_an_image_is_replaced() -> None:
    assert not [value for value in common_edits(nodes(), FILES).env if value.startswith("LD_LIBRARY_PATH")]


def test_without_hooks_a_library_is_mounted_under_each_of_its_names_in_every_loaders_folder() -> None:
    view = containers_view(replace(FILES, libraries=(CUDA,), mounts=()))
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    names = (f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so")
    assert view == {f"{folder}/{name}": CUDA.host_path for folder in folders for name in names}


def test_without_hooks_the_folders_fit_the_architecture() -> None:
    arm = replace(FILES, architecture="aarch64", libraries=(replace(CUDA, architecture="aarch64"),))
    assert "/usr/lib/aarch64-linux-gnu/libcuda.so.1" in containers_view(arm)
    assert not [path for path in containers_view(arm) if "x86_64" in path]
    assert len(LOADER_FOLDERS) == 2


def test_without_hooks_an_unusual_folder_of_the_host_does_not_matter() -> None:
    library = replace(CUDA, folder=PurePosixPath("/opt/driver/lib"), host_path=f"/opt/driver/lib/{CUDA.name}")
    view = containers_view(replace(FILES, libraries=(library,)))
    assert view["/usr/lib64/libcuda.so.1"] == f"/opt/driver/lib/{CUDA.name}"
    assert not [path for path in view if path.startswith("/opt")]


def test_without_hooks_a_subfolder_stays_below_the_loaders_folders() -> None:
    view = containers_view(replace(FILES, libraries=(VDPAU,), mounts=()))
    assert set(view) == {f"{DEBIAN}/vdpau/{VDPAU.name}", f"/usr/lib64/vdpau/{VDPAU.name}"}


@pytest.mark.parametrize("hook", [None, HOOK])
def test_modules_of_the_x_server_are_mounted_where_the_host_has_them(hook: HookProgram | None) -> None:
    assert containers_view(replace(FILES, libraries=(XORG,), mounts=()), hook) == {XORG.host_path: XORG.host_path}


def test_other_files_are_mounted_as_they_were_found() -> None:
    assert SMI in common_edits(nodes(), FILES).mounts


def test_folders_come_before_what_lies_in_them() -> None:
    mounts = common_edits(nodes(), FILES).mounts
    depths = [mount.container_path.count("/") for mount in mounts]
    assert depths == sorted(depths)
    assert len({mount.container_path for mount in mounts}) == len(mounts)


def test_of_two_libraries_that_claim_one_name_the_first_has_it() -> None:
    other = replace(CUDA, name="libcuda.so.2", host_path="/opt/libcuda.so.2")
    view = containers_view(replace(FILES, libraries=(CUDA, other)))
    assert view["/usr/lib64/libcuda.so.1"] == CUDA.host_path


def test_with_hooks_a_library_is_mounted_once_where_the_host_has_it() -> None:
    assert containers_view(FILES, HOOK) == {
        mount: mount for mount in (CUDA.host_path, VDPAU.host_path, XORG.host_path, SMI.host_path)
    }


def test_with_hooks_links_and_cache_are_made_in_the_container() -> None:
    hooks = arguments(common_edits(nodes(), FILES, HOOK).hooks)
    assert list(hooks) == list(HOOKS)
    assert hooks[CREATE_SYMLINKS] == (
        "--link",
        f"libcuda.so.{VERSION}::{DEBIAN}/libcuda.so.1",
        "--link",
        f"libcuda.so.1::{DEBIAN}/libcuda.so",
    )
    assert hooks[UPDATE_LDCACHE] == ("--folder", DEBIAN, "--folder", f"{DEBIAN}/vdpau")
    assert hooks["enable-cuda-compat"] == (f"--host-driver-version={VERSION}",)


@pytest.mark.parametrize("offers", [frozenset(), frozenset(HOOKS) - {UPDATE_LDCACHE}, frozenset({UPDATE_LDCACHE})])
def test_a_program_that_cannot_provide_libraries_is_as_good_as_none(offers: frozenset[str]) -> None:
    weak = HookProgram(path="/usr/bin/nvidia-ctk", offers=offers)
    assert common_edits(nodes(), FILES, weak) == common_edits(nodes(), FILES)


def test_the_environment_says_where_the_libraries_are() -> None:
    assert f"NVIDIA_CTK_LIBCUDA_DIR={DEBIAN}:/usr/lib64" in common_edits(nodes(), FILES).env
    assert f"NVIDIA_CTK_LIBCUDA_DIR={DEBIAN}:{DEBIAN}/vdpau" in common_edits(nodes(), FILES, HOOK).env


def test_nodes_for_everybody_need_no_group() -> None:
    spec = spec_of(node_spec(NODE, nodes(gid=44), FILES))
    assert b"additionalGids" not in encode(spec)
    assert spec.cdi_version == "0.5.0"


def test_nodes_of_a_group_bring_the_group_and_need_a_later_version() -> None:
    spec = spec_of(node_spec(NODE, nodes(mode=0o660, gid=44), FILES))
    assert spec.container_edits is not None
    assert spec.container_edits.additional_gids == (44,)
    assert all(device.container_edits.additional_gids == (44,) for device in spec.devices)
    assert spec.cdi_version == "0.7.0"


def test_drm_nodes_get_their_links_by_address_where_hooks_can_make_them() -> None:
    drm = (DeviceNode(path="/dev/nvidia0"), DeviceNode(path="/dev/dri/card1"), DeviceNode(path="/dev/dri/renderD128"))
    found = DeviceNodes(gpus={FIRST.uuid: drm})
    (hook,) = gpu_edits(FIRST, found, HOOK).hooks
    assert hook.args[2:] == (
        "--link",
        f"../card1::/dev/dri/by-path/pci-{FIRST.pci}-card",
        "--link",
        f"../renderD128::/dev/dri/by-path/pci-{FIRST.pci}-render",
    )
    assert gpu_edits(FIRST, found).hooks == ()
    assert gpu_edits(FIRST, found).device_nodes == drm


def test_a_gpu_without_drm_nodes_needs_no_hook() -> None:
    assert gpu_edits(FIRST, nodes(), HOOK).hooks == ()


def test_edits_serve_any_kind_of_spec() -> None:
    claim = assemble(
        "node-agent.gpu.nvidia.com/claim", {"claim-a-gpu-0": gpu_edits(FIRST, nodes())}, common_edits(nodes(), FILES)
    )
    validate(claim)
    assert claim.cdi_version == "0.3.0"
    assert document(claim)["devices"][0]["name"] == "claim-a-gpu-0"


def test_a_host_path_needs_a_later_version(tmp_path: Path) -> None:
    edits = ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidia0", host_path=f"{tmp_path}/dev/nvidia0"),))
    assert assemble("vendor.com/claim", {"a": edits}, ContainerEdits()).cdi_version == "0.5.0"


PARTS = [partition(FIRST, "3g.71gb", 0, length=4, number=2), partition(FIRST, "1g.18gb", 6, number=13)]


def cut_nodes(inventory: Inventory, proc: Path, *, shown: Iterable[Partition] = PARTS) -> DeviceNodes:
    """The nodes of a node whose kernel shows these partitions."""
    capabilities = Capabilities(proc)
    for one in shown:
        capabilities.add(0, one.instance, minor=10 * one.instance)
    return find_device_nodes(DriverRoots(proc=proc), inventory, Nodes().server(inventory))


def test_a_partition_has_its_gpus_node_and_its_own_capabilities_and_answers_to_uuid_and_index(tmp_path: Path) -> None:
    node = cut(NODE, {0: PARTS})
    found = devices(node_spec(node, cut_nodes(node, tmp_path), FILES))
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert found[PARTS[0].uuid] == found["0:2"] == ["/dev/nvidia0", f"{caps}20", f"{caps}21"]
    assert found[PARTS[1].uuid] == found["0:13"] == ["/dev/nvidia0", f"{caps}130", f"{caps}131"]
    assert found["all"][:5] == [f"/dev/nvidia{minor}" for minor in range(5)]
    assert found["all"][8:] == [f"{caps}{minor}" for minor in (20, 21, 130, 131)]


def test_what_claims_need_has_each_partition_too(tmp_path: Path) -> None:
    node = cut(NODE, {0: PARTS})
    built = node_spec(node, cut_nodes(node, tmp_path), FILES)
    assert built.edits is not None
    assert built.edits.partitions.keys() == {one.uuid for one in PARTS}


def test_a_partition_that_the_kernel_does_not_show_is_left_out_and_nothing_else(tmp_path: Path) -> None:
    node = cut(NODE, {0: PARTS})
    built = node_spec(node, cut_nodes(node, tmp_path, shown=PARTS[1:]), FILES)
    assert PARTS[0].uuid not in devices(built)
    assert {PARTS[1].uuid, FIRST.uuid} < devices(built).keys()
    (note,) = [note for note in built.left_out if note.partition]
    assert (note.partition, note.gpu) == (PARTS[0].uuid, None)
    assert "gi2/access" in str(note)


def test_the_partitions_of_a_gpu_that_cannot_be_used_are_left_out_with_it(tmp_path: Path) -> None:
    node = cut(NODE, {0: PARTS})
    found = replace(cut_nodes(node, tmp_path), gpus={})
    assert node_spec(node, found, FILES).spec is None


def test_only_a_partition_that_draws_has_the_nodes_that_draw() -> None:
    card = DeviceNode(path="/dev/dri/card1", file_mode=0o660, gid=44)
    parent = ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidia0"), card), additional_gids=(44,))
    capability = DeviceNode(path="/dev/nvidia-caps/nvidia-cap3")
    plain = partition_edits(partition(FIRST, "1g.24gb"), parent, (capability,))
    assert plain == ContainerEdits(device_nodes=(DeviceNode(path="/dev/nvidia0"), capability))
    drawing = partition_edits(partition(FIRST, "1g.24gb+gfx"), parent, (capability,))
    assert drawing == ContainerEdits(device_nodes=(*parent.device_nodes, capability), additional_gids=(44,))


def test_a_partition_with_a_uuid_of_old_has_a_name_that_cdi_allows(tmp_path: Path) -> None:
    old = replace(PARTS[0], uuid=PartitionUuid(f"MIG-{FIRST.uuid}/2/0"))
    node = cut(NODE, {0: [old]})
    spec = spec_of(node_spec(node, cut_nodes(node, tmp_path), FILES))
    validate(spec)
    assert f"MIG-{FIRST.uuid}.2.0" in [device.name for device in spec.devices]
