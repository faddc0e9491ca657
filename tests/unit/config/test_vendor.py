"""Whose GPUs a node has, by the configuration or by the machine, and what of the configuration those cannot do."""

from pathlib import Path

import pytest
import yaml

from node_agent.agent.live import selection_of
from node_agent.config.resolve import Sources, check, sources
from node_agent.config.settings import Settings
from node_agent.errors import ConfigError
from node_agent.model.vendor import AMD, NVIDIA, Vendor

MANIFESTS = Path(__file__).parents[3] / "deploy/daemonset"


def settings(**flags: object) -> Settings:
    return Sources(flags={key.replace("_", "."): value for key, value in flags.items()}).resolve().settings


def amd(**flags: object) -> Settings:
    return settings(agent_vendor="amd", **flags)


def test_the_vendor_is_that_of_the_configuration() -> None:
    assert settings().vendor == NVIDIA
    assert settings(agent_vendor="nvidia").vendor == NVIDIA
    assert amd().vendor == AMD
    assert Sources(environment={"AGENT_VENDOR": "amd"}).resolve().settings.vendor == AMD


@pytest.mark.parametrize(
    ("manifest", "vendor"), [("base/daemonset.yaml", NVIDIA), ("components/amd/daemonset.yaml", AMD)]
)
def test_the_manifests_whose_rights_and_mounts_are_for_one_vendor_say_which(manifest: str, vendor: Vendor) -> None:
    daemonset = yaml.safe_load((MANIFESTS / manifest).read_text())
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one["value"] for one in container["env"] if one["name"] == "AGENT_VENDOR"}
    others = {NVIDIA: AMD, AMD: NVIDIA}
    found = Sources(environment=environment, vendor_of=lambda _: others[vendor]).resolve()
    assert found.settings.vendor == vendor


def test_where_it_is_left_open_the_machine_decides_by_the_sysfs_that_is_configured() -> None:
    asked: list[Path] = []

    def machine(sysfs: Path) -> object:
        asked.append(sysfs)
        return AMD

    found = sources(None, {}, {"agent.paths.sysfsRoot": "/host/sys"}, None, machine)  # type: ignore[arg-type]
    assert found.resolve().settings.vendor == AMD
    assert asked == [Path("/host/sys")]
    chosen = sources(None, {}, {"agent.vendor": "nvidia"}, None, machine)  # type: ignore[arg-type]
    assert chosen.resolve().settings.vendor == NVIDIA
    assert len(asked) == 1


def test_a_vendor_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'agent\.vendor: .*"intel"'):
        settings(agent_vendor="intel")


def test_names_of_resources_are_in_the_vendors_domain() -> None:
    rules = [{"pattern": "*MI300X*", "name": "mi300x"}]
    found = amd(resources_gpus=rules)
    assert [rule.resource for rule in found.resources] == ["amd.com/mi300x"]
    assert selection_of(found).resources == ("amd.com/mi300x", "amd.com/gpu")
    assert [rule.resource for rule in settings(resources_gpus=rules).resources] == ["nvidia.com/mi300x"]


def test_a_name_of_another_vendors_is_refused_with_one_that_would_do() -> None:
    with pytest.raises(ConfigError, match=r"such as amd\.com/gpu: .*got \"nvidia\.com/big\""):
        amd(resources_gpus=[{"pattern": "*", "name": "nvidia.com/big"}])
    with pytest.raises(ConfigError, match=r"such as nvidia\.com/gpu: .*got \"amd\.com/big\""):
        settings(resources_gpus=[{"pattern": "*", "name": "amd.com/big"}])


def test_shares_by_turns_are_for_every_vendors_gpus() -> None:
    found = amd(
        agent_sharing_rules=[{"replicas": 2}], sharing_timeSlicing={"resources": [{"name": "gpu", "replicas": 3}]}
    )
    assert [(rule.strategy, rule.shares, rule.of) for rule in found.sharing.rules] == [
        ("time-slicing", 2, None),
        ("time-slicing", 3, "amd.com/gpu"),
    ]


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ({"flags_migStrategy": "mixed"}, "flags.migStrategy"),
        ({"resources_mig": [{"pattern": "1g.*", "name": "small"}]}, "resources.mig"),
        ({"sharing_mps": {"resources": [{"name": "gpu", "replicas": 2}]}}, "sharing.mps"),
        ({"imex_channelIDs": [0]}, "imex"),
        ({"agent_mig_onDemand": ["*"]}, "agent.mig.onDemand"),
        ({"agent_mig_config": "all-1g"}, "agent.mig.config"),
        ({"agent_frontDoors_computeDomains": True}, "agent.frontDoors.computeDomains"),
        ({"agent_gpuOperator_waitFor": ["driver"]}, "agent.gpuOperator.waitFor"),
        ({"flags_plugin_deviceListStrategy": "envvar"}, "flags.plugin.deviceListStrategy"),
        ({"flags_plugin_deviceListStrategy": ["cdi-cri", "volume-mounts"]}, "flags.plugin.deviceListStrategy"),
        ({"agent_sharing_rules": [{"replicas": 1, "strategy": "mps"}]}, "agent.sharing.rules[0].strategy"),
        ({"agent_sharing_rules": [{"replicas": 2, "timeSlice": "Long"}]}, "agent.sharing.rules[0].timeSlice"),
    ],
)
def test_what_only_nvidias_gpus_can_do_is_refused_by_its_key_and_fine_on_them(
    flags: dict[str, object], key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        amd(**flags)
    assert f"{key}: AMD's GPUs cannot do that: leave the key out, or see agent.vendor" in str(refused.value)
    assert settings(**flags).vendor == NVIDIA


def test_what_manifests_say_of_mig_in_any_case_is_no_mistake_and_no_layout_is_followed() -> None:
    assert amd(agent_mig_layouts="always").mig_layouts == "never"
    assert settings().mig_layouts == "auto"


def test_a_file_is_checked_for_the_vendor_that_it_names() -> None:
    mig = "flags:\n  migStrategy: mixed\n"
    assert check(f"version: v1\n{mig}", "f") == []
    assert [one.partition(":")[0] for one in check(f"version: v1\nagent:\n  vendor: amd\n{mig}", "f")] == [
        "flags.migStrategy"
    ]
