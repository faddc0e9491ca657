"""What is valid and does nothing yet, or has a price, is said; what is as usual is not."""

import msgspec
import pytest

from node_agent.config.check import known_paths
from node_agent.config.file import File
from node_agent.config.notices import UNSERVED, UNSERVED_VARIABLES, flat, notices
from node_agent.config.sources import nested


def said(values: dict[str, object], **environment: str) -> list[str]:
    return list(notices(msgspec.convert(nested(values), File), environment))


SHARED = [{"name": "nvidia.com/gpu", "replicas": 4}]


def test_nothing_is_said_of_the_defaults() -> None:
    assert said({}) == []


def test_nothing_is_said_of_a_default_that_is_written_out() -> None:
    assert said({path: value for path, value in flat(File()).items() if value is not None}) == []


# A value other than the default for every row of the table.
UNUSUAL: dict[str, object] = {
    "flags.failOnInitError": True,
    "flags.gdrcopyEnabled": True,
    "flags.gdsEnabled": True,
    "flags.mofedEnabled": True,
    "flags.deviceDiscoveryStrategy": "tegra",
    "flags.plugin.passDeviceSpecs": True,
    "flags.gfd.oneshot": True,
    "flags.gfd.sleepInterval": "5m",
}


@pytest.mark.parametrize("key", UNSERVED)
def test_a_key_that_does_nothing_yet_is_named_with_what_happens_instead(key: str) -> None:
    assert said({key: UNUSUAL[key]}) == [f"{key}: valid, and not served by this version: {UNSERVED[key]}"]


def test_every_row_of_the_table_is_a_key_or_a_section_of_the_file() -> None:
    assert set(UNSERVED) <= set(known_paths())


def test_a_value_that_means_what_the_agent_does_anyway_is_not_worth_a_word() -> None:
    assert said({"flags.deviceDiscoveryStrategy": "nvml"}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"flags.plugin.deviceListStrategy": "cdi-annotations"},
        {"flags.nvidiaDriverRoot": "/run/nvidia/driver"},
        {"flags.plugin.containerDriverRoot": "/driver-root"},
        {"agent.health.ignoredXids": [79]},
        {"agent.devices.exclude": [0]},
        {"agent.registration": "watcher"},
        {"resources.gpus": [{"pattern": "*", "name": "gpu"}]},
    ],
)
def test_nothing_is_said_of_what_is_served(values: dict[str, object]) -> None:
    assert said(values) == []


@pytest.mark.parametrize("strategies", ["envvar", ["cdi-cri", "envvar"]])
def test_the_strategy_that_a_pod_can_forge_comes_with_a_warning(strategies: object) -> None:
    (notice,) = said({"flags.plugin.deviceListStrategy": strategies})
    assert "can set NVIDIA_VISIBLE_DEVICES itself and use every GPU" in notice


def test_two_ways_of_naming_cdi_devices_are_said_to_be_one() -> None:
    (notice,) = said({"flags.plugin.deviceListStrategy": ["cdi-annotations", "cdi-cri"]})
    assert "cdi-annotations is left out beside cdi-cri" in notice


def test_indices_and_ignored_xids_have_their_price() -> None:
    (notice,) = said({"flags.plugin.deviceIDStrategy": "index"})
    assert "moves to another GPU" in notice
    (notice,) = said({"agent.health.ignoredXids": "all"})
    assert "no Xid withdraws a GPU" in notice


@pytest.mark.parametrize("key", ["agent.sharing.rules", "sharing.timeSlicing.resources", "sharing.mps.resources"])
def test_shares_that_nobody_can_ask_for_are_said_to_be_none(key: str) -> None:
    rule = {"replicas": 4} if key.startswith("agent") else {"name": "gpu", "replicas": 4}
    (notice,) = said({key: [rule], "agent.frontDoors.devicePlugin": False})
    assert "claims get GPUs unshared" in notice
    assert said({key: [rule]}) == []


@pytest.mark.parametrize("variable", UNSERVED_VARIABLES)
def test_a_variable_that_nvidia_has_and_the_agent_does_not_is_named(variable: str) -> None:
    (notice,) = said({}, **{variable: "x"})
    assert notice.startswith(f"environment variable {variable}: not served by this version: ")
    assert said({}, **{variable: ""}) == []
