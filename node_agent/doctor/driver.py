"""The driver: its kernel module, its library, its device nodes, and whether all of them are of one version."""

from collections.abc import Iterator
from pathlib import Path

from node_agent.agent.hardware import wanted_nodes
from node_agent.cdi.driver import find_driver_files
from node_agent.cdi.nodes import find_device_nodes
from node_agent.doctor.finding import Finding, failed, ok, or_ok, skipped, warning
from node_agent.doctor.place import Place, text_of
from node_agent.errors import DriverFilesMissing

NVIDIA, DISPLAY_CLASS = "0x10de", "0x03"
PERSISTENCE_SOCKET = Path("run/nvidia-persistenced/socket")


def module(place: Place) -> Iterator[Finding]:
    """Whether the kernel's part of the driver is loaded."""
    folder = place.sysfs / "module/nvidia"
    version = text_of(folder / "version")
    if version is None:
        yield failed(
            "driver.module",
            "the kernel module nvidia is not loaded",
            folder,
            fix="install the driver and run modprobe nvidia; dmesg says why it does not load",
        )
    else:
        yield ok("driver.module", f"the kernel module nvidia {version} is loaded", folder)


def bound(place: Place) -> Iterator[Finding]:
    """Whether the kernel has given each of NVIDIA's GPUs to that module."""
    drivers = {path.name: _driver_of(path) for path in _gpus(place.sysfs)}
    if not drivers:
        yield warning(
            "driver.bound",
            "the PCI bus shows no GPU of NVIDIA's",
            place.sysfs / "bus/pci/devices",
            fix="see that the GPU is seated and powered, or passed to this virtual machine; lspci -d 10de: lists them",
        )
        return
    for address, driver in drivers.items():
        if driver != "nvidia":
            advice = "it is there for virtual machines" if driver == "vfio-pci" else "keep that driver from loading"
            yield failed(
                "driver.bound",
                f"the GPU {address} is driven by {driver or 'no driver'}, not by nvidia",
                place.sysfs / "bus/pci/devices" / address,
                fix=f"{advice}: bind it to nvidia, and reboot if the driver refuses it (dmesg says why)",
            )
    taken = sum(driver == "nvidia" for driver in drivers.values())
    if taken == len(drivers):
        yield ok("driver.bound", f"{taken} GPUs on the PCI bus, all driven by nvidia")


def _gpus(sysfs: Path) -> Iterator[Path]:
    folder = sysfs / "bus/pci/devices"
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if text_of(path / "vendor") == NVIDIA and (text_of(path / "class") or "").startswith(DISPLAY_CLASS):
            yield path


def _driver_of(device: Path) -> str | None:
    link = device / "driver"
    return link.readlink().name if link.is_symlink() else None


def library(place: Place) -> Iterator[Finding]:
    """Whether libnvidia-ml is found, loads, and talks to the module."""
    found = place.inventory
    if found.problem is None:
        facts = f"NVML {found.driver.library or '?'}, driver {found.driver.version}, CUDA {found.driver.cuda or '?'}"
        yield ok("driver.library", f"{facts}; it answers")
    elif found.without_library:
        yield failed("driver.library", found.problem, place.roots.driver, fix=_LIBRARY_FIX)
    else:
        yield failed("driver.library", found.problem, place.roots.driver, fix=_DRIVER_FIX)


_DRIVER_FIX = "see the checks of the module above, and what the kernel's log (dmesg) has from NVRM"
_LIBRARY_FIX = (
    "install the driver's libraries of the module's version; in a container mount the host's root and set"
    " flags.nvidiaDriverRoot or CONTAINER_DRIVER_ROOT, and LD_LIBRARY_PATH to the folder of libnvidia-ml.so.1"
)


def version(place: Place) -> Iterator[Finding]:
    """Whether the files on disk are of the version that is loaded: after an upgrade without a reload they are not."""
    loaded = place.inventory.driver.version or text_of(place.sysfs / "module/nvidia/version")
    if loaded is None:
        yield skipped("driver.version", "no driver is loaded")
        return
    try:
        files = find_driver_files(place.roots, loaded)
    except DriverFilesMissing as error:
        yield failed("driver.version", str(error), place.roots.driver, fix=_VERSION_FIX)
    else:
        yield ok("driver.version", f"the driver's files are of the loaded version {files.version}", place.roots.driver)


_VERSION_FIX = "install the driver's files of the loaded version, or reload the modules (or reboot) so that they fit"


def nodes(place: Place) -> Iterator[Finding]:
    """The device nodes without which no container can use a GPU."""
    found = find_device_nodes(place.roots, place.inventory, place.stat, wanted_nodes(place.settings))
    # What is optional has no GPU of its own, and lacking it costs nothing that was asked for here.
    lacking = [*found.missing, *(one for one in found.left_out if one.gpu is not None)]
    yield from or_ok(
        (
            failed(
                "driver.nodes",
                str(one),
                place.roots.dev / "dev",
                fix="nvidia-modprobe -c 0 -u makes the nodes; in a container mount the host's /dev",
            )
            for one in lacking
        ),
        "driver.nodes",
        f"{len(found.common)} common nodes and those of {len(found.gpus)} GPUs",
        place.roots.dev / "dev",
    )


def persistence(place: Place) -> Iterator[Finding]:
    """Whether the driver keeps its state while nothing uses a GPU and the agent is down."""
    socket = place.host / PERSISTENCE_SOCKET
    if socket.exists():
        yield ok("driver.persistence", "nvidia-persistenced runs", socket)
    else:
        yield warning(
            "driver.persistence",
            "no nvidia-persistenced: while the agent is down an idle GPU loses its settings and starts slowly",
            socket,
            fix="enable nvidia-persistenced.service on the host",
        )
