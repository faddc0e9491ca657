"""The answer to a scrape, in the form that was asked for."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from node_agent.kit.http import Request, Response
from node_agent.reporting.metrics.dcgm import DRIVER_LABEL, HOST_LABELS, Names, families
from node_agent.reporting.metrics.devices import Naming, devices, labelled
from node_agent.reporting.metrics.families import text
from node_agent.reporting.metrics.sources import Sources

if TYPE_CHECKING:
    from node_agent.reporting.metrics.own import OwnMetrics

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Style(Struct, frozen=True, kw_only=True):
    """By which names figures go, and whether a device has its series for each container that has it."""

    names: Names = "legacy"
    per_share: bool = False


class Metrics:
    """A route, in the ``style`` that is in force at a scrape."""

    def __init__(self, sources: Sources, style: Callable[[], Style] = Style) -> None:
        self._sources = sources
        self._style = style
        self._own: OwnMetrics | None = None

    async def __call__(self, request: Request) -> Response:
        openmetrics = "application/openmetrics-text" in request.accept
        body = await self.text(openmetrics=openmetrics)
        return Response(body=body.encode(), content_type=OPENMETRICS if openmetrics else PROMETHEUS)

    async def text(self, *, openmetrics: bool = False) -> str:
        """All metrics as they are now. The first after a while waits a moment for figures."""
        # Nobody who is not scraped is to pay for the library: it takes 5 MB.
        from node_agent.reporting.metrics.own import OwnMetrics  # noqa: PLC0415

        sources, style, self._own = self._sources, self._style(), self._own or OwnMetrics()
        looks = await sources.looks.with_figures()
        status = sources.status()
        found = devices(sources.inventory.value, looks, sources.holders.value, time.time())
        naming = Naming(
            node=status.node,
            host_labels=HOST_LABELS[style.names],
            driver_label=DRIVER_LABEL[style.names],
            driver=status.driver or "",
        )
        series = labelled(found, naming, per_share=style.per_share)
        dcgm = families(series, sources.last_xids(), sources.counts(), style.names)
        own = self._own.text(sources, status, found, openmetrics=openmetrics)
        return text(dcgm, openmetrics=openmetrics) + own
