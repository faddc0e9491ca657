"""The labels that describe the node's GPUs, under the names of NVIDIA's GPU Feature Discovery, in the vendor's domain.

Pure.
A label says what holds for every GPU of the node that can tell; what nobody can tell has no label. So a node with GPUs
of several models has no ``gpu.product``, but a ``gpu.<model>.count`` and ``gpu.<model>.memory`` for each of them.
What GPU Feature Discovery has no name for is in a domain of our own. ``label_names`` says what each of them means,
``label_places`` where they are written, ``label_writer`` when.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from node_agent.hardware.machine import UNKNOWN, Machine
from node_agent.model.gpu import ComputeCapability, Gpu
from node_agent.model.health import HealthReport, Severity
from node_agent.model.inventory import DriverInfo, Inventory
from node_agent.model.partition import DeviceUuid
from node_agent.reporting.health import HEALTH_WORDS
from node_agent.reporting.label_values import LONGEST, SHARED, agreed, is_legal, label_value, looks_whole, text_of
from node_agent.reporting.mig_labels import NO_MIG, MigOffer, mig_labels
from node_agent.sharing.shares import Shared, Strategy

# A model in the middle of a key leaves room for what stands around it.
_LONGEST_MODEL = LONGEST - len("gpu..memory")

# Each family from its first compute capability on, within one major number.
_FAMILIES: Mapping[tuple[int, int], str] = {
    (1, 0): "tesla",
    (2, 0): "fermi",
    (3, 0): "kepler",
    (5, 0): "maxwell",
    (6, 0): "pascal",
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 0): "ampere",
    (8, 9): "ada-lovelace",
    (9, 0): "hopper",
    (10, 0): "blackwell",
    (12, 0): "blackwell",
    (13, 0): "rubin",
}

_MODES = {0x030000: "graphics", 0x030200: "compute"}


def labels(
    inventory: Inventory,
    *,
    shares: Mapping[DeviceUuid, Shared] = MappingProxyType({}),
    machine: Machine = UNKNOWN,
    mig: MigOffer = NO_MIG,
    health: HealthReport | None = None,
) -> dict[str, str] | None:
    """The node's labels in the order of their keys; none where the node has no GPU.

    None where the GPUs cannot be read at the moment, or their health is not known yet: what was said before stays true
    then, and whoever takes labels away ends the pods that select on them. ``shares`` are the GPUs that are shared, and
    how; ``mig`` are the MIG devices that are offered; without ``health`` nothing is said of it.
    """
    gpus = inventory.gpus
    if not gpus:
        readable = inventory.generation > 0 and inventory.problem is None and not inventory.missing
        return {} if readable else None
    if health is not None and not all(health.known_of(gpu.uuid).probed for gpu in gpus):
        return None
    found = {
        "gpu.present": "true",
        "gpu.machine": label_value(machine.name or ""),
        "gpu.count": str(len(gpus)),
        "gpu.replicas": text_of(agreed(_replicas(gpu, shares, mig) for gpu in gpus)),
        "gpu.sharing-strategy": agreed(shares[gpu.uuid].strategy if gpu.uuid in shares else "none" for gpu in gpus),
        "gpu.mode": _MODES.get(agreed(machine.pci_classes) or 0),
        **_products(gpus, SHARED if all(looks_whole(shares.get(gpu.uuid)) for gpu in gpus) else ""),
        **(_cuda(inventory, shares, machine, mig) if inventory.vendor.cuda else _node_labeller(inventory)),
    }
    own = {**_nvlinks(inventory), **(_health(inventory, health) if health is not None else {})}
    domains = (inventory.vendor.domain, found), (inventory.vendor.own_domain, own)
    named = {f"{domain}/{key}": value for domain, values in domains for key, value in values.items()}
    return {key: value for key, value in sorted(named.items()) if value and is_legal(value)}


def _cuda(
    inventory: Inventory, shares: Mapping[DeviceUuid, Shared], machine: Machine, mig: MigOffer
) -> dict[str, str | None]:
    """What is said only of GPUs with CUDA."""
    return {
        "gpu.nvswitch.count": text_of(machine.nvswitches or None),
        "gpu.clique": inventory.clique,
        "mig.capable": _word(any(gpu.partition_mode is not None for gpu in inventory.gpus)),
        "mig.strategy": mig.strategy if mig.strategy != "none" else None,
        "mps.capable": _word(any(shared.strategy is Strategy.MPS for shared in shares.values())),
        **_virtual(machine),
        **_versions(inventory.driver),
        **_capability(agreed(gpu.compute_capability for gpu in inventory.gpus)),
        **mig_labels(inventory.by_uuid, mig),
    }


def _node_labeller(inventory: Inventory) -> dict[str, str | None]:
    """What AMD's node labeller says, under its names: whole GiB, and words joined by ``_``."""
    gpus = inventory.gpus
    device, memory = agreed(gpu.device_id for gpu in gpus), agreed(gpu.memory for gpu in gpus)
    product = agreed(gpu.product for gpu in gpus)
    return {
        "gpu.product-name": product and label_value("_".join(product.split())),
        "gpu.device-id": None if device is None else f"{device:04x}",
        "gpu.vram": None if memory is None else f"{round(memory / (1 << 30))}G",
        "gpu.cu-count": text_of(agreed(gpu.multiprocessors for gpu in gpus)),
        "gpu.driver-version": inventory.driver.version,
    }


def _replicas(gpu: Gpu, shares: Mapping[DeviceUuid, Shared], mig: MigOffer) -> int:
    """How many devices a GPU is offered as; none where it can be used only through its MIG devices."""
    if gpu.uuid in shares:
        return shares[gpu.uuid].replicas
    return 0 if gpu.uuid in mig.cut else 1


def _word(true: bool) -> str:
    return str(true).lower()


def _health(inventory: Inventory, health: HealthReport) -> dict[str, str | None]:
    """How the worst GPU is, and how many are given out; a missing one is as good as withdrawn."""
    found = [health.of(gpu.uuid) for gpu in inventory.gpus]
    worst = [*(one.severity for one in found), *((Severity.WITHDRAWN,) if inventory.missing else ())]
    return {"health": HEALTH_WORDS[max(worst)], "gpus-in-service": str(sum(not one.withdrawn for one in found))}


def _nvlinks(inventory: Inventory) -> dict[str, str | None]:
    """The generation, and how many GPUs reach each other over NVLink; one that has none is an island of its own."""
    sizes = [len(inventory.links.island(gpu.uuid)) for gpu in inventory.gpus]
    size = agreed(sizes)
    return {
        "nvlink.generation": text_of(agreed(gpu.nvlink_generation for gpu in inventory.gpus))
        if max(sizes) > 1
        else None,
        f"{inventory.vendor.link.lower()}.island-size": text_of(size) if size != 1 else None,
    }


def _virtual(machine: Machine) -> dict[str, str | None]:
    found = {"vgpu.present": None if machine.virtual is None else _word(machine.virtual)}
    if machine.vgpu_host is None:
        return found
    return found | {
        "vgpu.host-driver-version": label_value(machine.vgpu_host.version),
        "vgpu.host-driver-branch": label_value(machine.vgpu_host.branch),
    }


def _products(gpus: Iterable[Gpu], suffix: str) -> dict[str, str | None]:
    """The product and memory of all GPUs, as far as they agree; without one product the figures of each model."""
    product = agreed(label_value(gpu.product, LONGEST - len(suffix)) for gpu in gpus)
    found = {"gpu.product": product and product + suffix, "gpu.memory": _memory(gpus)}
    if product is not None:
        return found
    models: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        if model := label_value(gpu.product, _LONGEST_MODEL):
            models.setdefault(model, []).append(gpu)
    for model, members in models.items():
        found |= {f"gpu.{model}.count": str(len(members)), f"gpu.{model}.memory": _memory(members)}
    return found


def _memory(gpus: Iterable[Gpu]) -> str | None:
    """In MiB."""
    memory = agreed(gpu.memory for gpu in gpus)
    return None if memory is None else str(memory >> 20)


def _capability(capability: ComputeCapability | None) -> dict[str, str | None]:
    if capability is None:
        return {}
    major, minor = capability.major, capability.minor
    families = [name for first, name in _FAMILIES.items() if first[0] == major and first[1] <= minor]
    return {
        "gpu.family": families[-1] if families else None,
        "gpu.compute.major": str(major),
        "gpu.compute.minor": str(minor),
    }


def _versions(driver: DriverInfo) -> dict[str, str | None]:
    """Each version whole and in parts; the keys without ``-version`` are older, and still selected on."""
    return {
        "cuda.driver-version.full": driver.version,
        "cuda.runtime-version.full": driver.cuda,
        **_parts("cuda.driver-version", ("major", "minor", "revision"), driver.version),
        **_parts("cuda.driver", ("major", "minor", "rev"), driver.version),
        **_parts("cuda.runtime-version", ("major", "minor"), driver.cuda),
        **_parts("cuda.runtime", ("major", "minor"), driver.cuda),
    }


def _parts(key: str, names: Iterable[str], version: str | None) -> dict[str, str | None]:
    values = version.split(".") if version else []
    return dict(zip((f"{key}.{name}" for name in names), values, strict=False))
