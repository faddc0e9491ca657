"""Beside HAMi v2.10.0 and Volcano's vGPU plugin v1.12.0, which have device plugins of their own.

What they give out stands in annotations of the Node: HAMi writes JSON, its earlier releases and Volcano's plugin text.
"""

import json
from pathlib import Path

import pytest

from node_agent.cdi.roots import DriverRoots
from node_agent.config.resolve import resolve
from node_agent.doctor.finding import Finding, Result
from node_agent.doctor.neighbours import offers_plain_gpus, registered
from node_agent.doctor.owners import node_labels
from node_agent.doctor.place import Place
from node_agent.kube.resources import Object
from tests.contract.published import published
from tests.fakes.nodes import inventory_of

UUIDS = {int(gpu.name.removeprefix("gpu-")): gpu.uuid for gpu in inventory_of("h200-8").gpus}
HAMI, VOLCANO = "hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register"


def as_json(*numbers: int) -> str:
    """As HAMi has it now."""
    return json.dumps(
        [
            {
                "id": UUIDS[number],
                "index": number,
                "count": 10,
                "devmem": 143771,
                "devcore": 100,
                "type": "NVIDIA H200",
                "numa": 0,
                "mode": "hami-core",
                "health": True,
            }
            for number in numbers
        ]
    )


def as_text(*numbers: int) -> str:
    """As earlier releases have it."""
    return "".join(f"{UUIDS[number]},10,143771,100,NVIDIA-H200,0,true:" for number in numbers)


def of_volcano(*numbers: int) -> str:
    return "".join(f"{UUIDS[number]},10,143771,NVIDIA-H200,true,hami-core:" for number in numbers)


def place(**flags: object) -> Place:
    settings = resolve(None, {}, {key.replace("_", "."): value for key, value in flags.items()}).settings
    roots = DriverRoots(driver=Path("/"), dev=Path("/"))
    return Place(settings=settings, roots=roots, stat=Path.stat, inventory=inventory_of("h200-8"))


def of(annotation: str, value: str, **flags: object) -> Finding:
    """The one thing that the doctor says."""
    node: Object = {"metadata": {"annotations": {annotation: value}}}
    (found,) = registered(node, place(**flags))
    return found


@pytest.mark.parametrize(
    ("annotation", "value", "system"),
    [(HAMI, as_json(6, 7), "HAMi"), (HAMI, as_text(6, 7), "HAMi"), (VOLCANO, of_volcano(6, 7), "Volcano's vGPU")],
)
def test_gpus_that_both_give_out_are_named_until_they_are_left_to_the_other(
    annotation: str, value: str, system: str
) -> None:
    found = of(annotation, value)
    assert found.result is Result.FAILED
    assert found.what == f"{system}'s device plugin gives out gpu-6, gpu-7 too"
    assert found.where == f"annotation {annotation}"
    assert of(annotation, value, agent_devices_exclude=["gpu-7"]).what.endswith("gives out gpu-6 too")
    assert of(annotation, value, agent_devices_exclude=["gpu-6", UUIDS[7]]).result is Result.OK


def test_an_agent_that_offers_nothing_is_in_nobodys_way() -> None:
    neither = {"agent_frontDoors_devicePlugin": False, "agent_frontDoors_dra": False}
    assert of(HAMI, as_json(0, 1), **neither).result is Result.OK
    by_claims = of(HAMI, as_json(0, 1), agent_frontDoors_devicePlugin=False)
    assert by_claims.result is Result.FAILED


def test_a_node_without_such_a_plugin_is_said_to_be_so() -> None:
    (found,) = registered({"metadata": {}}, place())
    assert found.result is Result.OK


@pytest.mark.parametrize(
    ("flags", "conflict"),
    [
        ({}, True),
        ({"agent_devices_exclude": ["gpu-6", "gpu-7"]}, True),
        ({"agent_devices_exclude": ["*"]}, False),
        ({"agent_frontDoors_devicePlugin": False}, False),
        ({"resources_gpus": [{"pattern": "*", "name": "whole-gpu"}]}, False),
    ],
)
def test_its_label_is_a_warning_as_long_as_both_may_serve_one_resource(
    flags: dict[str, object], conflict: bool
) -> None:
    """Of two plugins for one resource the kubelet takes whoever registered last."""
    (found,) = node_labels({"metadata": {"labels": {"gpu": "on"}}}, place(**flags))
    assert found.result is (Result.WARNING if conflict else Result.OK)
    assert offers_plain_gpus(place(**flags)) is conflict


def test_on_a_node_that_is_all_its_own_the_labels_describe_the_hardware() -> None:
    """Whether the front doors are closed or every GPU is left out: other tools still want product, memory and count."""
    closed = published(agent_frontDoors_devicePlugin=False, agent_frontDoors_dra=False)
    left = published(agent_devices_exclude=["*"])
    assert closed.labels == left.labels == published().labels
    assert not closed.allocatable and not closed.devices
    assert not left.allocatable and not left.devices
