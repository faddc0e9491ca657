"""``node-agent run``: the agent itself."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from node_agent.cli.shared import chosen_node, node_options, told_to_end

if TYPE_CHECKING:
    from node_agent.config.settings import Settings


@click.command()
@node_options
@click.option("--http-address", metavar="HOST:PORT", help="Serve status and health over TCP as well, such as :9400.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much to say.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How to say it.")
def run(
    config: Path | None,
    simulate: str | None,
    http_address: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run the agent until it is told to end (SIGTERM, Ctrl-C)."""
    flags = {"agent.http.address": http_address, "agent.log.level": log_level, "agent.log.format": log_format}
    given = {key: value for key, value in flags.items() if value is not None}
    with chosen_node(config, simulate, given, serves=True) as (settings, stat):
        from node_agent.kit import logs

        logs.configure(settings.log.level, settings.log.form)
        asyncio.run(work(settings, stat))


async def work(settings: "Settings", stat: Callable[[Path], Any]) -> None:
    """Run the agent until a signal ends it, be it while it still waits for the agent before it."""
    from node_agent.kit.tasks import running

    async with running(told_to_end()) as told, running(_serve(settings, stat)) as serving:
        await asyncio.wait([told, serving], return_when=asyncio.FIRST_COMPLETED)


async def _serve(settings: "Settings", stat: Callable[[Path], Any]) -> None:
    from node_agent.agent.build import built

    async with built(settings, stat) as agent:
        await agent.run()
