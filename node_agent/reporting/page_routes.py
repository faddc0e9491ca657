"""Serves the page and the overview: routes for ``server`` to add to its own. Read only, on every listener."""

import time
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import parse_qsl

import msgspec

from node_agent.kit.http import Request, Response, Routes
from node_agent.kit.latest import Latest
from node_agent.model.inventory import Inventory
from node_agent.reporting.health_view import HealthView
from node_agent.reporting.overview import Overview
from node_agent.reporting.page import Setting, Shown, page
from node_agent.reporting.page_style import HEADERS
from node_agent.reporting.status import Status

REFRESH_SECONDS, LONGEST_REFRESH = 10, 3600


class Page:
    """``/`` is the page, ``/overview`` the document beside it. ``?refresh=SECONDS`` says how often it is to be asked
    for again, 0 not at all.
    """

    def __init__(
        self,
        *,
        overview: Callable[[], Awaitable[Overview]],
        status: Callable[[], Status],
        health: HealthView,
        inventory: Latest[Inventory],
        settings: Callable[[], Sequence[Setting]],
    ) -> None:
        self._overview = overview
        self._status = status
        self._health = health
        self._inventory = inventory
        self._settings = settings
        self.routes: Routes = {"/": self._page, "/overview": self._document}

    async def _document(self, _: Request) -> Response:
        return Response(body=msgspec.json.encode(await self._overview()), content_type="application/json")

    async def _page(self, request: Request) -> Response:
        asked = dict(parse_qsl(request.query)).get("refresh", "")
        # What is not understood is no reason to show nothing.
        refresh = min(int(asked), LONGEST_REFRESH) if asked.isdecimal() and len(asked) < 9 else REFRESH_SECONDS
        shown = Shown(
            status=self._status(),
            overview=await self._overview(),
            health=self._health.document,
            inventory=self._inventory.value,
            settings=self._settings(),
            now=time.time(),
            refresh=refresh,
        )
        return Response(body=page(shown).encode(), content_type="text/html; charset=utf-8", headers=HEADERS)
