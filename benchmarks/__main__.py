"""``python -m benchmarks``: measure, print one table, write JSON where asked to."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import baseline, machine, table
from benchmarks.measure import Effort
from benchmarks.subjects import SUBJECTS
from node_agent.kit import logs


@click.command()
@click.argument("subjects", nargs=-1, type=click.Choice(list(SUBJECTS)))
@click.option("--quick", is_flag=True, help="Fewer rounds: a first impression in half a minute.")
@click.option("--long", "lasting", is_flag=True, help="Ten thousand calls each where memory might grow: half an hour.")
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there as well."
)
@click.option("--compare", is_flag=True, help="Warn of ratios that are far above those of baseline.json; never fails.")
def main(subjects: Sequence[str], quick: bool, lasting: bool, file: Path | None, compare: bool) -> None:
    """Measure the agent on simulated nodes; all of it, or the SUBJECTS named."""
    facts = machine.facts()
    with open(os.devnull, "w") as nowhere:
        # The agent logs as it does in earnest, so that its figures contain that.
        logs.configure(stream=nowhere)
        figures = asyncio.run(measured(subjects or list(SUBJECTS), Effort(quick=quick, long=lasting)))
    click.echo(table.render(facts, figures))
    if compare:
        for warning in baseline.warnings(baseline.kept(), figures):
            click.echo(f"WARNING: {warning}")
    if file is not None:
        file.write_text(table.document(facts, figures))


async def measured(subjects: Sequence[str], effort: Effort) -> list[table.Named]:
    """The figures of the subjects, one subject after the other."""
    figures: list[table.Named] = []
    for name in subjects:
        click.echo(f"measuring {name} …", err=True)
        figures += [(name, figure) for figure in await SUBJECTS[name](effort)]
    return figures


if __name__ == "__main__":
    main()
