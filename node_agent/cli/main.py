"""``node-agent``: the commands and what they share. Each command is loaded only when it is called or listed."""

import importlib
import io
import sys

import click

from node_agent import __version__
from node_agent.errors import NodeAgentError

# The command's name → where it is.
COMMANDS = {
    "run": "node_agent.cli.run:run",
    "demo": "node_agent.cli.demo:demo",
    "status": "node_agent.cli.status:status",
    "top": "node_agent.cli.top:top",
    "health": "node_agent.cli.health:health",
    "topology": "node_agent.cli.topology:topology",
    "doctor": "node_agent.cli.doctor:doctor",
    "labels": "node_agent.cli.labels:labels",
    "explain": "node_agent.cli.explain:explain",
    "mig": "node_agent.cli.mig:mig",
    "cdi": "node_agent.cli.cdi:cdi",
    "config": "node_agent.cli.config:config",
    "migrate": "node_agent.cli.migrate:migrate",
    "simulate": "node_agent.cli.simulate:simulate",
}


class Commands(click.Group):
    """A group that imports a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="node-agent")
def cli() -> None:
    """One agent for the GPUs of a Kubernetes node.

    It discovers GPUs through NVML, offers them to the kubelet, makes allocations usable through CDI and watches their
    health. `node-agent demo` shows all of it on a simulated node, without GPU, cluster or root.
    """


def main() -> None:
    """Entry point: what the agent raises knowingly, and what the system refuses, is for people: without a traceback.

    A name that is no text, such as a file's in another encoding, is shown with its bytes in numbers.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="node-agent")
    except (NodeAgentError, OSError) as error:
        click.echo(f"node-agent: {error}", err=True)
        sys.exit(1)
