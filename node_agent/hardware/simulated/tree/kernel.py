"""The part of a simulated tree that a kernel with NVIDIA's modules shows: ``sys``, ``proc`` and ``dev``."""

from collections.abc import Iterator
from functools import cache
from itertools import product

from node_agent.hardware.simulated.driver import Driver
from node_agent.hardware.simulated.gpu import SimulatedGpu
from node_agent.hardware.simulated.library.identity import NVIDIA_VENDOR
from node_agent.hardware.simulated.library.readings import PCIE_MBITS_PER_LANE
from node_agent.hardware.simulated.links import root_complex
from node_agent.hardware.simulated.profile import GpuPlace, NodeProfile
from node_agent.hardware.simulated.tree.entries import CharDevice, Entry, File, Folder, Link

NVIDIA_MAJOR = 195
CONTROL_MINOR = 255
MODESET_MINOR = 254
DRI_MAJOR = 226
# Handed out at boot: any program that does not read them from /proc/devices is wrong about them somewhere.
DYNAMIC_MAJORS = {
    "nvidia-nvswitch": 234,
    "nvidia-nvlink": 235,
    "nvidia-caps-imex-channels": 236,
    "nvidia-caps": 238,
    "nvidia-uvm": 510,
}

# Minors of MIG capabilities: two fixed ones, then for each GPU 15 GPU instances of one and eight compute instances.
CONFIG_MINOR, MONITOR_MINOR, FIRST_INSTANCE_MINOR = 1, 2, 3
IMEX_MANAGEMENT_MINOR = 4323
MOST_GPUS, INSTANCES, COMPUTE_INSTANCES = 32, 15, 8
ROOT_ONLY, EVERYBODY = 0o400, 0o444

# Of each CPU node; the profiles have no word for it.
NODE_MEMORY_KIB = 256 << 20

Entries = Iterator[tuple[str, Entry]]


def instance_minor(gpu_minor: int, instance: int, compute_instance: int | None = None) -> int:
    """The minor of a capability device; ``gpu_minor`` is the minor of the GPU's own device, not its index."""
    per_instance = COMPUTE_INSTANCES + 1
    base = FIRST_INSTANCE_MINOR + gpu_minor * INSTANCES * per_instance + instance * per_instance
    return base if compute_instance is None else base + 1 + compute_instance


def kernel_entries(driver: Driver) -> Entries:
    """All of it, for the GPUs that are plugged in; without a loaded module only what the PCI bus and CPUs show."""
    gpus = [gpu for gpu in driver.gpus if gpu.plugged]
    yield from _cpu_nodes(driver.profile)
    for gpu in gpus:
        yield from _pci_device(driver, gpu)
    yield from _switches(driver.profile)
    # Without its module NVIDIA's part of /proc and /dev is gone, as after a failed upgrade.
    if driver.module == "not-loaded":
        return
    yield from _module(driver)
    for gpu in gpus:
        yield from _gpu_information(driver, gpu)
        yield from _gpu_nodes(gpu)
        yield from _gpu_capabilities(gpu)
    yield from _shared_nodes(driver.profile)


def _text(content: object) -> File:
    return File(content=f"{content}\n".encode())


def _cpu_nodes(profile: NodeProfile) -> Entries:
    """CPU nodes with their CPUs, memory and distances; nodes made of GPU memory have no CPUs."""
    memory = {place.memory_numa: "" for place in profile.gpus if place.memory_numa is not None}
    nodes = {**memory, **profile.numa}
    for number, cpus in sorted(nodes.items()):
        folder = f"sys/devices/system/node/node{number}"
        yield f"{folder}/cpulist", _text(cpus)
        yield f"{folder}/meminfo", _text(f"Node {number} MemTotal:       {NODE_MEMORY_KIB} kB")
        yield f"{folder}/distance", _text(" ".join("10" if to == number else "21" for to in sorted(nodes)))


def _pci_path(place: GpuPlace) -> str:
    return "/".join(["sys/devices", f"pci{root_complex(place)}", *place.bridges, place.bus])


def _on_bus(bus: str, path: str) -> tuple[str, Entry]:
    return f"sys/bus/pci/devices/{bus}", Link(target=f"../../../{path.removeprefix('sys/')}")


def _pci_device(driver: Driver, gpu: SimulatedGpu) -> Entries:
    place, board, numa = gpu.place, gpu.board, driver.profile.numa
    path = _pci_path(place)
    # A missing NUMA node is -1 to the kernel, and then every CPU is as near as any other.
    values = {
        "vendor": f"0x{NVIDIA_VENDOR:04x}",
        "device": f"0x{board.pci.device:04x}",
        "class": f"0x{board.pci.class_code:06x}",
        "numa_node": -1 if place.numa is None else place.numa,
        "local_cpulist": ",".join(numa.values()) if place.numa is None else numa[place.numa],
        **_pcie_values(gpu),
    }
    for name, value in values.items():
        yield f"{path}/{name}", _text(value)
    yield _on_bus(place.bus, path)
    # The GPU's folder lies inside those of its bridges, so that its path spells out what is above it.
    for depth, bridge in enumerate(place.bridges, 1):
        above = "/".join(path.split("/")[: 3 + depth])
        yield f"{above}/class", _text("0x060400")
        yield _on_bus(bridge, above)
    if driver.module != "not-loaded":
        up = "../" * (path.count("/"))
        yield f"{path}/driver", Link(target=f"{up}bus/pci/drivers/nvidia")
        yield f"sys/bus/pci/drivers/nvidia/{place.bus}", Link(target=f"../../../../{path.removeprefix('sys/')}")


def _pcie_values(gpu: SimulatedGpu) -> dict[str, str | int]:
    pcie = gpu.board.pcie
    if pcie is None:
        return {}
    return {
        "current_link_speed": _pcie_speed(min(pcie.idle_generation, gpu.pcie_generation or pcie.idle_generation)),
        "current_link_width": min(pcie.width, gpu.pcie_width or pcie.width),
        "max_link_speed": _pcie_speed(pcie.generation),
        "max_link_width": pcie.width,
    }


def _pcie_speed(generation: int) -> str:
    return f"{PCIE_MBITS_PER_LANE[generation] / 1000:.1f} GT/s PCIe"


def _switches(profile: NodeProfile) -> Entries:
    for island in profile.nvlink.switched:
        for bus in island.switches:
            path = f"sys/devices/pci{bus[:7]}/{bus}"
            yield f"{path}/vendor", _text(f"0x{NVIDIA_VENDOR:04x}")
            yield f"{path}/device", _text(f"0x{island.device:04x}")
            yield f"{path}/class", _text("0x068000")
            yield _on_bus(bus, path)


# What a container toolkit reads of the module's parameters; the rest is not simulated.
PARAMS = {
    "ModifyDeviceFiles": 1,
    "DeviceFileUID": 0,
    "DeviceFileGID": 0,
    "DeviceFileMode": 0o666,
    "ImexChannelCount": 2048,
    "ExcludedGpus": '""',
}


def _module(driver: Driver) -> Entries:
    machine, version = driver.profile.machine, driver.version
    flavour = f"Open Kernel Module for {machine}" if driver.profile.driver.open_modules else f"{machine} Kernel Module"
    banner = f"NVRM version: NVIDIA UNIX {flavour}  {version}  Release Build"
    majors = sorted({"nvidia": NVIDIA_MAJOR, "drm": DRI_MAJOR, **DYNAMIC_MAJORS}.items(), key=lambda item: item[1])
    listed = "\n".join(f"{major:3} {name}" for name, major in majors)
    yield "sys/module/nvidia/version", _text(version)
    yield "sys/module/nvidia/initstate", _text("live")
    yield "proc/driver/nvidia/version", _text(f"{banner}\nGCC version:  13.3.0")
    yield "proc/driver/nvidia/params", _text("\n".join(f"{key}: {value}" for key, value in PARAMS.items()))
    yield "proc/devices", _text(f"Character devices:\n{listed}\n\nBlock devices:\n259 blkext")
    yield "proc/driver/nvidia-caps/mig-minors", File(content=_mig_minors())
    yield "proc/driver/nvidia-caps/nvlink-minors", _text("fabric-mgmt 0")
    yield "proc/driver/nvidia-caps/sys-minors", _text(f"fabric-imex-mgmt {IMEX_MANAGEMENT_MINOR}")


def _gpu_information(driver: Driver, gpu: SimulatedGpu) -> Entries:
    values = {
        "Model": gpu.board.name,
        "IRQ": 100 + gpu.slot,
        "GPU UUID": gpu.uuid,
        "Video BIOS": gpu.board.vbios.lower(),
        "Bus Type": "PCIe",
        "DMA Size": "52 bits",
        "DMA Mask": "0xfffffffffffff",
        "Bus Location": gpu.place.bus,
        "Device Minor": gpu.place.minor,
        "GPU Firmware": driver.version if gpu.board.gsp else "N/A",
        "GPU Excluded": "No",
    }
    lines = "\n".join(f"{key + ':':16}\t {value}" for key, value in values.items())
    yield f"proc/driver/nvidia/gpus/{gpu.place.bus}/information", _text(lines)


def _gpu_nodes(gpu: SimulatedGpu) -> Entries:
    yield f"dev/nvidia{gpu.place.minor}", CharDevice(major=NVIDIA_MAJOR, minor=gpu.place.minor)
    # Card 0 is the display of the machine's management controller.
    card, render = gpu.slot + 1, gpu.slot + 128
    for kind, name, minor in (("card", f"card{card}", card), ("render", f"renderD{render}", render)):
        yield f"dev/dri/{name}", CharDevice(major=DRI_MAJOR, minor=minor, mode=0o660)
        yield f"dev/dri/by-path/pci-{gpu.place.bus}-{kind}", Link(target=f"../{name}")
        yield f"{_pci_path(gpu.place)}/drm/{name}/dev", _text(f"{DRI_MAJOR}:{minor}")


def _shared_nodes(profile: NodeProfile) -> Entries:
    uvm, switch = DYNAMIC_MAJORS["nvidia-uvm"], DYNAMIC_MAJORS["nvidia-nvswitch"]
    yield "dev/nvidiactl", CharDevice(major=NVIDIA_MAJOR, minor=CONTROL_MINOR)
    yield "dev/nvidia-modeset", CharDevice(major=NVIDIA_MAJOR, minor=MODESET_MINOR)
    yield "dev/nvidia-uvm", CharDevice(major=uvm, minor=0)
    yield "dev/nvidia-uvm-tools", CharDevice(major=uvm, minor=1)
    switches = [bus for island in profile.nvlink.switched for bus in island.switches]
    for minor, name in enumerate(f"nvidia-nvswitch{number}" for number in range(len(switches))):
        yield f"dev/{name}", CharDevice(major=switch, minor=minor)
    if switches:
        yield "dev/nvidia-nvswitchctl", CharDevice(major=switch, minor=255)
    if profile.fabric.cluster.int:
        yield from _capability("proc/driver/nvidia/capabilities/fabric-imex-mgmt", IMEX_MANAGEMENT_MINOR, ROOT_ONLY)
        # Of the channels the driver makes the first one's node only, and that where it is told to.
        channels = DYNAMIC_MAJORS["nvidia-caps-imex-channels"]
        yield "dev/nvidia-caps-imex-channels/channel0", CharDevice(major=channels, minor=0)


def _gpu_capabilities(gpu: SimulatedGpu) -> Entries:
    """MIG capabilities: of the node, and of the instances that live now; the GPU's folder is there without any."""
    if gpu.mig is None:
        return
    base, minor = "proc/driver/nvidia/capabilities", gpu.place.minor
    yield from _capability(f"{base}/mig/config", CONFIG_MINOR, ROOT_ONLY)
    yield from _capability(f"{base}/mig/monitor", MONITOR_MINOR, EVERYBODY)
    # There with MIG off, too; it fills with the instances.
    yield f"{base}/gpu{minor}/mig", Folder()
    for instance in gpu.mig.instances.values():
        folder = f"{base}/gpu{minor}/mig/gi{instance.id}"
        yield from _capability(f"{folder}/access", instance_minor(minor, instance.id), EVERYBODY)
        for compute in instance.compute:
            number = instance_minor(minor, instance.id, compute)
            yield from _capability(f"{folder}/ci{compute}/access", number, EVERYBODY)


def _capability(path: str, minor: int, mode: int) -> Entries:
    yield path, _text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1")
    yield f"dev/nvidia-caps/nvidia-cap{minor}", CharDevice(major=DYNAMIC_MAJORS["nvidia-caps"], minor=minor, mode=mode)


@cache
def _mig_minors() -> bytes:
    """The whole table of minors, which the driver lists whether or not the instances exist."""
    lines = [f"config {CONFIG_MINOR}", f"monitor {MONITOR_MINOR}"]
    for gpu, instance in product(range(MOST_GPUS), range(INSTANCES)):
        name = f"gpu{gpu}/gi{instance}"
        lines.append(f"{name}/access {instance_minor(gpu, instance)}")
        lines += [f"{name}/ci{ci}/access {instance_minor(gpu, instance, ci)}" for ci in range(COMPUTE_INSTANCES)]
    return "\n".join([*lines, ""]).encode()
