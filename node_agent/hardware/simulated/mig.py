"""MIG as the driver does it: which instances fit where, which ids they get, and when they can be destroyed.

Pure rules over one GPU's table of profiles (``profile.MigTable``); the C functions on top are in ``library/mig``.
A refusal is the ``NvmlReturn`` that the C function answers.
"""

from collections.abc import Iterable
from itertools import count

from msgspec import Struct, field

from node_agent.hardware.simulated.profile import MigProfile, MigTable
from node_agent.hardware.simulated.returns import NvmlReturn

# Which sizes of compute instance, in slices, a GPU instance of so many slices can be divided into, and the distance
# of their possible starts. The compute profile's number is its place in NVML's enumeration.
COMPUTE_SIZES = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
COMPUTE_STRIDES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
COMPUTE_PROFILE_IDS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}


class ComputeProfile(Struct, frozen=True, kw_only=True):
    """A share of a GPU instance's compute slices; memory and engines are shared by all of them."""

    id: int
    name: str
    slices: int
    count: int
    sms: int
    starts: tuple[int, ...]


class ComputeInstance(Struct, frozen=True, kw_only=True):
    """``slot`` is the place of the MIG device in the GPU's list of MIG device handles."""

    id: int
    profile: ComputeProfile
    start: int
    slot: int


class GpuInstance(Struct, frozen=True, kw_only=True):
    id: int
    profile: MigProfile
    start: int
    compute: dict[int, ComputeInstance] = field(default_factory=dict)

    def compute_profiles(self) -> list[ComputeProfile]:
        """The ways to divide this instance, smallest first."""
        return [self._compute_profile(size) for size in COMPUTE_SIZES[self.profile.slices]]

    def compute_profile(self, profile_id: int) -> ComputeProfile:
        for profile in self.compute_profiles():
            if profile.id == profile_id:
                return profile
        raise NvmlReturn("NOT_SUPPORTED" if profile_id in COMPUTE_PROFILE_IDS.values() else "INVALID_ARGUMENT")

    def free_compute_starts(self, profile: ComputeProfile) -> list[int]:
        taken = {s for other in self.compute.values() for s in range(other.start, other.start + other.profile.slices)}
        return [start for start in profile.starts if taken.isdisjoint(range(start, start + profile.slices))]

    def _compute_profile(self, size: int) -> ComputeProfile:
        whole = self.profile.slices
        starts = tuple(range(0, whole - size + 1, COMPUTE_STRIDES[size]))
        return ComputeProfile(
            id=COMPUTE_PROFILE_IDS[size],
            name=self.profile.name if size == whole else f"{size}c.{self.profile.name}",
            slices=size,
            count=len(starts),
            sms=self.profile.sms * size // whole,
            starts=starts,
        )


class Mig(Struct, kw_only=True):
    """One GPU's MIG state. ``pending`` differs from ``enabled`` while a mode change waits for a reset."""

    table: MigTable
    enabled: bool = False
    pending: bool = False
    instances: dict[int, GpuInstance] = field(default_factory=dict)

    def profile(self, profile_id: int) -> MigProfile:
        for profile in self.table.profiles:
            if profile.id == profile_id:
                return profile
        raise NvmlReturn("INVALID_ARGUMENT")

    def capacity(self, profile: MigProfile) -> int:
        """How many more instances of this profile fit now."""
        used = sum(instance.profile.slices for instance in self.instances.values())
        made = sum(instance.profile.id == profile.id for instance in self.instances.values())
        # There is one optical-flow engine: an instance with "+me", or the whole, has it alone.
        limits = [
            len(self.free_starts(profile)),
            (self.table.slices - used) // profile.slices,
            profile.count - made,
            *([self._free_ofa() // profile.ofa] if profile.ofa else []),
        ]
        return max(0, min(limits))

    def free_starts(self, profile: MigProfile) -> list[int]:
        taken = self._taken()
        return [start for start in profile.starts if taken.isdisjoint(range(start, start + profile.size))]

    def create(self, profile_id: int, start: int | None = None) -> GpuInstance:
        """Make a GPU instance at ``start`` (a memory slice), or where the driver would put it."""
        profile = self.profile(profile_id)
        if start is not None and start not in profile.starts:
            raise NvmlReturn("INVALID_ARGUMENT")
        free = self.free_starts(profile)
        # Slices of memory and of compute run out separately; both must be there.
        if not self.capacity(profile) or (start is not None and start not in free):
            raise NvmlReturn("INSUFFICIENT_RESOURCES")
        chosen = start if start is not None else min(free, key=self._roominess)
        instance = GpuInstance(id=self._instance_id(profile, chosen), profile=profile, start=chosen)
        self.instances[instance.id] = instance
        return instance

    def destroy(self, instance: GpuInstance) -> None:
        if instance.compute:
            raise NvmlReturn("IN_USE")
        del self.instances[instance.id]

    def create_compute(self, instance: GpuInstance, profile_id: int, start: int | None = None) -> ComputeInstance:
        """Make a compute instance, and with it a MIG device, at ``start`` (a compute slice) or the first free one."""
        profile = instance.compute_profile(profile_id)
        if start is not None and start not in profile.starts:
            raise NvmlReturn("INVALID_ARGUMENT")
        # Unlike memory slices, compute slices are handed out from the first one up.
        free = instance.free_compute_starts(profile)
        if not free or (start is not None and start not in free):
            raise NvmlReturn("INSUFFICIENT_RESOURCES")
        compute = ComputeInstance(
            id=_first_free(instance.compute),
            profile=profile,
            start=free[0] if start is None else start,
            slot=_first_free(slot.slot for _, slot in self.devices()),
        )
        instance.compute[compute.id] = compute
        return compute

    def destroy_compute(self, instance: GpuInstance, compute: ComputeInstance) -> None:
        del instance.compute[compute.id]

    def devices(self) -> list[tuple[GpuInstance, ComputeInstance]]:
        """The MIG devices: each compute instance with its GPU instance."""
        return [(instance, compute) for instance in self.instances.values() for compute in instance.compute.values()]

    def set_mode(self, enabled: bool) -> None:
        self.enabled = self.pending = enabled
        self.instances.clear()

    def lay_out(self, wanted: Iterable[str]) -> None:
        """Have these lie on the GPU, each as ``1g.18gb@0`` and filled by one compute instance; what fits is left alone.

        Raises ValueError for what does not fit beside the others; the GPU has those before it by then.
        """
        known = {profile.name: profile for profile in self.table.profiles}
        named = {text: (known.get(text.partition("@")[0]), text.partition("@")[2]) for text in wanted}
        kept = {(profile.id, start) for profile, start in named.values() if profile is not None}
        lying = {(one.profile.id, str(one.start)): one for one in self.instances.values()}
        for place in lying.keys() - kept:
            del self.instances[lying[place].id]
        for text, (profile, start) in named.items():
            if profile is not None and (profile.id, start) in lying:
                continue
            if profile is None or not start.isdigit() or int(start) not in self.free_starts(profile):
                raise ValueError(f"{text!r} does not fit; the form is {next(iter(known))}@0")
            instance = self.create(profile.id, int(start))
            self.create_compute(instance, instance.compute_profiles()[-1].id)

    def _taken(self) -> set[int]:
        made = self.instances.values()
        return {s for other in made for s in range(other.start, other.start + other.profile.size)}

    def _free_ofa(self) -> int:
        whole = max(profile.ofa for profile in self.table.profiles)
        return whole - sum(instance.profile.ofa for instance in self.instances.values())

    def _roominess(self, start: int) -> tuple[int, int, int]:
        """Order of the driver's own choice: the half, then the quarter, with the least room left, then the lowest."""
        half, quarter = self.table.memory_slices // 2, self.table.memory_slices // 4
        return self._room(start, half), self._room(start, quarter), start

    def _room(self, start: int, block: int) -> int:
        """Free compute slices of the aligned block around ``start``; the last memory slice may have none."""
        first = start - start % block
        return len(set(range(first, min(first + block, self.table.slices))) - self._taken())

    def _instance_id(self, profile: MigProfile, start: int) -> int:
        """0 is the whole GPU, 1 and 2 its halves, then quarters and eighths; only halves do not follow the start."""
        parts = self.table.memory_slices // profile.size
        if parts == 2:
            return 1 if 1 not in self.instances else 2
        return parts - 1 + start // profile.size


def _first_free(taken: Iterable[int]) -> int:
    used = set(taken)
    return next(number for number in count() if number not in used)
