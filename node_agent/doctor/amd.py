"""The driver of AMD's GPUs: its kernel module, the GPUs that it drives, and the device nodes that containers get."""

from collections.abc import Iterator

from node_agent.agent.hardware import host_of
from node_agent.doctor.finding import Finding, failed, ok, or_ok, warning
from node_agent.doctor.place import Place
from node_agent.hardware.amd.scan import BOUND, MODULE, bound


def module(place: Place) -> Iterator[Finding]:
    """Whether the kernel's module is loaded, and answers."""
    folder, found = place.sysfs / MODULE, place.inventory
    if found.problem is not None:
        fix = "load the module (modprobe amdgpu); dmesg says why it does not load, or what is wrong with it"
        yield failed("driver.module", found.problem, folder, fix=fix)
    else:
        version = found.driver.version or "that comes with the kernel"
        yield ok("driver.module", f"the module amdgpu {version} is loaded", folder)


def gpus(place: Place) -> Iterator[Finding]:
    """Whether the module drives a GPU."""
    places = bound(place.sysfs)
    if places:
        yield ok("driver.bound", f"amdgpu drives {len(places)} GPUs", place.sysfs / BOUND)
    else:
        fix = "see that a GPU is seated and powered, or passed to this virtual machine; lspci -d 1002: lists them"
        yield warning("driver.bound", "amdgpu drives no GPU", place.sysfs / BOUND, fix=fix)


def nodes(place: Place) -> Iterator[Finding]:
    """The device nodes without which no container can use a GPU."""
    if not place.inventory.gpus:
        return
    left = host_of(place.settings, place.stat).look(place.inventory).left_out
    fix = "the module makes the nodes; in a container mount the host's /dev"
    folder = place.roots.dev / "dev"
    lacking = (failed("driver.nodes", str(one), folder, fix=fix) for one in left)
    yield from or_ok(lacking, "driver.nodes", f"/dev/kfd, and the nodes of {len(place.inventory.gpus)} GPUs", folder)
