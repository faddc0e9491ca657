"""The form of the file: NVIDIA's keys are all there under their own names, with the documented defaults."""

from typing import get_args

import msgspec
import pytest

from node_agent.config.check import known_paths
from node_agent.config.file import CauseName, File, Section
from node_agent.config.notices import flat
from node_agent.model.health import Reason

SHARED = ["name", "replicas", "rename", "devices"]
# The keys of the device plugin's configuration file, version v1, by their section.
NVIDIA_SECTIONS = {
    "flags.": [
        *("migStrategy", "failOnInitError", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot", "gdrcopyEnabled"),
        *("gdsEnabled", "mofedEnabled", "useNodeFeatureAPI", "deviceDiscoveryStrategy"),
    ],
    "flags.plugin.": [
        *("passDeviceSpecs", "deviceListStrategy", "deviceIDStrategy", "cdiAnnotationPrefix", "nvidiaCTKPath"),
        *("containerDriverRoot", "sharedDevicesAllocationPolicy"),
    ],
    "flags.gfd.": ["oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile"],
    "resources.gpus[].": ["pattern", "name"],
    "resources.mig[].": ["pattern", "name"],
    "sharing.timeSlicing.": ["renameByDefault", "failRequestsGreaterThanOne"],
    "sharing.timeSlicing.resources[].": SHARED,
    "sharing.mps.": ["renameByDefault", "failRequestsGreaterThanOne"],
    "sharing.mps.resources[].": SHARED,
    "imex.": ["channelIDs", "required"],
    "": ["version"],
}
NVIDIA_KEYS = [f"{section}{key}" for section, keys in NVIDIA_SECTIONS.items() for key in keys]


@pytest.mark.parametrize("path", NVIDIA_KEYS)
def test_nvidias_key_is_known_under_its_own_name(path: str) -> None:
    assert path in known_paths()


def test_what_is_not_nvidias_is_under_agent() -> None:
    strangers = [path for path in known_paths() if not any(key.startswith(path) for key in NVIDIA_KEYS)]
    assert len(strangers) > 15
    assert {path.partition(".")[0] for path in strangers} == {"agent"}


NVIDIA_DEFAULTS = {
    "version": "v1",
    "flags.migStrategy": "none",
    "flags.nvidiaDriverRoot": "/",
    "flags.gdrcopyEnabled": False,
    "flags.gdsEnabled": False,
    "flags.mofedEnabled": False,
    "flags.useNodeFeatureAPI": True,
    "flags.deviceDiscoveryStrategy": "auto",
    "flags.plugin.passDeviceSpecs": False,
    "flags.plugin.deviceIDStrategy": "uuid",
    "flags.plugin.cdiAnnotationPrefix": "cdi.k8s.io/",
    "flags.plugin.sharedDevicesAllocationPolicy": "distributed",
    "flags.gfd.sleepInterval": "60s",
    "imex.required": False,
}
OWN_DEFAULTS = {
    "flags.failOnInitError": False,
    "flags.plugin.deviceListStrategy": "cdi-cri",
    "flags.plugin.containerDriverRoot": "",
    "agent.nodeName": "",
    "agent.rescanInterval": "30s",
    "agent.registration": "auto",
    "agent.paths.kubeletDir": "/var/lib/kubelet",
    "agent.paths.cdiDir": "/var/run/cdi",
    "agent.paths.stateDir": "/var/lib/gpu-node-agent",
    "agent.paths.runDir": "/run/gpu-node-agent",
    "agent.paths.sysfsRoot": "/sys",
    "agent.paths.procRoot": "/proc",
    "agent.health.ignoredXids": (13, 31, 43, 45, 68, 109),
    "agent.health.probeInterval": "5s",
    "agent.log.level": "info",
    "agent.log.format": "text",
    "agent.http.address": "",
    "agent.devices.exclude": (),
    "agent.sharing.placement": None,
    "agent.sharing.rules": (),
}


@pytest.mark.parametrize(("path", "value"), [*NVIDIA_DEFAULTS.items(), *OWN_DEFAULTS.items()])
def test_a_default_is_nvidias_or_the_documented_other(path: str, value: object) -> None:
    assert flat(File())[path] == value


def test_the_defaults_are_valid_by_their_own_form() -> None:
    plain = {key: value for key, value in msgspec.to_builtins(File()).items() if key != "sharing"}
    assert msgspec.convert(plain, File) == File()


def test_a_file_cannot_be_changed_and_can_be_compared() -> None:
    assert hash(File()) == hash(File())
    with pytest.raises(AttributeError):
        File().version = "v1"  # type: ignore[misc]


def test_every_section_is_strict() -> None:
    sections = Section.__subclasses__()
    assert len(sections) > 15
    for section in sections:
        assert section.__struct_config__.forbid_unknown_fields, section
        assert section.__struct_config__.frozen, section


def test_a_rule_on_health_may_be_about_every_reason_but_those_that_no_rule_can_change() -> None:
    assert {*get_args(CauseName), Reason.XID, Reason.NOT_PROBED} == set(Reason)
