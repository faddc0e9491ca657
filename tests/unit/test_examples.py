"""The shipped examples as they are written; `tests/node/test_examples.py` holds them to it on a real node."""

import re
from dataclasses import fields
from typing import Any

import pytest
import yaml

from node_agent.config.resolve import check
from tests.node import examples, installed
from tests.node.rig.kustomized import DEPLOY


@pytest.mark.parametrize("name", examples.names())
def test_an_example_says_of_each_pod_what_becomes_of_it(name: str) -> None:
    example = examples.example(name)
    named = {pod["metadata"]["name"] for pod in examples.pods(example)}
    assert {who.partition("/")[0] for who in example.expected} == named
    nothing = examples.Outcome()
    assert all(outcome != nothing for outcome in example.expected.values())


@pytest.mark.parametrize("name", examples.names())
def test_the_configuration_in_an_example_is_one_that_the_agent_takes(name: str) -> None:
    assert check(yaml.safe_dump(examples.example(name).settings), name) == []


@pytest.mark.parametrize("name", examples.names())
def test_what_an_example_asks_of_others_is_named_among_its_own(name: str) -> None:
    """A container that is compared with another that nobody looks at would be compared with nothing."""
    expected = examples.example(name).expected
    others = [one for outcome in expected.values() for one in (outcome.same_as, outcome.apart_from) if one]
    assert set(others) <= set(expected)


def test_an_example_with_a_fact_that_nobody_checks_is_refused() -> None:
    with pytest.raises(TypeError, match="gpu_count"):
        examples.outcome({"gpu-count": 2})
    assert "gpus" in {one.name for one in fields(examples.Outcome)}


@pytest.mark.parametrize("name", ["limits", "claims", "gang"])
def test_an_example_for_kueue_says_of_each_job_what_becomes_of_it(name: str) -> None:
    example = examples.example(f"kueue/{name}")
    jobs = [one for one in example.objects if one["kind"] == "Job"]
    assert set(example.expected) == {job["metadata"]["name"] for job in jobs}
    queues = {one["metadata"]["name"] for one in kueue("queue") if one["kind"] == "LocalQueue"}
    assert {job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for job in jobs} == queues


@pytest.mark.parametrize("name", ["claims", "shared"])
def test_an_example_of_a_gang_has_all_its_pods_in_a_group_that_wants_all_of_them(name: str) -> None:
    example = examples.example(f"gang/{name}")
    (group,) = (one for one in example.objects if one["kind"] == "PodGroup")
    workers = examples.pods(example)
    assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in workers} == {group["metadata"]["name"]}
    assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == len(workers) == len(example.expected)


def test_the_kinds_of_gpu_in_the_queue_go_by_labels_that_the_agent_writes() -> None:
    labels = {one["metadata"]["name"]: one["spec"]["nodeLabels"] for one in kueue("queue") if "Flavor" in one["kind"]}
    for flavor, chosen in labels.items():
        written = (DEPLOY.parent / "tests" / "golden" / "labels" / f"{flavor}-8.txt").read_text().splitlines()
        assert {f"{key}={value}" for key, value in chosen.items()} <= set(written)


def test_kueue_is_told_of_a_class_that_is_shipped_and_counts_it_as_its_limits() -> None:
    classes = yaml.safe_load_all((DEPLOY / "daemonset/components/claims/deviceclasses.yaml").read_text())
    shipped = {one["metadata"]["name"]: one["spec"].get("extendedResourceName") for one in classes}
    (settings,) = kueue("settings")
    (mapping,) = settings["resources"]["deviceClassMappings"]
    assert {shipped[name] for name in mapping["deviceClassNames"]} == {mapping["name"]}


def kueue(name: str) -> list[Any]:
    return list(yaml.safe_load_all((examples.EXAMPLES / "kueue" / f"{name}.yaml").read_text()))


def test_the_page_of_examples_has_all_of_them() -> None:
    page = (DEPLOY.parent / "docs" / "user" / "examples.md").read_text()
    assert sorted(re.findall(r"^\| `([a-z-]+)\.yaml`", page, flags=re.M)) == examples.names()


def test_the_agents_of_the_node_suite_get_their_configuration_as_the_documents_say() -> None:
    page = (DEPLOY.parent / "docs" / "user" / "configuration.md").read_text()
    (documented,) = re.findall(r"```yaml\n(apiVersion: apps/v1\nkind: DaemonSet\n.*?)```", page, flags=re.S)
    used = installed.choice_of("h200-8", installed.FOLDER)["spec"]
    (container,) = used["template"]["spec"]["containers"]
    container["env"] = [one for one in container["env"] if one["name"] != "NODE_AGENT_SIMULATE"]
    assert yaml.safe_load(documented)["spec"] == used
