"""How claims share their devices, and what their parts and configurations mean as limits."""

from collections.abc import Mapping
from typing import Any

import pytest

from node_agent.dra.configs import API_VERSION, DEFAULT, Config, GpuConfig, MpsConfig, Sharing, TimeSlicingConfig
from node_agent.dra.sharing import APART, MPS, MPS_OF_MANY, Enforcement, Sharers, Use, limits_of, mode_of
from node_agent.errors import ClaimConfigInvalid, ClaimUnreadable, MpsImpossible
from node_agent.model.claim import AllocatedDevice, Claim, ClaimUid, OpaqueConfig
from node_agent.model.device import DeviceKind, PublishedDevice
from node_agent.model.gpu import ComputeCapability, DeviceName, Gpu, GpuUuid
from node_agent.model.pci import PciAddress
from node_agent.sharing.mps.plan import Limits

GIB = 1 << 30


def gpu(number: int = 0, capability: tuple[int, int] | None = (9, 0), memory: int | None = 80 * GIB) -> Gpu:
    return Gpu(
        uuid=GpuUuid(f"GPU-{number}"),
        name=DeviceName(f"gpu-{number}"),
        index=number,
        product="H100",
        pci=PciAddress(f"0000:0{number}:00.0"),
        memory=memory,
        multiprocessors=132,
        compute_capability=ComputeCapability(major=capability[0], minor=capability[1]) if capability else None,
    )


def use(*gpus: Gpu, share: str | None = "s1", config: Config = DEFAULT, admin: bool = False, **consumed: str) -> Use:
    found = gpus or (gpu(),)
    result = AllocatedDevice(
        request="r",
        driver="gpu.nvidia.com",
        pool="n",
        device=found[0].name,
        share_id=share,
        admin=admin,
        consumed=consumed,
    )
    return Use(result=result, gpus=found, config=config)


def mps(**config: Any) -> GpuConfig:
    return GpuConfig(api_version=API_VERSION, sharing=Sharing(strategy="MPS", mps_config=MpsConfig(**config)))


def slices(interval: Any = None) -> GpuConfig:
    config = TimeSlicingConfig(interval=interval) if interval else None
    return GpuConfig(api_version=API_VERSION, sharing=Sharing(strategy="TimeSlicing", time_slicing_config=config))


# The mode


@pytest.mark.parametrize(
    ("wanted", "mode"),
    [
        (use(memory="20Gi"), MPS),
        (use(memory="80Gi", cores="25"), MPS),
        (use(memory="80Gi", multiprocessors="66"), MPS),
        (use(memory="80Gi"), APART),
        (use(memory="80Gi", multiprocessors="1", cores="1"), APART),
        (use(memory="80Gi", multiprocessors="132", cores="100"), APART),
        (use(share=None), ""),
        (use(share=None, memory="80Gi"), ""),
        (use(admin=True, memory="20Gi", config=mps()), ""),
        (use(share=None, config=mps()), MPS),
        (use(share=None, config=GpuConfig(api_version=API_VERSION, sharing=Sharing(strategy="MPS"))), MPS),
        (use(share=None, config=mps(multi_user=True)), MPS_OF_MANY),
        (use(memory="20Gi", config=slices()), "time slices of Default"),
        (use(memory="20Gi", config=slices("Long")), "time slices of Long"),
        (use(gpu(capability=None), memory="20Gi"), MPS),
        (use(gpu(memory=None), memory="20Gi"), APART),
    ],
)
def test_who_takes_a_part_is_held_to_it_unless_the_claim_says_otherwise(wanted: Use, mode: str) -> None:
    assert mode_of(wanted, "auto", lacks=lambda: None) == mode


@pytest.mark.parametrize(
    ("lacks", "capability", "why"),
    [
        ("no daemon", (9, 0), "no daemon"),
        (None, (6, 1), r"gpu-0 has compute capability 6\.1"),
    ],
)
def test_where_a_part_cannot_be_enforced_it_is_only_counted_or_refused(
    lacks: str | None, capability: tuple[int, int], why: str
) -> None:
    part = use(gpu(capability=capability), memory="20Gi")
    assert mode_of(part, "auto", lacks=lambda: lacks) == APART
    with pytest.raises(MpsImpossible, match=f"gpu-0: the part that was asked for cannot be enforced: {why}"):
        mode_of(part, "always", lacks=lambda: lacks)


def test_parts_may_be_left_to_the_configuration_of_claims() -> None:
    assert mode_of(use(memory="20Gi"), "never", lacks=lambda: None) == APART
    assert mode_of(use(memory="20Gi", config=mps()), "never", lacks=lambda: None) == MPS


# Limits


@pytest.mark.parametrize(
    ("uses", "limits"),
    [
        ([use(memory="20Gi")], Limits(memory={GpuUuid("GPU-0"): 20 * GIB})),
        ([use(memory="20Gi", cores="25")], Limits(memory={GpuUuid("GPU-0"): 20 * GIB}, threads=25)),
        ([use(memory="80Gi", multiprocessors="33")], Limits(threads=25)),
        ([use(memory="80Gi", multiprocessors="33", cores="10")], Limits(threads=10)),
        ([use(memory="80Gi", multiprocessors="2")], Limits(threads=1)),
        ([use(memory="5Gi"), use(share="s2", memory="7Gi")], Limits(memory={GpuUuid("GPU-0"): 12 * GIB})),
        ([use(cores="20"), use(share="s2", cores="30")], Limits(threads=50)),
        ([use(cores="60"), use(share="s2", cores="70")], Limits(threads=100)),
        ([use(cores="20"), use(gpu(1), cores="30")], Limits(threads=30)),
        ([use(memory="1Gi", cores="20"), use(gpu(1), memory="1Gi")], None),
        ([use(share=None, config=mps())], Limits()),
    ],
)
def test_parts_are_limits(uses: list[Use], limits: Limits | None) -> None:
    assert limits_of(uses) == (limits or Limits(memory={GpuUuid("GPU-0"): GIB, GpuUuid("GPU-1"): GIB}))


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({"default_active_thread_percentage": 30}, Limits(threads=30)),
        ({"default_active_thread_percentage": 0}, Limits()),
        ({"default_pinned_device_memory_limit": "10Gi"}, Limits(memory={GpuUuid("GPU-0"): 10 * GIB})),
        (
            {
                "default_pinned_device_memory_limit": "10Gi",
                "default_per_device_pinned_memory_limit": {"0": "5Gi"},
            },
            Limits(memory={GpuUuid("GPU-0"): 5 * GIB}),
        ),
        ({"default_per_device_pinned_memory_limit": {"GPU-0": "5G"}}, Limits(memory={GpuUuid("GPU-0"): 5 * 10**9})),
    ],
)
def test_a_configuration_is_limits_as_well(config: Mapping[str, Any], limits: Limits) -> None:
    assert limits_of([use(share=None, config=mps(**config))]) == limits


def test_of_a_part_and_a_configuration_the_less_counts() -> None:
    config = mps(default_active_thread_percentage=30, default_pinned_device_memory_limit="10Gi")
    assert limits_of([use(memory="20Gi", cores="20", config=config)]) == Limits(
        memory={GpuUuid("GPU-0"): 10 * GIB}, threads=20
    )
    assert limits_of([use(memory="5Gi", cores="50", config=config)]) == Limits(
        memory={GpuUuid("GPU-0"): 5 * GIB}, threads=30
    )


def test_a_device_of_several_gpus_has_its_limits_on_each() -> None:
    group = use(gpu(0), gpu(1), share=None, config=mps(default_pinned_device_memory_limit="10Gi"))
    assert limits_of([group]) == Limits(memory={GpuUuid("GPU-0"): 10 * GIB, GpuUuid("GPU-1"): 10 * GIB})


@pytest.mark.parametrize("name", ["1", "GPU-9", "gpu-0"])
def test_a_limit_for_a_device_that_the_claim_does_not_have_is_refused(name: str) -> None:
    config = mps(default_per_device_pinned_memory_limit={name: "5Gi"})
    with pytest.raises(ClaimConfigInvalid, match=f"names '{name}'; the claim has GPU-0, .* or as 0 to 0"):
        limits_of([use(share=None, config=config)])


def test_a_quantity_that_is_not_understood_is_said() -> None:
    with pytest.raises(ClaimUnreadable, match=r"gpu-0: the capacity '2e10' .* is not understood"):
        limits_of([use(memory="2e10")])


# Claims


def claim(*uses: Use, config: Mapping[str, object] | None = None) -> Claim:
    configs = (OpaqueConfig(driver="gpu.nvidia.com", parameters=config),) if config else ()
    other = AllocatedDevice(request="n", driver="nic.example.com", pool="n", device="gpu-0")
    results = (*(each.result for each in uses), other)
    return Claim(uid=ClaimUid("u"), namespace="ns", name="c", results=results, configs=configs)


def sharers(enforcement: Enforcement = "auto", *gpus: Gpu) -> Sharers:
    found = gpus or (gpu(),)
    return Sharers(
        driver="gpu.nvidia.com",
        published=lambda: {
            one.name: PublishedDevice(name=one.name, kind=DeviceKind.GPU, gpus=(one.uuid,)) for one in found
        },
        gpus=lambda: {one.uuid: one for one in found},
        lacks=lambda: None,
        enforcement=lambda: enforcement,
    )


def test_each_device_of_the_driver_gets_its_mode_and_others_stay_as_they_are() -> None:
    found = sharers().with_modes(claim(use(memory="20Gi"), use(share="s2", memory="80Gi")))
    assert [result.mode for result in found.results or ()] == [MPS, APART, ""]


def test_a_claim_is_read_with_its_configuration() -> None:
    config = {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}
    found = sharers().with_modes(claim(use(memory="20Gi"), config=config))
    assert [result.mode for result in found.results or ()] == ["time slices of Default", ""]


def test_one_that_is_allocated_nothing_stays_as_it_is() -> None:
    bare = Claim(uid=ClaimUid("u"), namespace="ns", name="c")
    assert sharers().with_modes(bare).of_driver("gpu.nvidia.com") == ()
