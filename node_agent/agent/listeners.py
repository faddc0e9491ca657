"""Puts together what tells of the agent to those who ask, for ``build``: HTTP and gRPC, on the node and over TCP."""

from collections.abc import Mapping

from node_agent.agent.agent import Agent
from node_agent.agent.supervisor import Run
from node_agent.config.settings import Settings
from node_agent.kit.http import Routes
from node_agent.reporting.health_service import HealthServer
from node_agent.reporting.metrics.scrape import Metrics, Style
from node_agent.reporting.metrics.sources import Sources
from node_agent.reporting.page_routes import Page
from node_agent.reporting.readiness import Phase
from node_agent.reporting.server import StatusServer


def status_services(settings: Settings, agent: Agent) -> Mapping[str, Run]:
    """What tells of the agent, on the node and, where it has an address, over TCP."""
    folder, view, clear = settings.paths.run_dir, agent.health, agent.board.clear
    metrics: Routes = {"/metrics": _metrics(agent)}
    page = Page(
        overview=agent.overview,
        status=agent.status,
        health=view,
        inventory=agent.keeper.inventory,
        settings=agent.settings,
    )
    services: dict[str, Run] = {
        "status": StatusServer(
            agent.status, view, folder / "agent.sock", clear=clear, more={**metrics, **page.routes}
        ).run,
        "health service": HealthServer(
            view, lambda: agent.readiness.look().phase is Phase.READY, folder / "health.sock"
        ).run,
    }
    if settings.http_address:
        shown = {**metrics, **(page.routes if settings.http_page else {})}
        services["status over tcp"] = StatusServer(agent.status, view, settings.http_address, more=shown).run
    return services


def _metrics(agent: Agent) -> Metrics:
    def style() -> Style:
        settings = agent.live.settings.value
        return Style(names=settings.metrics_names, per_share=settings.metrics_per_share)

    return Metrics(
        Sources(
            inventory=agent.keeper.inventory,
            looks=agent.looks,
            holders=agent.holders,
            grants=agent.ledger.grants,
            report=agent.board.report,
            counts=lambda: agent.board.counts,
            last_xids=lambda: agent.board.last_codes,
            status=agent.status,
            mps_phases=lambda: [state.phase for state in agent.mps.states.value.values()],
            time_slice_troubles=lambda: len(agent.slices.troubles.value),
        ),
        style,
    )
