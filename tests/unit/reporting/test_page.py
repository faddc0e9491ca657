"""The page: what it shows, that it escapes everything, its drawing of the links, and how it is served."""

import asyncio
import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from node_agent.kit.http import Response, serving
from node_agent.kit.http_client import get
from node_agent.kit.latest import Latest
from node_agent.model.inventory import Inventory
from node_agent.reporting.health import CauseStatus, GpuHealth, HealthDocument, MissingStatus
from node_agent.reporting.html import Html, joined, tag
from node_agent.reporting.overview import GpuUse, HoldingStatus, Overview, PartitionUse, PodUse, overview
from node_agent.reporting.page import Setting, Shown, page
from node_agent.reporting.page_graph import link_graph, link_words
from node_agent.reporting.page_routes import Page
from node_agent.reporting.page_style import HEADERS, STYLE
from node_agent.reporting.parts import ClaimsStatus, PartState, PartStatus, ResourceStatus
from node_agent.reporting.status import LayoutStatus, Status
from tests.fakes import builders
from tests.fakes.health import Ward, xid

EVIL = '<script>alert("x")</script>&"\''
STATUS = Status(version="1.2.3", node="node-a", started=0.0, phase="ready", driver="580.95.05", cuda="13.0")
GPU = GpuUse(
    name="gpu-0",
    uuid="GPU-0",
    product="NVIDIA H200",
    pci="0000:1b:00.0",
    health="withdrawn",
    numa_node=1,
    causes=(CauseStatus(reason="xid", severity="withdrawn", message="Xid 79", since=1.0, code=79),),
    at=95.0,
    memory=140 << 30,
    memory_used=35 << 30,
    utilization=0.83,
    temperature=62,
    power=594.4,
    power_limit=700,
    partitions=(PartitionUse(uuid="MIG-1", profile="3g.71gb", start=0, length=4, memory=76 << 30),),
)
POD = PodUse(namespace="ml", pod="trainer", container="main")


def text_of(
    *,
    status: Status = STATUS,
    found: Overview | None = None,
    health: HealthDocument | None = None,
    inventory: Inventory | None = None,
    settings: tuple[Setting, ...] = (),
    refresh: int = 10,
) -> str:
    return page(
        Shown(
            status=status,
            overview=found or Overview(node="node-a"),
            health=health or HealthDocument(node="node-a"),
            inventory=inventory or Inventory(),
            settings=settings,
            now=100.0,
            refresh=refresh,
        )
    )


def seen(text: str) -> str:
    """What a person reads of it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>", "", text, flags=re.S)))


# What it shows


def test_the_head_says_the_node_its_phase_its_versions_and_when() -> None:
    text = seen(text_of())
    assert "node-a: GPUs" in text
    assert "node-a ready" in text.replace("  ", " ")
    assert "node-agent 1.2.3, driver 580.95.05, CUDA 13.0. As of 1970-01-01 00:01:40 UTC" in text


def test_a_gpu_has_its_use_its_health_and_why() -> None:
    text = seen(text_of(found=Overview(node="n", gpus=(GPU,))))
    for part in ("gpu-0", "GPU-0", "NVIDIA H200", "withdrawn", "Xid 79", "83%", "35.0 of 140 GiB", "62 °C", "5 s ago"):
        assert part in text
    assert "594 of 700 W" in text


def test_what_a_gpu_does_not_tell_is_marked_and_never_zero() -> None:
    bare = GpuUse(name="gpu-9", uuid="GPU-9", product="GB10", pci="0000:01:00.0", health="healthy")
    text = text_of(found=Overview(node="n", gpus=(bare,)))
    assert "<meter" not in text
    assert seen(text).count("?") == 4
    assert "not yet" in seen(text)


def test_mig_devices_have_a_table_of_their_own() -> None:
    text = seen(text_of(found=Overview(node="n", gpus=(GPU,))))
    assert "MIG devices" in text
    assert "3g.71gb 0 to 3 76 GiB MIG-1" in text.replace("  ", " ")
    assert "MIG devices" not in seen(text_of())


def test_what_one_pod_has_is_one_row_with_all_its_devices() -> None:
    def held(gpu: str, **more: str) -> HoldingStatus:
        return HoldingStatus(
            door="limit", holder="nvidia.com/gpu", device=gpu, gpus=(gpu,), pods=(POD,), part=more.get("part", "")
        )

    group = HoldingStatus(door="claim", holder="ml/pair", device="pair-0", gpus=("gpu-4", "gpu-5"))
    holdings = (held("gpu-0"), held("gpu-1", part="1g.18gb at 2"), group)
    text = seen(text_of(found=Overview(node="n", holdings=holdings)))
    assert "ml/trainer (main) gpu-0, gpu-1 (1g.18gb at 2) limit nvidia.com/gpu" in text.replace("  ", " ")
    assert "the kubelet tells of no pod yet gpu-4 + gpu-5 claim ml/pair" in text.replace("  ", " ")


def test_a_node_where_nobody_holds_anything_and_nothing_is_wrong_says_so() -> None:
    text = seen(text_of())
    assert "Nobody holds a device." in text
    assert "No GPU has an open cause" in text
    assert "Not ready" not in text


def test_trouble_causes_xids_and_missing_gpus_are_all_there() -> None:
    cause = CauseStatus(reason="nvlink", severity="degraded", message="a link is down", since=50.0, peers=("GPU-1",))
    health = HealthDocument(
        node="n",
        gpus=(GpuHealth(name="gpu-0", uuid="GPU-0", health="degraded", causes=(cause,), xids={"79": 2}),),
        missing=(MissingStatus(index=3, reason="off the bus"),),
    )
    text = seen(text_of(status=msgspec.structs.replace(STATUS, trouble=("no kubelet",)), health=health))
    for part in (
        "Not ready",
        "no kubelet",
        "a link is down",
        "links to GPU-1 only",
        "Xid 79 (2 ×)",
        "index 3 is missing",
    ):
        assert part in text


def test_resources_claims_parts_and_settings_are_all_there() -> None:
    resource = ResourceStatus(
        name="nvidia.com/gpu", phase="registered", detail="", registrations=1, devices=8, healthy=7, withheld=("waits",)
    )
    claims = ClaimsStatus(driver="gpu.nvidia.com", phase="registered", slices=2, devices=8)
    part = PartStatus(name="mps", state=PartState.DEGRADED, reason="DaemonsNotServing", messages=("dead",), since=40.0)
    status = msgspec.structs.replace(STATUS, resources=(resource,), claims=claims, parts=(part,))
    settings = (Setting(key="a.b", value="1", source="default"), Setting(key="c.d", value="x", source="/config.yaml"))
    text = seen(text_of(status=status, settings=settings)).replace("  ", " ")
    for words in (
        "7 of 8 healthy",
        "waits",
        "8 devices in 2 slices",
        "DaemonsNotServing dead 1 min",
        "1 set, 1 by default",
    ):
        assert words in text
    assert text.index("c.d") < text.index("a.b")


def test_a_mig_layout_that_waits_says_for_what() -> None:
    layout = LayoutStatus(name="all-balanced", source="the node's label", phase="pending", reasons=("gpu-0: in use",))
    text = seen(text_of(status=msgspec.structs.replace(STATUS, layout=layout))).replace("  ", " ")
    assert "MIG layout all-balanced asked for by the node&#x27;s label pending gpu-0: in use" in text


# Escaping


def test_nothing_from_elsewhere_becomes_an_element() -> None:
    gpu = msgspec.structs.replace(
        GPU, name=EVIL, product=EVIL, causes=(msgspec.structs.replace(GPU.causes[0], message=EVIL),)
    )
    pod = PodUse(namespace=EVIL, pod=EVIL, container=EVIL)
    held = HoldingStatus(door=EVIL, holder=EVIL, device=EVIL, gpus=(EVIL,), part=EVIL, share=EVIL, pods=(pod,))
    health = HealthDocument(
        node=EVIL,
        gpus=(GpuHealth(name=EVIL, uuid=EVIL, health=EVIL, causes=gpu.causes, xids={EVIL: 1}),),
        missing=(MissingStatus(index=0, reason=EVIL, uuid=EVIL),),
    )
    text = text_of(
        status=msgspec.structs.replace(STATUS, node=EVIL, version=EVIL, phase=EVIL, trouble=(EVIL,)),
        found=Overview(node=EVIL, gpus=(gpu,), holdings=(held,)),
        health=health,
        inventory=builders.l4_pair(),
        settings=(Setting(key=EVIL, value=EVIL, source=EVIL),),
    )
    assert "<script" not in text
    assert 'alert("x")' not in text
    assert text.count("&lt;script&gt;") > 15


def test_an_element_escapes_its_text_and_its_attributes_and_takes_html_as_it_is() -> None:
    assert tag("p", "a < b", title='"') == '<p title="&quot;">a &lt; b</p>'
    assert (
        tag("p", tag("b", "x"), None, class_="y", aria_label="z", lang=None)
        == '<p class="y" aria-label="z"><b>x</b></p>'
    )
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8"/>'
    assert joined("<", Html("<i></i>"), None) == "&lt;<i></i>"


# The drawing


def drawn(inventory: Inventory) -> ET.Element:
    gpus = overview(node="n", inventory=inventory, health=Ward().report.value, looks={}, holdings=()).gpus
    return ET.fromstring(
        link_graph(inventory, {one.name: one.island for one in gpus}, {one.name: one.health for one in gpus})
    )


def texts(drawing: ET.Element) -> list[str]:
    return [one.text or "" for one in drawing.iter("text")]


@pytest.mark.parametrize(
    ("node", "numa", "words"),
    [
        (builders.h200_node(), ["NUMA 0", "NUMA 1"], ["NV18"]),
        (builders.bridged_node(), ["NUMA 0", "NUMA 1"], ["NV12", "NV12"]),
        (builders.l4_pair(), ["NUMA 0"], []),
        (builders.lopsided_node(), ["NUMA 0", "NUMA 1", "NUMA 2", "NUMA 3"], ["NV18"]),
    ],
)
def test_the_drawing_has_each_numa_node_each_gpu_and_each_line(
    node: Inventory, numa: list[str], words: list[str]
) -> None:
    found = texts(drawn(node))
    assert [text for text in found if text.startswith("NUMA")] == numa
    assert [text for text in found if text.startswith("NV")] == words
    assert {gpu.name for gpu in node.gpus} <= set(found)


def test_a_cube_mesh_has_a_line_for_each_of_its_links_and_no_two_lie_upon_each_other() -> None:
    node = builders.cube_mesh()
    drawing = drawn(node)
    groups = [group for group in drawing.iter("g") if group.get("class") in ("strong", "light")]
    assert len(groups) == len(builders.CUBE_MESH)
    spans = []
    for group in groups:
        (line,) = [one for one in group.findall("line") if one.get("class") != "rail"]
        spans.append((line.get("y1"), int(line.get("x1") or 0), int(line.get("x2") or 0)))
    for y, first, last in spans:
        others = [one for one in spans if one[0] == y and one != (y, first, last)]
        assert all(last < begin or end < first for _, begin, end in others)


def test_gpus_of_different_islands_and_sick_ones_look_different() -> None:
    node = builders.bridged_node()
    drawing = ET.fromstring(link_graph(node, {"gpu-0": 1, "gpu-2": 2}, {"gpu-0": "healthy", "gpu-2": "withdrawn"}))
    classes = {group.get("class") for group in drawing.iter("g")}
    assert {"healthy island-1", "withdrawn island-2"} <= classes


def test_everything_drawn_lies_within_the_picture() -> None:
    for node in (builders.cube_mesh(), builders.lopsided_node(), builders.pcie_node()):
        drawing = drawn(node)
        width, height = int(drawing.get("width") or 0), int(drawing.get("height") or 0)
        for one in drawing.iter():
            assert all(0 <= int(one.get(name) or 0) <= width for name in ("x", "x1", "x2", "cx"))
            assert all(0 <= int(one.get(name) or 0) <= height for name in ("y", "y1", "y2", "cy"))


def test_the_drawing_is_said_in_words_as_well() -> None:
    assert link_words(builders.bridged_node()) == [
        "NV12: NVLink: 12 NVLinks, 300 GB/s each way: gpu-0 gpu-1; gpu-2 gpu-3"
    ]
    text = seen(text_of(found=Overview(node="n", gpus=(GPU,)), inventory=builders.l4_pair()))
    assert "no NVLink and no common PCIe switch joins any two GPUs" in text


# How it is served


@pytest.fixture
async def socket() -> AsyncIterator[Path]:
    ward = Ward()
    ward.ail(0, xid())

    async def shown() -> Overview:
        return overview(node="n0", inventory=ward.inventory.value, health=ward.report.value, looks={}, holdings=())

    routes = Page(
        overview=shown, status=lambda: STATUS, health=ward.view, inventory=ward.inventory, settings=tuple
    ).routes
    with TemporaryDirectory(prefix="page-", dir="/tmp") as folder:
        async with serving(routes, Path(folder) / "s"):
            yield Path(folder) / "s"


async def ask(socket: Path, path: str) -> tuple[int, str]:
    code, body = await asyncio.to_thread(get, socket, path)
    return code, body.decode()


async def test_the_page_and_its_document_are_served(socket: Path) -> None:
    code, text = await ask(socket, "/")
    assert (code, text.startswith("<!DOCTYPE html>")) == (200, True)
    assert "Xid 79" in seen(text)
    code, body = await ask(socket, "/overview")
    assert [gpu.health for gpu in msgspec.json.decode(body, type=Overview).gpus] == ["withdrawn", "healthy"]


@pytest.mark.parametrize(
    ("query", "content"),
    [("", "10"), ("?refresh=30", "30"), ("?refresh=99999", "3600"), ("?refresh=x", "10"), ("?refresh=-1", "10")],
)
async def test_how_often_it_is_asked_for_again_may_be_said(socket: Path, query: str, content: str) -> None:
    assert f'<meta http-equiv="refresh" content="{content}"/>' in (await ask(socket, f"/{query}"))[1]


async def test_it_need_not_be_asked_for_again(socket: Path) -> None:
    assert "http-equiv" not in (await ask(socket, "/?refresh=0"))[1]


async def test_nothing_can_be_changed_by_it(socket: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 405")


async def test_its_policy_allows_its_own_style_and_nothing_else(socket: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    (style,) = re.findall(r"<style>(.*?)</style>", body, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:;" in head
    assert "x-content-type-options: nosniff" in head
    assert not re.search(r"""<script|<form|<iframe|style=|\son\w+=|(src|href)="https?:""", body)


def test_an_answer_has_the_headers_that_it_is_given() -> None:
    assert Response(headers=HEADERS).headers == HEADERS
    assert "</" not in STYLE


async def test_a_page_of_a_node_that_was_not_looked_at_yet_is_a_page() -> None:
    view = Ward(gpus=0).view

    async def nothing() -> Overview:
        return Overview(node="")

    bare = Page(
        overview=nothing,
        status=lambda: Status(version="1", node="", started=0.0),
        health=view,
        inventory=Latest(Inventory()),
        settings=tuple,
    )
    with TemporaryDirectory(prefix="page-", dir="/tmp") as folder:
        async with serving(bare.routes, Path(folder) / "s"):
            assert "this node" in seen((await ask(Path(folder) / "s", "/"))[1])
