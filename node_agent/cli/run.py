"""``node-agent run``: the agent itself."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from node_agent.cli.shared import chosen_sources, config_dir, node_options, told_to_end

if TYPE_CHECKING:
    from node_agent.agent.reload import Configuration
    from node_agent.config.resolve import Sources
    from node_agent.config.settings import Settings


@click.command()
@node_options
@config_dir
@click.option("--http-address", metavar="HOST:PORT", help="Serve status and health over TCP as well, such as :9400.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much to say.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="How to say it.")
def run(
    *,
    config: Path | None,
    config_dir: Path | None,
    simulate: str | None,
    http_address: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Run the agent until it is told to end (SIGTERM, Ctrl-C).

    A configuration that changes comes into force while it runs; one that cannot be used changes nothing.
    """
    from node_agent.kit.memory import give_back_freed

    give_back_freed()
    flags = {"agent.http.address": http_address, "agent.log.level": log_level, "agent.log.format": log_format}
    given = {key: value for key, value in flags.items() if value is not None}
    with chosen_sources(config, simulate, given, folder=config_dir, serves=True) as (sources, stat):
        asyncio.run(work(_serve_sources(sources, stat)))


async def work(serving: Coroutine[Any, Any, None]) -> None:
    """Run the agent until a signal ends it, be it while it still waits for the agent before it."""
    from node_agent.kit.tasks import LoopTrouble, running

    asyncio.get_running_loop().set_exception_handler(LoopTrouble())
    async with running(told_to_end()) as told, running(serving) as served:
        await asyncio.wait([told, served], return_when=asyncio.FIRST_COMPLETED)


async def serve(
    settings: "Settings", stat: Callable[[Path], Any], configuration: "Configuration | None" = None
) -> None:
    """Run the agent; where it has a ``configuration``, that one's settings are the ones, and its documents followed."""
    from node_agent.kit.memory import nothing_to_collect

    with nothing_to_collect():
        from node_agent.agent.build import built

    async with built(settings, stat, configuration) as agent:
        await agent.run()


async def _serve_sources(sources: "Sources", stat: Callable[[Path], Any]) -> None:
    from msgspec.structs import replace

    from node_agent.agent.label import node_label
    from node_agent.agent.reload import first_configuration, tell_notices
    from node_agent.kit import logs

    # What is said before the documents are read follows the command line.
    log = sources.bare.resolve().settings.log
    logs.configure(log.level, log.form)
    async with node_label(sources) as labelled:
        configuration = first_configuration(sources, labelled.config)
        if labelled.followed:
            configuration = replace(configuration, labels=labelled.labels)
        settings = configuration.first.settings
        logs.configure(settings.log.level, settings.log.form)
        tell_notices(configuration.first)
        await serve(settings, stat, configuration)
