"""The labels of the MIG devices that pods can ask for by their limits, under GPU Feature Discovery's names. Pure.

With strategy mixed each profile has a set of its own. With strategy single they stand in the place of the GPUs: the
labels of the node's GPUs are then those of its MIG devices. ``labels`` puts them among the others.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.partition import Partition
from node_agent.reporting.label_values import LONGEST, SHARED, agreed, label_value, looks_whole, text_of
from node_agent.sharing.shares import Shared

_INVALID = "-MIG-INVALID"


class MigOffer(Struct, frozen=True, kw_only=True):
    """The ``devices`` that are offered by limits, each as it is shared, and the GPUs that are cut for such devices."""

    strategy: Literal["none", "single", "mixed"] = "none"
    devices: tuple[tuple[Partition, Shared | None], ...] = ()
    cut: frozenset[GpuUuid] = field(default_factory=frozenset)


NO_MIG = MigOffer()

Devices = Collection[tuple[Partition, Shared | None]]
Found = dict[str, str | None]


def mig_labels(gpus: Mapping[GpuUuid, Gpu], mig: MigOffer) -> Found:
    """What is said of the MIG devices, and with strategy single in the place of their GPUs."""
    if mig.strategy == "mixed":
        return _mixed(gpus, mig.devices)
    if mig.strategy == "none" or mig.cut != gpus.keys():
        return {}  # whole GPUs are offered, and no MIG devices under the same name
    return {f"gpu.{name}": value for name, value in _single(gpus, mig).items()}


def _mixed(gpus: Mapping[GpuUuid, Gpu], devices: Devices) -> Found:
    found: Found = {}
    for profile in sorted({partition.profile for partition, _ in devices}):
        of_it = [(partition, shared) for partition, shared in devices if partition.profile == profile]
        facts = _facts(gpus, of_it) | {"product": _product(gpus, of_it)}
        found |= {f"mig-{_spelled(profile)}.{name}": value for name, value in facts.items()}
    return found


def _single(gpus: Mapping[GpuUuid, Gpu], mig: MigOffer) -> Found:
    """Where the MIG devices differ, or there are none, nothing is offered, and the product says so."""
    if not mig.devices:
        model = agreed(label_value(gpu.product, LONGEST - len(_INVALID)) for gpu in gpus.values())
        product = model and model + _INVALID
        return {"product": product, "count": "0", "replicas": "0", "memory": "0", "sharing-strategy": None}
    return _facts(gpus, mig.devices) | {"product": _product(gpus, mig.devices)}


def _facts(gpus: Mapping[GpuUuid, Gpu], devices: Devices) -> Found:
    """How many there are, and what is the same of all."""

    def of_all(values: Iterable[int | None]) -> str | None:
        return text_of(agreed(values))

    partitions = [partition for partition, _ in devices]
    memory = agreed(one.memory for one in partitions)
    return {
        "count": str(len(devices)),
        "replicas": of_all(shared.replicas if shared else 1 for _, shared in devices),
        "sharing-strategy": agreed(str(shared.strategy) if shared else "none" for _, shared in devices),
        "memory": None if memory is None else str(memory >> 20),
        "multiprocessors": of_all(one.multiprocessors for one in partitions),
        "slices.gi": of_all(one.slices for one in partitions),
        "slices.ci": of_all(one.compute_slices for one in partitions),
        "engines.copy": of_all(one.copy_engines for one in partitions),
        "engines.decoder": of_all(one.decoders for one in partitions),
        "engines.encoder": of_all(one.encoders for one in partitions),
        "engines.jpeg": of_all(one.jpeg_engines for one in partitions),
        "engines.ofa": of_all(one.optical_flow_engines for one in partitions),
    }


def _product(gpus: Mapping[GpuUuid, Gpu], devices: Devices) -> str | None:
    """The model with the profile, where all devices are of one model and profile."""
    profile = agreed(partition.profile for partition, _ in devices)
    if profile is None:
        return None
    suffix = f"-MIG-{_spelled(profile)}{SHARED if all(looks_whole(shared) for _, shared in devices) else ''}"
    model = agreed(label_value(gpus[one.parent].product, LONGEST - len(suffix)) for one, _ in devices)
    return model and model + suffix


def _spelled(profile: str) -> str:
    return profile.replace("+", ".")
