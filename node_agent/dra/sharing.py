"""How the devices of a claim are shared: by MPS, by time slices or not at all, and what each client may take. Pure.

A claim says it in its configuration. And a claim that takes a part of a shareable GPU's memory or cores is held to that
part by MPS where that can be done, since a part that nobody enforces is a part on paper.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from node_agent.config.quantities import PATTERN, amount
from node_agent.dra.attributes import CORES, MEMORY, MULTIPROCESSORS
from node_agent.dra.configs import Config, GpuConfig, MigDeviceConfig, MpsConfig, Sharing, config_for
from node_agent.dra.time_slice_step import time_slices_of
from node_agent.errors import ClaimConfigInvalid, ClaimUnreadable, MpsImpossible
from node_agent.model.claim import AllocatedDevice, Claim
from node_agent.model.device import PublishedDevice
from node_agent.model.gpu import Gpu, GpuUuid
from node_agent.model.partition import DeviceUuid, Partition, Place
from node_agent.sharing.mps.plan import VOLTA, Limits
from node_agent.sharing.shares import Interval

Enforcement: TypeAlias = Literal["auto", "always", "never"]
"""Whether parts of a GPU are enforced: where it can be done, or else the claim is refused; or by configuration only."""

MPS, MPS_OF_MANY, APART = "MPS", "MPS with multiUser", "no MPS"
MPS_MODES = frozenset({MPS, MPS_OF_MANY})

_WHOLE = 100


class Part(Struct, frozen=True, kw_only=True):
    """What one device of a claim takes of its GPU, and may: bytes and percent, None where it is not limited."""

    gpu: Gpu
    memory: int | None = None
    cores: int | None = None


class Use(Struct, frozen=True, kw_only=True):
    """One allocated device, with the GPUs that it stands for and the configuration that holds for it.

    With ``is_part`` it is a part of a GPU: ``partition``, as soon as that is there.
    """

    result: AllocatedDevice
    gpus: tuple[Gpu, ...]
    config: Config
    partition: Partition | None = None
    is_part: bool = False

    @property
    def devices(self) -> tuple[DeviceUuid, ...]:
        """What a process opens."""
        if self.is_part:
            return () if self.partition is None else (self.partition.uuid,)
        return tuple(gpu.uuid for gpu in self.gpus)

    @property
    def sharing(self) -> Sharing | None:
        return self.config.sharing if isinstance(self.config, GpuConfig | MigDeviceConfig) else None

    @property
    def part(self) -> Part | None:
        """The part of a shareable GPU that it takes; None where it takes no less than all of it."""
        if self.result.share_id is None or len(self.gpus) != 1:
            return None
        (gpu,) = self.gpus
        memory, cores = _memory(self.result, gpu), _cores(self.result, gpu)
        return None if memory is None and cores is None else Part(gpu=gpu, memory=memory, cores=cores)


def uses_of(
    claim: Claim,
    driver: str,
    published: Mapping[str, PublishedDevice],
    gpus: Mapping[GpuUuid, Gpu],
    partition: Callable[[Place], Partition | None] = lambda place: None,
) -> tuple[Use, ...]:
    """The claim's devices of a driver, as far as they are published. Raises ClaimConfigInvalid."""
    found = ((result, published[result.device]) for result in claim.of_driver(driver) if result.device in published)
    return tuple(
        Use(
            result=result,
            gpus=tuple(gpus[uuid] for uuid in device.gpus if uuid in gpus),
            config=config_for(result, device.kind, claim.configs),
            partition=partition(device.places[0]) if device.part is not None else None,
            is_part=device.part is not None,
        )
        for result, device in found
    )


class Sharers(Struct, frozen=True, kw_only=True):
    """Tells how claims use the devices of ``driver``, by what the node has at the moment.

    ``lacks`` says what keeps MPS from the node, ``enforcement`` what is to be done about parts, ``partition``
    which one is at a place.
    """

    driver: str
    published: Callable[[], Mapping[str, PublishedDevice]]
    gpus: Callable[[], Mapping[GpuUuid, Gpu]]
    lacks: Callable[[], str | None]
    enforcement: Callable[[], Enforcement]
    partition: Callable[[Place], Partition | None] = lambda place: None

    def uses(self, claim: Claim) -> tuple[Use, ...]:
        """How the claim uses each of its devices. Raises ClaimConfigInvalid."""
        return uses_of(claim, self.driver, self.published(), self.gpus(), self.partition)

    def with_modes(self, claim: Claim) -> Claim:
        """The claim with the modes that its devices need. Raises as ``uses`` and ``mode_of``."""
        modes = {id(use.result): mode_of(use, self.enforcement(), lacks=self.lacks) for use in self.uses(claim)}
        results = tuple(replace(result, mode=modes.get(id(result), "")) for result in claim.results or ())
        return replace(claim, results=results)


def mode_of(use: Use, enforcement: Enforcement, *, lacks: Callable[[], str | None]) -> str:
    """How the GPUs have to be set for a device, in the words of ``Hold.mode``.

    ``lacks`` says what keeps MPS from the node, and is asked for parts alone: it looks at files. Raises MpsImpossible
    where parts are ``always`` enforced and these cannot be.
    """
    if use.result.admin:
        return ""
    if use.sharing is not None:
        # Within a partition processes take turns in the one way that there is.
        return "" if use.is_part and use.sharing.strategy == "TimeSlicing" else _configured(use.sharing)
    if use.result.share_id is None:
        return ""
    if use.part is None or enforcement == "never":
        return APART
    trouble = lacks() or _too_old(use.gpus)
    if trouble is None:
        return MPS
    if enforcement == "always":
        raise MpsImpossible(f"{use.result.device}: the part that was asked for cannot be enforced: {trouble}")
    return APART


def _configured(sharing: Sharing) -> str:
    if sharing.strategy == "MPS":
        return MPS_OF_MANY if sharing.mps_config is not None and sharing.mps_config.multi_user else MPS
    interval = sharing.time_slicing_config.interval if sharing.time_slicing_config is not None else "Default"
    return time_slices_of(Interval(interval))


def _too_old(gpus: Iterable[Gpu]) -> str | None:
    """What keeps MPS from these GPUs."""
    for gpu in gpus:
        if gpu.compute_capability is not None and gpu.compute_capability < VOLTA:
            return f"{gpu.name} has compute capability {gpu.compute_capability}, and MPS limits its clients from 7.0 on"
    return None


def limits_of(uses: Sequence[Use]) -> Limits:
    """What each client of a claim may take: of its configuration and of its parts whatever is less.

    Parts of one GPU add up. Threads are limited for all GPUs of a client alike, so that the largest part counts.
    Raises ClaimConfigInvalid where a limit is for a device that the claim does not have.
    """
    devices = list(dict.fromkeys(device for use in uses for device in use.devices))
    parts = [part for use in uses if (part := use.part) is not None]
    memory, threads = _summed(parts)
    for use in uses:
        config = use.sharing.mps_config if use.sharing is not None else None
        if config is None:
            continue
        for device, value in _configured_memory(config, devices, use).items():
            memory[device] = min(value, memory.get(device, value))
        if config.default_active_thread_percentage:
            wanted = config.default_active_thread_percentage
            threads = min(wanted, threads or wanted)
    return Limits(memory=memory, threads=threads)


def _summed(parts: Iterable[Part]) -> tuple[dict[DeviceUuid, int], int | None]:
    memory: dict[DeviceUuid, int] = {}
    cores: dict[GpuUuid, int] = {}
    free = set()
    for part in parts:
        gpu = part.gpu.uuid
        if part.memory is not None:
            memory[gpu] = memory.get(gpu, 0) + part.memory
        if part.cores is None:
            free.add(gpu)
        else:
            cores[gpu] = cores.get(gpu, 0) + part.cores
    return memory, None if free or not cores else min(_WHOLE, max(cores.values()))


def _configured_memory(config: MpsConfig, devices: Sequence[DeviceUuid], use: Use) -> dict[DeviceUuid, int]:
    """The limits of memory that a configuration has for a use, by UUID or by their place in ``devices``."""
    own, general = use.devices, config.default_pinned_device_memory_limit
    found = {device: amount(general) for device in own} if general is not None else {}
    for name, quantity in config.default_per_device_pinned_memory_limit.items():
        device = devices[int(name)] if name.isdigit() and int(name) < len(devices) else GpuUuid(name)
        if device not in devices:
            raise ClaimConfigInvalid(
                f"{use.result.device}: sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit names {name!r}; "
                f"the claim has {', '.join(devices)}, by these UUIDs or as 0 to {len(devices) - 1}"
            )
        if device in own:
            found[device] = amount(quantity)
    return found


def _memory(result: AllocatedDevice, gpu: Gpu) -> int | None:
    taken = result.consumed.get(MEMORY)
    if taken is None or gpu.memory is None:
        return None
    memory = _quantity(result, taken)
    return memory if memory < _offered(gpu.memory) else None


def _offered(memory: int) -> int:
    """What is given out of a GPU's memory: whole MiB."""
    return memory - memory % (1 << 20)


def _cores(result: AllocatedDevice, gpu: Gpu) -> int | None:
    """Percent of a GPU's cores; who takes the least of both ways to ask for them has not asked."""
    percent, count = (_quantity(result, result.consumed.get(name, "1")) for name in (CORES, MULTIPROCESSORS))
    asked = [percent] if percent > 1 else []
    if count > 1 and gpu.multiprocessors:
        asked.append(max(1, _WHOLE * count // gpu.multiprocessors))
    return min(asked) if asked and min(asked) < _WHOLE else None


def _quantity(result: AllocatedDevice, text: str) -> int:
    if not re.fullmatch(PATTERN, text):
        raise ClaimUnreadable(f"{result.device}: the capacity {text!r} that was consumed of it is not understood")
    return amount(text)
