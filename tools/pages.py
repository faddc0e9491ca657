"""The generated pages of commands, Xids, labels, metrics and NVIDIA's keys, and the schema of the configuration."""

import json
from collections.abc import Iterator

import click

from node_agent.cli.main import cli
from node_agent.config.schema import schema
from node_agent.health.xids import Xid, catalogue, xid
from node_agent.migrate.tables import CHARTS
from node_agent.reporting.label_names import MEANINGS
from node_agent.reporting.metrics.dcgm import FIELDS, XID_FIELDS, Field, XidField
from node_agent.reporting.metrics.own import OWN, Own
from node_agent.telemetry.catalogue import INSTRUMENTS
from node_agent.telemetry.instruments import Instrument, Timing


def commands_page() -> str:
    """The page of all commands, from their own help."""
    parts = ["# Commands\n", "Generated from the commands' own `--help` by `python -m tools.documents --write`.\n"]
    for names, command in commands("node-agent", cli):
        context = click.Context(command, info_name=names, max_content_width=100, terminal_width=100)
        parts.append(f"## {names}\n\n```text\n{command.get_help(context).rstrip()}\n```\n")
    return "\n".join(parts)


def xids_page() -> str:
    """The page of all Xids, from the catalogue."""
    header = (
        "# Xids\n\nGenerated from `node_agent/health/xids.py` by `python -m tools.documents --write`: what each Xid\n"
        "means, and what it costs unless the configuration says otherwise. [health.md](health.md) has the words.\n\n"
        "| Xid | meaning | about | action | over when |\n| --- | --- | --- | --- | --- |\n"
    )
    rows = [_row(str(code), catalogue[code]) for code in sorted(catalogue)]
    return header + "\n".join([*rows, _row("any other", xid(0))]) + "\n"


def _row(number: str, known: Xid) -> str:
    return f"| {number} | {known.name} | {known.scope} | {known.action} | {known.clears} |"


def labels_page() -> str:
    """The page of all labels, from their table of meanings."""
    header = (
        "# Label names\n\n"
        "Generated from `node_agent/reporting/label_names.py` by `python -m tools.documents --write`.\n"
        "[labels.md](labels.md) says where they are written, and when one is left out.\n\n"
        "| label | value |\n| --- | --- |\n"
    )
    return header + "".join(f"| `{name}` | {meaning} |\n" for name, meaning in MEANINGS.items())


def metrics_page() -> str:
    """The page of all metrics, from their tables."""
    header = (
        "# Metric names\n\n"
        "Generated from `node_agent/reporting/metrics` and `node_agent/telemetry` by\n"
        "`python -m tools.documents --write`.\n"
        "[metrics.md](metrics.md) says where they are served, and how they are labelled.\n\n"
        "## By DCGM-exporter's names\n\n"
        "| name | with `agent.metrics.names: current` | type | what |\n| --- | --- | --- | --- |\n"
    )
    fields: tuple[Field | XidField, ...] = (*FIELDS, *XID_FIELDS)
    series: tuple[Own | Instrument, ...] = (*OWN, *INSTRUMENTS)
    dcgm = [f"| `{one.name}` | {_renamed(one)} | {one.kind} | {one.help} |\n" for one in fields]
    own = [
        f"| `{one.name}` | {_type(one)} | {' '.join(f'`{label}`' for label in one.labels)} | {one.help} |\n"
        for one in series
    ]
    middle = "\n## The agent's own\n\nAnd those of the process that every Python program has: `process_…`.\n\n"
    return (
        header + "".join(dcgm) + middle + "| name | type | labels | what |\n| --- | --- | --- | --- |\n" + "".join(own)
    )


def _renamed(field: Field | XidField) -> str:
    if not field.current:
        return "the same"
    unit = f": {field.current_help}" if isinstance(field, Field) and field.current_help else ""
    return f"`{field.current}`{unit}"


def _type(one: Own | Instrument) -> str:
    if isinstance(one, Timing):
        return "histogram"
    return "counter" if one.name.endswith("_total") else "gauge"


def migration_page() -> str:
    """The page of what becomes of each key of NVIDIA's charts, from the tables that migrate by them."""
    header = (
        "# What becomes of NVIDIA's keys\n\n"
        "Generated from `node_agent/migrate/tables.py` by `python -m tools.documents --write`.\n"
        "A key stands for all below it. [migration.md](migration.md) says how a node moves.\n"
    )
    charts = (
        f"\n## {chart.title}\n\n| key | what becomes of it | |\n| --- | --- | --- |\n"
        + "".join(f"| `{key.path}` | {key.fate} | {key.what} |\n" for key in chart.keys.values())
        for chart in CHARTS.values()
    )
    return header + "".join(charts)


def config_schema() -> str:
    """The JSON schema of the configuration file."""
    return json.dumps(schema(), indent=2) + "\n"


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, with their full names."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from commands(f"{name} {child}", found)
