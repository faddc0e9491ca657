"""``node-agent migrate``: NVIDIA's Helm values and ConfigMaps as a configuration of the agent and its DaemonSet."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import to_builtins
from msgspec.structs import replace

from node_agent.errors import ConfigError

if TYPE_CHECKING:
    from node_agent.migrate.compose import Migration
    from node_agent.migrate.keys import Piece

CHARTS = ("device-plugin", "gpu-operator", "dcgm-exporter", "dra-driver")


@click.command()
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
)
@click.option("--chart", type=click.Choice(CHARTS), help="Whose Helm values these are, where their keys do not tell.")
@click.option(
    "--write",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write an overlay for kustomize to a new folder, and print nothing but the list.",
)
@click.option(
    "--deploy",
    metavar="PLACE",
    default="../deploy",
    show_default=True,
    help="Where the overlay finds the folder deploy of this project: a path from FOLDER, or a URL.",
)
@click.option(
    "-o",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text: the configurations, and the list to the error output. JSON has both, and the DaemonSet's part.",
)
def migrate(files: Sequence[Path], chart: str | None, folder: Path | None, deploy: str, form: str) -> None:
    """Turn NVIDIA's Helm values and ConfigMaps into a configuration of the agent, and list what has no equal.

    FILE is values of the charts nvidia-device-plugin, gpu-operator, dcgm-exporter or nvidia-dra-driver-gpu (helm get
    values RELEASE -o yaml), a ClusterPolicy, a ConfigMap of the device plugin, the MIG manager or the exporter, or an
    entry of one; - for standard input. Several files together describe the same nodes. Nothing in the cluster is
    asked or changed.
    """
    from node_agent.migrate.compose import compose
    from node_agent.migrate.overlay import daemonset
    from node_agent.migrate.overlay import files as overlay_files

    found = compose(piece for file in files for piece in _pieces(file, chart, named=len(files) > 1))
    if folder is not None:
        _write(folder, overlay_files(found, deploy))
    if form == "json":
        shown = {name: value for name, value in to_builtins(found).items() if name != "template"}
        click.echo(json.dumps({**shown, "daemonset": daemonset(found)}, indent=2))
        return
    if folder is None:
        for name, text in found.configurations.items():
            click.echo(f"# {name}\n---\n{text}", nl=False)
    _list(found)


def _pieces(file: Path, chart: str | None, *, named: bool) -> "Iterator[Piece]":
    """The pieces of a file, their paths with its name where there are ``named`` ones."""
    from node_agent.migrate.documents import pieces
    from node_agent.migrate.keys import Finding

    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    try:
        for piece in pieces(data, chart):
            yield replace(piece, path=f"{file.name}: {piece.path}") if named and isinstance(piece, Finding) else piece
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _write(folder: Path, overlay: "Mapping[str, str]") -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: there is something in it already; name a new folder")
    for name, text in overlay.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def _list(found: "Migration") -> None:
    """What became of each key, the most urgent last, where the eye is."""
    order = ("configuration", "manifest", "stays", "not needed", "unknown", "no equal", "to decide")
    for finding in sorted(found.findings, key=lambda one: order.index(one.fate)):
        click.echo(f"{finding.fate:<14} {finding.path}: {finding.why}", err=True)
