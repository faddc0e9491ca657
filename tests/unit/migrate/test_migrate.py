"""NVIDIA's values in; configurations that the agent loads, its DaemonSet and the list of the rest out."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from node_agent.config.resolve import check
from node_agent.errors import ConfigError
from node_agent.migrate.compose import Migration, compose
from node_agent.migrate.documents import pieces
from node_agent.migrate.overlay import daemonset, files
from tests.unit.migrate.samples import DCGM_EXPORTER, DEVICE_PLUGIN, DRA_DRIVER, GPU_OPERATOR, SAMPLES

MANIFESTS = Path(__file__).parents[3] / "deploy" / "daemonset"


def migrated(*texts: str, chart: str | None = None) -> Migration:
    return compose(piece for text in texts for piece in pieces(text.encode(), chart))


def only(found: Migration) -> Any:
    """The values of the only configuration."""
    (text,) = found.configurations.values()
    return yaml.safe_load(text)


def fates(found: Migration) -> dict[str, str]:
    return {one.path: one.fate for one in found.findings}


@pytest.mark.parametrize("name", SAMPLES)
def test_whole_values_are_recognised_have_no_unknown_key_and_make_configurations_that_load(name: str) -> None:
    found = migrated(SAMPLES[name])
    assert [one for one in found.findings if one.fate == "unknown"] == []
    assert found == migrated(SAMPLES[name], chart=name)
    for title, text in found.configurations.items():
        assert check(text, title) == []


@given(st.data())
def test_any_part_of_values_makes_configurations_that_load(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SAMPLES)))
    whole = yaml.safe_load(SAMPLES[name])
    keys = data.draw(st.sets(st.sampled_from(sorted(whole)), min_size=1))
    found = migrated(yaml.safe_dump({key: whole[key] for key in keys}), chart=name)
    assert all(check(text, title) == [] for title, text in found.configurations.items())


def test_the_device_plugins_values_lie_over_its_named_configurations() -> None:
    found = migrated(DEVICE_PLUGIN)
    assert list(found.configurations) == ["default", "shared"]
    for text in found.configurations.values():
        values = yaml.safe_load(text)
        assert values["flags"]["migStrategy"] == "mixed"
        assert values["flags"]["plugin"]["deviceListStrategy"] == ["volume-mounts"]
        assert values["flags"]["plugin"]["nvidiaCTKPath"] == "/usr/bin/nvidia-cdi-hook"
        assert values["agent"]["labels"] == {"writer": "none"}
        assert 79 in values["agent"]["health"]["ignoredXids"]
    assert yaml.safe_load(found.configurations["shared"])["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 4


def test_what_has_no_equal_is_not_needed_or_to_be_decided_is_told_and_what_is_off_is_not() -> None:
    found = fates(migrated(DEVICE_PLUGIN))
    assert found["gdrcopyEnabled"] == "no equal"
    assert found["tolerations"] == found["compatWithCPUManager"] == "not needed"
    assert found["imagePullSecrets"] == "to decide"
    assert found["nfd"] == "stays"
    assert found["nodeSelector"] == "manifest"
    assert found["migStrategy"] == "configuration"
    assert not found.keys() & {"gdsEnabled", "mofedEnabled", "mps.root", "gfd.sleepInterval"}


def test_where_pods_run_becomes_a_part_of_the_daemonset() -> None:
    template = daemonset(migrated(DEVICE_PLUGIN))["spec"]["template"]
    spec = template["spec"]
    assert template["metadata"] == {"annotations": {"team": "ml"}}
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert "nodeAffinity" in spec["affinity"]
    assert {"name": "driver-root", "hostPath": {"path": "/run/nvidia/driver"}} in spec["volumes"]
    (container,) = spec["containers"]
    assert {"name": "DEFAULT_CONFIG", "value": "default"} in container["env"]
    assert {"name": "FALLBACK_STRATEGIES", "value": "named,single"} in container["env"]
    assert container["args"][-1] == "--config-dir=/configs"


def test_the_operators_values_give_layouts_mps_monitoring_and_its_own_driver() -> None:
    found = migrated(GPU_OPERATOR)
    values = only(found)
    assert values["flags"]["migStrategy"] == "single"
    assert values["flags"]["nvidiaDriverRoot"] == "/run/nvidia/driver"
    assert values["agent"]["gpuOperator"] == {"waitFor": ["driver"]}
    assert values["agent"]["mig"] == {"config": "all-disabled", "configFile": "/layouts/config.yaml"}
    assert found.layouts is not None
    assert "halves" in found.layouts
    assert found.mps
    assert found.monitoring
    mounts = daemonset(found)["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {one["mountPath"] for one in mounts} == {"/configs", "/layouts", "/run/nvidia/validations"}


def test_a_metric_that_the_agent_lacks_is_named_and_the_newer_names_switch_to_these() -> None:
    found = migrated(GPU_OPERATOR)
    assert [one.path for one in found.findings if "[DCGM_" in one.path] == [
        "dcgmExporter.config.data[DCGM_FI_DEV_NOBODY_HAS_THIS]"
    ]
    assert "metrics" not in only(found)["agent"]
    assert only(migrated(DCGM_EXPORTER))["agent"]["metrics"] == {"names": "current"}


def test_a_component_that_the_operator_has_switched_off_says_nothing_but_that() -> None:
    found = migrated("{migManager: {enabled: false, config: {default: all-disabled}}, gfd: {enabled: false, env: 3}}")
    assert only(found)["agent"] == {"mig": {"layouts": "never"}, "labels": {"writer": "none"}}
    assert set(fates(found)) == {"migManager.enabled", "gfd.enabled"}


def test_a_driver_on_the_host_is_no_driver_of_the_operator() -> None:
    found = migrated(
        "{driver: {enabled: false}, hostPaths: {driverInstallDir: /run/nvidia/driver}, mig: {strategy: none}}"
    )
    assert only(found) == {"version": "v1", "flags": {"migStrategy": "none"}}


def test_a_cluster_policy_is_read_like_the_operators_values() -> None:
    spec = yaml.safe_load(GPU_OPERATOR)
    policy = yaml.safe_dump(
        {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": spec, "status": {}}, sort_keys=False
    )
    found = migrated(policy)
    assert found.configurations == migrated(GPU_OPERATOR).configurations
    assert fates(found)["spec.toolkit"] == "stays"


def test_a_section_that_is_off_or_has_only_empty_parts_is_not_told_although_it_has_no_equal() -> None:
    told = fates(migrated(DCGM_EXPORTER))
    assert told["kubernetes.enablePodLabels"] == "no equal"
    assert not told.keys() & {"tlsServerConfig", "basicAuth"}
    on = fates(migrated("{tlsServerConfig: {enabled: true}, basicAuth: {users: {me: secret}}}"))
    assert on == {"tlsServerConfig": "no equal", "basicAuth": "no equal"}


def test_the_dra_drivers_values_share_devices_and_cut_on_demand() -> None:
    found = migrated(DRA_DRIVER)
    assert only(found)["agent"] == {"devices": {"shareable": ["*"]}, "mig": {"onDemand": ["*"]}}
    assert fates(found)["featureGates.PassthroughSupport"] == "no equal"
    assert fates(found)["resources.computeDomains.enabled"] == "no equal"
    assert "featureGates.MPSSupport" not in fates(found)
    off = migrated("{resources: {gpus: {enabled: false}}, consumableShares: '4'}", chart="dra-driver")
    assert only(off)["agent"] == {"frontDoors": {"dra": False}, "devices": {"shareable": ["*"]}}
    assert [one.fate for one in off.findings if one.path == "consumableShares"] == ["configuration", "to decide"]


CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: gpu}
data:
  default: "version: v1"
  config.yaml: "{version: v1, mig-configs: {off: [{devices: all, mig-enabled: false}]}}"
  metrics: "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature."
  note: just words
"""


def test_the_entries_of_a_config_map_are_told_by_what_they_hold() -> None:
    found = migrated(CONFIG_MAP)
    assert list(found.configurations) == ["default"]
    assert found.layouts is not None
    assert fates(found) == {"data.metrics": "not needed", "data.note": "unknown"}


def test_an_entry_by_itself_is_taken_as_the_only_configuration_or_as_layouts() -> None:
    assert only(migrated("version: v1\nflags: {migStrategy: single}")) == {
        "version": "v1",
        "flags": {"migStrategy": "single"},
    }
    layouts = "version: v1\nmig-configs: {off: [{devices: all, mig-enabled: false}]}\n"
    assert migrated(layouts).layouts == layouts


IGNORED = """
version: v1
flags: {migStrategie: none}
resources: {gpus: [{pattern: "*", name: nvidia.com/big}]}
sharing:
  timeSlicing:
    resources: [{name: gpu, replicas: 2, rename: gpu.two, devices: [0]}]
"""


def test_what_nvidias_programs_ignore_is_left_out_and_told_since_the_agent_would_do_it() -> None:
    found = migrated(IGNORED)
    assert only(found)["sharing"]["timeSlicing"]["resources"] == [{"name": "gpu", "replicas": 2}]
    assert "resources" not in only(found)
    below = "default: sharing.timeSlicing.resources[]"
    assert fates(found) == {
        "default: flags.migStrategie": "unknown",
        "default: resources": "to decide",
        f"{below}.rename": "to decide",
        f"{below}.devices": "to decide",
    }


def test_a_price_that_a_configuration_has_is_told_as_the_agent_tells_it() -> None:
    found = migrated("deviceListStrategy: envvar")
    assert fates(found) == {
        "deviceListStrategy": "configuration",
        "default: flags.plugin.deviceListStrategy": "to decide",
    }


def test_files_that_disagree_are_told_and_the_last_one_holds() -> None:
    found = migrated(
        "{deviceIDStrategy: uuid, nodeSelector: {pool: a, x: y}}", "{deviceIDStrategy: index, nodeSelector: {pool: b}}"
    )
    assert only(found)["flags"]["plugin"]["deviceIDStrategy"] == "index"
    assert found.template["spec.nodeSelector"] == {"pool": "b", "x": "y"}
    assert {path for path, fate in fates(found).items() if fate == "to decide"} >= {
        "flags.plugin.deviceIDStrategy",
        "pool",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "no valid YAML"),
        ("", "expected Helm values"),
        ("- 1", "expected Helm values"),
        ("kind: Secret", "kind: expected ConfigMap or ClusterPolicy; got Secret"),
        ("nodeSelector: {a: b}", "say which with --chart"),
        ("whatever: 1", "any known chart"),
        ("migStrategy: double", "flags.migStrategy: expected none, single or mixed"),
        ("{migStrategy: none, config: {map: {a: 'b: ['}}}", "config.map.a: no valid YAML"),
        ("{migStrategy: none, config: {map: {../a: 'version: v1'}}}", "expected the key of a ConfigMap"),
        ("{mig: {}, devicePlugin: {env: 3}, gfd: {}}", "devicePlugin.env: expected a list of variables"),
        ("{version: v1, mig-configs: {}}", "MIG layouts: mig-configs: expected a section"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_says_where_and_what_would_be_right(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        migrated(text)
    assert words in str(caught.value)


def test_the_overlay_has_every_configuration_and_stands_on_the_manifests_that_it_needs() -> None:
    found = files(migrated(GPU_OPERATOR), "../deploy")
    assert set(found) == {"kustomization.yaml", "daemonset.yaml", "configs/shared", "layouts/config.yaml"}
    kustomization = yaml.safe_load(found["kustomization.yaml"])
    assert kustomization["resources"] == ["../deploy/daemonset"]
    parts = [name.removeprefix("../deploy/daemonset/components/") for name in kustomization["components"]]
    assert parts == ["configs", "mig", "mps", "metrics"]
    assert all((MANIFESTS / "components" / name / "kustomization.yaml").exists() for name in parts)
    named = [name for one in kustomization["configMapGenerator"] for name in one["files"]]
    assert {*named, "kustomization.yaml", "daemonset.yaml"} == set(found)
    other = yaml.safe_load(files(migrated(DRA_DRIVER), "x")["kustomization.yaml"])["components"]
    assert other == [f"x/daemonset/components/{name}" for name in ("configs", "mig", "privileged")]


@pytest.mark.parametrize(
    ("values", "components"),
    [
        ("{migStrategy: mixed, runtimeClassName: nvidia}", ["configs", "mig"]),
        ("{migStrategy: none, runtimeClassName: nvidia}", ["configs"]),
        ("{migStrategy: none, runtimeClassName: ''}", ["configs", "privileged"]),
    ],
)
def test_the_overlay_asks_for_no_right_that_nothing_needs(values: str, components: list[str]) -> None:
    found = yaml.safe_load(files(migrated(values, chart="nvidia-device-plugin"), ".")["kustomization.yaml"])
    assert found["components"] == [f"./daemonset/components/{name}" for name in components]
