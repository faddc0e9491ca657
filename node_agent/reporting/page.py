"""The page: what the agent knows, for a browser. Pure, without script, and nothing on it is from elsewhere.

``overview`` has what it shows of GPUs and pods, ``page_graph`` draws the links, ``page_style`` is how it looks, and
``page_routes`` serves it.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from node_agent.model.inventory import Inventory
from node_agent.reporting.health import CauseStatus, HealthDocument
from node_agent.reporting.html import Html, joined, tag
from node_agent.reporting.overview import GpuUse, HoldingStatus, Overview, PartitionUse
from node_agent.reporting.page_graph import link_graph, link_words
from node_agent.reporting.page_style import STYLE
from node_agent.reporting.status import Status

GIB = 1 << 30


class Setting(Struct, frozen=True, kw_only=True):
    """A value in force, and where it came from."""

    key: str
    value: str
    source: str


class Shown(Struct, frozen=True, kw_only=True):
    """All that the page shows, at ``now`` in wall-clock seconds; ``refresh`` seconds later it is asked for again."""

    status: Status
    overview: Overview
    health: HealthDocument
    inventory: Inventory
    settings: Sequence[Setting]
    now: float
    refresh: int


def page(shown: Shown) -> str:
    """The whole document."""
    status = shown.status
    body = [
        _header(shown),
        *_section("Not ready", _alarms(status.trouble)),
        *_section("GPUs", _gpus(shown.overview.gpus, shown.now)),
        *_section("MIG devices", _partitions(shown.overview.gpus)),
        *_section("Who holds what", _holdings(shown.overview.holdings), "Nobody holds a device."),
        *_section("How the GPUs are joined", _links(shown)),
        *_section("Health", _health(shown), "No GPU has an open cause, and none has reported an Xid."),
        *_section("What is offered", _offers(status)),
        *_section("Parts of the agent", _parts(status, shown.now)),
        *_section("Settings", _settings(shown.settings)),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="refresh", content=shown.refresh) if shown.refresh else None,
        tag("title", f"{status.node or 'this node'}: GPUs"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(STYLE)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, tag("body", tag("main", *body)), lang="en")


def _header(shown: Shown) -> Html:
    status = shown.status
    cuda = f", CUDA {status.cuda}" if status.cuda else ""
    versions = f"node-agent {status.version}, driver {status.driver or '?'}{cuda}"
    again = f"asked for again every {shown.refresh} s" if shown.refresh else "not asked for again by itself"
    return tag(
        "header",
        tag("h1", status.node or "this node", " ", _badge(status.phase)),
        tag("p", f"{versions}. As of {_clock(shown.now)}, {again}. ", *_ways(), class_="dim"),
    )


def _ways() -> Iterator[str]:
    for path in ("overview", "status", "health"):
        yield tag("a", f"{path} as JSON", href=f"/{path}")
        yield " "


def _section(title: str, content: Html | None, empty: str = "") -> Iterator[Html]:
    """A section; one that has nothing to show is left out, or says so."""
    if content is not None:
        yield tag("section", tag("h2", title), content)
    elif empty:
        yield tag("section", tag("h2", title), tag("p", empty, class_="dim"))


def _alarms(lines: Sequence[str]) -> Html | None:
    return tag("div", *(tag("p", line) for line in lines), class_="alarm", role="alert") if lines else None


def _table(headings: Sequence[str], rows: Iterable[Sequence[str | None]]) -> Html | None:
    """A table; None where it has no rows. A cell that is no Html is text."""
    body = [tag("tr", *(cell if _is_cell(cell) else tag("td", cell) for cell in row)) for row in rows]
    if not body:
        return None
    head = tag("thead", tag("tr", *(tag("th", heading, scope="col") for heading in headings)))
    return tag("div", tag("table", head, tag("tbody", *body)), class_="scroll", tabindex="0")


def _is_cell(cell: str | None) -> bool:
    return isinstance(cell, Html) and cell.startswith("<td")


def _badge(word: str) -> Html:
    return tag("span", word, class_=f"badge {word}")


def _gpus(gpus: Sequence[GpuUse], now: float) -> Html | None:
    headings = ("GPU", "product", "health", "use", "memory", "temperature", "power", "NUMA", "looked at", "UUID")
    return _table(headings, (_gpu(gpu, now) for gpu in gpus))


def _gpu(gpu: GpuUse, now: float) -> list[str | None]:
    return [
        tag("td", tag("strong", gpu.name)),
        tag("td", gpu.product, tag("br"), tag("span", gpu.pci, class_="caption")),
        tag(
            "td",
            _badge(gpu.health),
            *(tag("p", cause.text, class_="caption") for cause in gpu.causes),
            class_="wide" if gpu.causes else None,
        ),
        _share(gpu.utilization),
        _memory(gpu.memory_used, gpu.memory),
        f"{gpu.temperature} °C" if gpu.temperature is not None else "?",
        _power(gpu),
        str(gpu.numa_node) if gpu.numa_node is not None else "–",
        f"{max(now - gpu.at, 0.0):.0f} s ago" if gpu.at is not None else "not yet",
        tag("td", gpu.uuid, class_="caption"),
    ]


def _share(value: float | None) -> Html:
    if value is None:
        return tag("td", "?")
    return tag("td", tag("meter", f"{value:.0%}", value=f"{value:.3f}", max=1), f" {value:.0%}")


def _memory(used: int | None, total: int | None) -> Html:
    if not total:
        return tag("td", "?")
    text = f" {used / GIB:.1f} of {total / GIB:.0f} GiB" if used is not None else f"{total / GIB:.0f} GiB"
    meter = tag("meter", f"{used / total:.0%}", value=used, max=total, high=total * 0.9) if used is not None else None
    return tag("td", meter, text)


def _power(gpu: GpuUse) -> str:
    if gpu.power is None:
        return "?"
    return f"{gpu.power:.0f} of {gpu.power_limit} W" if gpu.power_limit else f"{gpu.power:.0f} W"


def _partitions(gpus: Sequence[GpuUse]) -> Html | None:
    def row(gpu: GpuUse, one: PartitionUse) -> list[str | None]:
        slices = f"{one.start} to {one.start + one.length - 1}" if one.length > 1 else str(one.start)
        return [gpu.name, one.profile, slices, _memory(one.memory_used, one.memory), tag("td", one.uuid, class_="key")]

    rows = (row(gpu, one) for gpu in gpus for one in gpu.partitions)
    return _table(("GPU", "profile", "memory slices", "memory", "UUID"), rows)


def _holdings(holdings: Sequence[HoldingStatus]) -> Html | None:
    """One row for all that one pod has by one claim or resource."""

    def row(members: Sequence[HoldingStatus]) -> list[str | None]:
        one = members[0]
        pods = [f"{pod.namespace}/{pod.pod} ({pod.container})" for pod in one.pods]
        shown = [tag("p", pod) for pod in pods] or [tag("span", "the kubelet tells of no pod yet", class_="dim")]
        devices = list(dict.fromkeys(_device(member) for member in members))
        return [
            tag("td", *shown),
            tag("td", ", ".join(devices), class_="wide"),
            one.door,
            tag("td", one.holder, class_="key"),
        ]

    groups: dict[tuple[object, ...], list[HoldingStatus]] = {}
    for one in holdings:
        groups.setdefault((one.door, one.holder, one.pods), []).append(one)
    return _table(("pod", "devices", "asked for by", "claim or resource"), map(row, groups.values()))


def _device(one: HoldingStatus) -> str:
    """The GPUs of a device, and what of them it is."""
    of = ", ".join(filter(None, (one.part, f"share {one.share}" if one.share else "")))
    return f"{' + '.join(one.gpus)}{f' ({of})' if of else ''}"


def _links(shown: Shown) -> Html | None:
    gpus = shown.overview.gpus
    if not gpus:
        return None
    islands, health = {gpu.name: gpu.island for gpu in gpus}, {gpu.name: gpu.health for gpu in gpus}
    words = link_words(shown.inventory) or ["no NVLink and no common PCIe switch joins any two GPUs"]
    drawing = tag("div", link_graph(shown.inventory, islands, health), class_="scroll", tabindex="0")
    return joined(drawing, *(tag("p", line, class_="caption") for line in words))


def _health(shown: Shown) -> Html | None:
    def row(name: str, cause: CauseStatus) -> list[str | None]:
        title = ", ".join(filter(None, (cause.title, cause.reach)))
        return [
            name,
            tag("td", _badge(cause.severity)),
            title,
            tag("td", cause.text, class_="wide"),
            _clock(cause.since),
        ]

    rows = sorted(
        ((gpu.name, cause) for gpu in shown.health.gpus for cause in gpu.causes), key=lambda one: -one[1].since
    )
    causes = _table(("GPU", "state", "cause", "what was seen", "since"), (row(*one) for one in rows))
    seen = [
        f"{gpu.name} has seen Xid {', '.join(f'{code} ({count} ×)' for code, count in gpu.xids.items())}"
        for gpu in shown.health.gpus
        if gpu.xids
    ]
    gone = [f"{one.uuid or f'index {one.index}'} is missing: {one.reason}" for one in shown.health.missing]
    if causes is None and not seen and not gone:
        return None
    return joined(causes, *(tag("p", line) for line in (*gone, *seen)))


def _offers(status: Status) -> Html | None:
    rows: list[list[str | None]] = [
        [one.name, f"{one.healthy} of {one.devices} healthy", one.phase, one.trouble or "; ".join(one.withheld)]
        for one in status.resources
    ]
    if (claims := status.claims) is not None:
        published = f"{claims.devices} devices in {claims.slices} slices"
        rows.append([claims.driver, published, claims.phase, claims.trouble])
    if (layout := status.layout) is not None:
        source, reasons = f"asked for by {layout.source}", "; ".join(layout.reasons)
        rows.append([f"MIG layout {layout.name}", source, layout.phase, reasons])
    return _table(("resource or driver", "devices", "at the kubelet", "what stands in the way"), rows)


def _parts(status: Status, now: float) -> Html | None:
    rows: Iterable[list[str | None]] = (
        [part.name, tag("td", _badge(part.state)), part.reason, "; ".join(part.messages), _age(now - part.since)]
        for part in status.parts
    )
    return _table(("part", "state", "reason", "message", "for"), rows)


def _settings(settings: Sequence[Setting]) -> Html | None:
    """Those that somebody has set come first: they are what is looked for."""
    ordered = sorted(settings, key=lambda one: one.source == "default")
    rows = ([tag("td", one.key, class_="key"), tag("td", one.value, class_="key"), one.source] for one in ordered)
    table = _table(("key", "value", "from"), rows)
    if table is None:
        return None
    given = sum(one.source != "default" for one in settings)
    return tag("details", tag("summary", f"{given} set, {len(settings) - given} by default"), table)


_UNITS: Mapping[str, int] = {"d": 86400, "h": 3600, "min": 60}


def _age(seconds: float) -> str:
    for unit, size in _UNITS.items():
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
