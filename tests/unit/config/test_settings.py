"""Settings are what the file means, in plain types; without a file they are the documented defaults."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from node_agent.config.file import File
from node_agent.config.settings import AllBut, Rename, Settings, Sharing, SharingRule, settings
from node_agent.config.sources import nested


def of(values: dict[str, object]) -> Settings:
    return settings(msgspec.convert(nested(values), File))


def test_settings_made_without_anything_are_those_of_an_empty_file() -> None:
    assert Settings() == of({})


@pytest.mark.parametrize(
    ("path", "value", "name", "meant"),
    [
        ("agent.nodeName", "gpu-1", "node_name", "gpu-1"),
        ("agent.rescanInterval", "1m30s", "rescan_interval", 90.0),
        ("agent.rescanInterval", 10, "rescan_interval", 10.0),
        ("agent.registration", "watcher", "registration", "watcher"),
        ("agent.http.address", ":9400", "http_address", ("", 9400)),
        ("agent.http.address", "127.0.0.1:9400", "http_address", ("127.0.0.1", 9400)),
        ("agent.http.address", "[::1]:9400", "http_address", ("::1", 9400)),
        ("agent.http.address", "", "http_address", None),
        ("agent.devices.exclude", [0, "GPU-1", "*T400*"], "exclude", ("0", "GPU-1", "*T400*")),
        (
            "resources.gpus",
            [{"pattern": "*H200*", "name": "h200"}],
            "resources",
            (Rename(pattern="*H200*", resource="nvidia.com/h200"),),
        ),
        ("flags.plugin.deviceListStrategy", "envvar", "device_list_strategies", ("envvar",)),
        ("flags.plugin.deviceListStrategy", ["envvar", "cdi-cri"], "device_list_strategies", ("envvar", "cdi-cri")),
        ("flags.plugin.deviceListStrategy", ["cdi-annotations"], "device_list_strategies", ("cdi-annotations",)),
        ("flags.plugin.deviceListStrategy", ["envvar", "envvar"], "device_list_strategies", ("envvar",)),
        ("flags.plugin.deviceIDStrategy", "index", "device_id_strategy", "index"),
        ("flags.plugin.cdiAnnotationPrefix", "x.io/", "cdi_annotation_prefix", "x.io/"),
        ("flags.plugin.nvidiaCTKPath", "/usr/bin/nvidia-ctk", "cdi_hook_path", "/usr/bin/nvidia-ctk"),
        ("flags.nvidiaDriverRoot", "/run/nvidia/driver", "driver_root", Path("/run/nvidia/driver")),
        ("flags.nvidiaDevRoot", "/run/nvidia/driver", "dev_root", Path("/run/nvidia/driver")),
        ("flags.plugin.containerDriverRoot", "/driver-root", "container_driver_root", Path("/driver-root")),
        ("agent.frontDoors.computeDomainNamespaces", ["a", "b"], "compute_domain_namespaces", ("a", "b")),
        ("agent.paths.devRoot", "/host", "container_dev_root", Path("/host")),
    ],
)
def test_a_key_means_its_setting(path: str, value: object, name: str, meant: object) -> None:
    assert getattr(of({path: value}), name) == meant
    assert getattr(Settings(), name) != meant or meant is None


@pytest.mark.parametrize("key", ["kubeletDir", "cdiDir", "stateDir", "runDir", "sysfsRoot", "procRoot"])
def test_a_path_means_its_setting_and_no_other(key: str) -> None:
    name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
    found, default = of({f"agent.paths.{key}": "/elsewhere"}).paths, Settings().paths
    changed = [one for one in default.__struct_fields__ if getattr(found, one) != getattr(default, one)]
    assert changed == [name]
    assert getattr(found, name) == Path("/elsewhere")


def test_the_agent_looks_for_the_driver_where_the_host_has_it_unless_told_otherwise() -> None:
    assert of({"flags.nvidiaDriverRoot": "/opt/nvidia"}).container_driver_root == Path("/opt/nvidia")


def test_two_ways_of_naming_cdi_devices_are_one_so_that_none_is_injected_twice() -> None:
    both = of({"flags.plugin.deviceListStrategy": ["cdi-annotations", "cdi-cri"]})
    assert both.device_list_strategies == ("cdi-cri",)


def test_log_and_probe_settings_follow_their_keys() -> None:
    found = of({"agent.log.level": "debug", "agent.log.format": "json", "agent.health.probeInterval": "7s"})
    assert (found.log.level, found.log.form, found.health.probe_interval) == ("debug", "json", 7.0)


def test_all_but_some_holds_all_but_those() -> None:
    assert 5 not in AllBut(numbers=frozenset({5}))
    assert 6 in AllBut(numbers=frozenset({5}))


RESOURCES: list[dict[str, Any]] = [
    {"name": "gpu", "replicas": 4},
    {"name": "nvidia.com/mig-1g.5gb", "replicas": 2, "rename": "slice", "devices": [0, "0:1"]},
    {"name": "gpu", "replicas": 3, "devices": 2},
]


def test_nothing_is_shared_unless_it_is_said() -> None:
    assert of({}).sharing == Sharing(placement="spread", rules=())


def test_each_of_nvidias_shared_resources_is_a_rule_and_none_of_what_it_says_is_lost() -> None:
    assert of({"sharing.timeSlicing.resources": RESOURCES}).sharing.rules == (
        SharingRule(strategy="time-slicing", shares=4, of="nvidia.com/gpu", resource="nvidia.com/gpu"),
        SharingRule(
            strategy="time-slicing",
            shares=2,
            devices=("0", "0:1"),
            of="nvidia.com/mig-1g.5gb",
            resource="nvidia.com/slice",
        ),
        SharingRule(strategy="time-slicing", shares=3, first=2, of="nvidia.com/gpu", resource="nvidia.com/gpu"),
    )


def test_renaming_by_default_adds_nvidias_suffix_where_no_name_is_given() -> None:
    found = of({"sharing.mps.resources": RESOURCES, "sharing.mps.renameByDefault": True}).sharing.rules
    assert [rule.resource for rule in found] == ["nvidia.com/gpu.shared", "nvidia.com/slice", "nvidia.com/gpu.shared"]


@pytest.mark.parametrize(
    ("strategy", "given", "fails"),
    [
        ("timeSlicing", None, False),
        ("timeSlicing", True, True),
        ("mps", None, True),
        ("mps", False, False),
        ("mps", True, True),
    ],
)
def test_requests_for_more_than_one_share_fail_by_default_under_nvidias_mps_only(
    strategy: str, given: bool | None, fails: bool
) -> None:
    values: dict[str, object] = {f"sharing.{strategy}.resources": RESOURCES}
    if given is not None:
        values[f"sharing.{strategy}.failRequestsGreaterThanOne"] = given
    rules = of(values).sharing.rules
    assert [rule.fail_requests_greater_than_one for rule in rules] == [fails] * 3
    assert {rule.strategy for rule in rules} == {{"timeSlicing": "time-slicing", "mps": "mps"}[strategy]}


def test_a_rule_of_our_own_says_all_there_is_to_say() -> None:
    rule = {
        "devices": ["GPU-1", "NVIDIA-A100*", 0, "gpu-3"],
        "strategy": "mps",
        "replicas": 4,
        "resource": "gpu.shared",
        "failRequestsGreaterThanOne": True,
        "memoryPerShare": "20Gi",
        "threadPercentagePerShare": 50,
        "overcommit": True,
        "multiUser": True,
    }
    assert of({"agent.sharing.rules": [rule]}).sharing.rules == (
        SharingRule(
            devices=("GPU-1", "NVIDIA-A100*", "0", "gpu-3"),
            strategy="mps",
            shares=4,
            resource="nvidia.com/gpu.shared",
            fail_requests_greater_than_one=True,
            memory_per_share=20 * 1024**3,
            thread_percentage_per_share=50,
            overcommit=True,
            multi_user=True,
        ),
    )


def test_a_rule_of_our_own_that_says_little_shares_every_gpu_under_its_own_name() -> None:
    (found,) = of({"agent.sharing.rules": [{"replicas": 3, "timeSlice": "Short"}]}).sharing.rules
    assert found == SharingRule(strategy="time-slicing", shares=3, devices=("*",), time_slice="Short")
    assert found.resource is None


@pytest.mark.parametrize(
    ("strategy", "given", "fails"),
    [("time-slicing", None, False), ("time-slicing", True, True), ("mps", None, True), ("mps", False, False)],
)
def test_requests_for_more_than_one_share_fail_by_default_under_mps_of_our_own_rules_as_well(
    strategy: str, given: bool | None, fails: bool
) -> None:
    rule: dict[str, object] = {"strategy": strategy, "replicas": 3}
    if given is not None:
        rule["failRequestsGreaterThanOne"] = given
    (found,) = of({"agent.sharing.rules": [rule]}).sharing.rules
    assert found.fail_requests_greater_than_one is fails


def test_our_own_rules_go_before_nvidias() -> None:
    found = of({"agent.sharing.rules": [{"replicas": 9}], "sharing.timeSlicing.resources": RESOURCES}).sharing.rules
    assert [rule.shares for rule in found] == [9, 4, 2, 3]


@pytest.mark.parametrize(
    ("own", "policy", "meant"),
    [
        (None, None, "spread"),
        (None, "distributed", "spread"),
        (None, "packed", "packed"),
        ("distinct", "packed", "distinct"),
        ("spread", "packed", "spread"),
    ],
)
def test_shares_are_placed_as_we_are_told_or_else_as_nvidias_policy_says(
    own: str | None, policy: str | None, meant: str
) -> None:
    given = {"agent.sharing.placement": own, "flags.plugin.sharedDevicesAllocationPolicy": policy}
    assert of({path: value for path, value in given.items() if value}).sharing.placement == meant


def test_the_folder_of_mps_is_the_one_that_nvidias_key_names() -> None:
    assert of({"flags.mpsRoot": "/run/nvidia/mps"}).mps_root == Path("/run/nvidia/mps")
    assert of({}).mps_root is None
