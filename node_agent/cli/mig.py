"""``node-agent mig``: what cutting the node's GPUs would take. Looks, explains, and changes nothing."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from msgspec.structs import replace

from node_agent.cli.shared import agent_socket, chosen_node, console, look, node_options
from node_agent.errors import ConfigError, LayoutRefused, NodeAgentError

if TYPE_CHECKING:
    from node_agent.model.inventory import Inventory
    from node_agent.partition.configs import Layouts
    from node_agent.partition.defragment import CutGpu, Outcome
    from node_agent.partition.plan import Plan
    from node_agent.reporting.overview import HoldingStatus


@click.group()
def mig() -> None:
    """Say what cutting the node's GPUs by MIG takes."""


@mig.command("plan")
@node_options
@click.option(
    "--mig-configs",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Named layouts in the form of mig-parted; by default the usual ones for the node's GPUs.",
)
@click.option("--name", help="The layout that the node is to have, such as all-1g.18gb.")
@click.option("--want", "wants", multiple=True, help="Something that waits for room: a profile, or gpu. Repeatable.")
@click.option("--in-use", multiple=True, help="What is in use beside that: gpu-0, or gpu-0:4 for one.")
@agent_socket
@click.pass_context
def plan_command(
    context: click.Context,
    config: Path | None,
    simulate: str | None,
    *,
    file: Path | None,
    name: str | None,
    wants: Sequence[str],
    in_use: Sequence[str],
    socket: Path,
) -> None:
    """The steps to a named layout (--name), or what room merging idle partitions makes (--want). Changes nothing.

    In use is what the running agent has given out, where there is one, and what processes run on.
    """
    import asyncio

    from node_agent.agent.partitions import cuts_once

    if (name is None) == (not wants):
        raise click.UsageError("give --name for a layout, or --want for something that waits")
    with chosen_node(config, simulate, {}) as (settings, _):
        inventory = look(settings)
        cuts = asyncio.run(cuts_once(settings, inventory))
        # A simulated node is none of the agent's, unless it is said to be.
        asks = simulate is None or context.get_parameter_source("socket") is not ParameterSource.DEFAULT
        held = _held(socket) if asks else ()
        _check_marks(in_use, [gpu.name for gpu in inventory.gpus])
        gpus = [_in_use(_given_out(gpu, held), in_use) for gpu in cuts.gpus]
        lines = [f"{gpu}: does not answer: {reason}" for gpu, reason in cuts.failed.items()]
        if name is not None:
            more, refused = _change(inventory, gpus, _layouts(file, inventory, gpus), name)
        else:
            more, refused = _room(gpus, wants)
        console().print("\n".join([*lines, *more]), markup=False)
        sys.exit(int(refused or bool(lines)))


def _layouts(file: Path | None, inventory: "Inventory", gpus: Iterable["CutGpu"]) -> "Layouts":
    from node_agent.partition.configs import parse, usual

    if file is not None:
        try:
            return parse(file.read_bytes())
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from error
    by_name = {gpu.name: gpu for gpu in inventory.gpus}
    return usual((by_name[gpu.name], gpu.rules) for gpu in gpus if gpu.state.mode is not None)


def _held(socket: Path) -> "Sequence[HoldingStatus]":
    """What the running agent has given out; nothing where none runs. Raises NodeAgentError where it does not answer."""
    import msgspec

    from node_agent.cli.status import ask
    from node_agent.reporting.overview import Overview

    if not socket.exists():
        return ()
    try:
        return msgspec.json.decode(ask(socket, "/overview"), type=Overview).holdings
    except msgspec.DecodeError as error:
        raise NodeAgentError(f"the agent on {socket} is of another version: {error}") from error


def _given_out(gpu: "CutGpu", held: "Iterable[HoldingStatus]") -> "CutGpu":
    """The GPU with what the agent has given out of it."""
    parts = [one.part for one in held if gpu.name in one.gpus and one.door != "layout"]
    starts = {part.rpartition(" ")[2] for part in parts if part}
    used = frozenset(piece for piece in gpu.state.lying if str(piece.placement.start) in starts)
    return replace(gpu, state=replace(gpu.state, in_use=gpu.state.in_use | used, busy=gpu.state.busy or "" in parts))


def _check_marks(marks: Iterable[str], names: Sequence[str]) -> None:
    """Raise ConfigError where a mark is of no GPU: the plan would take for idle what is not."""
    if strange := sorted({mark.partition(":")[0] for mark in marks} - set(names)):
        raise ConfigError(f"--in-use: no GPU is called {', '.join(strange)}; there is {', '.join(names) or 'none'}")


def _in_use(gpu: "CutGpu", marks: Sequence[str]) -> "CutGpu":
    """The GPU with what is said to be in use. Raises ConfigError where nothing lies there."""
    starts = {start for mark in marks for name, _, start in [mark.partition(":")] if name == gpu.name}
    pieces = {str(piece.placement.start): piece for piece in gpu.state.lying}
    if strange := starts - pieces.keys() - {""}:
        raise ConfigError(f"--in-use: nothing lies on {gpu.name} at {', '.join(sorted(strange))}")
    used = gpu.state.in_use | {pieces[start] for start in starts if start}
    return replace(gpu, state=replace(gpu.state, in_use=used, busy=gpu.state.busy or "" in starts))


# The way to a layout


def _change(inventory: "Inventory", gpus: Iterable["CutGpu"], layouts: "Layouts", name: str) -> tuple[list[str], bool]:
    """What each GPU has to go through, and whether one cannot."""
    from node_agent.partition.configs import named, wanted
    from node_agent.partition.plan import Goal, plan

    entries = wanted(named(layouts, name), inventory.gpus)
    by_name = {gpu.name: gpu for gpu in inventory.gpus}
    lines, refused = [], False
    for gpu in gpus:
        known = by_name[gpu.name]
        lines.append(f"{gpu.name} (index {known.index})  {known.product}  {_shown(gpu)}")
        entry = entries.get(known.uuid)
        if entry is None:
            lines.append("  is left as it is")
            continue
        goal = Goal(enabled=entry.mig_enabled, counts=entry.counts)
        try:
            lines += _planned(plan(gpu.rules, gpu.state, goal, resetless=gpu.resetless))
        except LayoutRefused as error:
            lines.append(f"  refused: {error}")
            refused = True
    return lines, refused


def _planned(found: "Plan") -> Iterator[str]:
    if not found.steps:
        yield "  is as wanted"
    for number, step in enumerate(found.steps, start=1):
        yield f"  {number}. {step}"
    if found.keeps:
        yield f"  stays: {', '.join(map(str, found.keeps))}"
    if found.waits_for:
        yield f"  waits for: {', '.join(map(str, found.waits_for))}, in use"
    if found.needs_idle:
        yield "  waits for: the GPU, in use as a whole"
    if found.may_need_reset:
        yield "  the mode may stay pending until the GPU is reset"


def _shown(gpu: "CutGpu") -> str:
    if gpu.state.mode is None:
        return "no MIG"
    lying = [f"{piece}{' (in use)' if piece in gpu.state.in_use else ''}" for piece in gpu.state.lying]
    return f"MIG {gpu.state.mode}{': ' if lying else ''}{', '.join(lying)}{' (in use)' if gpu.state.busy else ''}"


# Room for what waits


def _room(gpus: Sequence["CutGpu"], wants: Sequence[str]) -> tuple[list[str], bool]:
    """How each wish can be served, and whether one cannot."""
    from node_agent.partition.defragment import Policy, Request, Verdict, defragment

    outcomes = defragment(gpus, [Request(wants=each) for each in wants], Policy())
    lines = [f"{gpu.name}  {_shown(gpu)}" for gpu in gpus]
    for outcome in outcomes:
        lines += _served(outcome)
    return lines, any(outcome.verdict is Verdict.NONE for outcome in outcomes)


def _served(outcome: "Outcome") -> Iterator[str]:
    where = (
        ""
        if outcome.gpu is None
        else f": {outcome.gpu}{f' at {outcome.piece.placement.start}' if outcome.piece else ''}"
    )
    yield f"{outcome.request.wants} {outcome.verdict}{where}"
    for number, step in enumerate(outcome.steps, start=1):
        yield f"  {number}. {step}"
    for old, new in outcome.moved:
        yield f"  moves: {old} to {new.placement.start}"
    if outcome.lost:
        yield f"  loses: {', '.join(map(str, outcome.lost))}"
    if outcome.cost.resets:
        yield "  the mode may stay pending until the GPU is reset"
    if outcome.reason:
        yield f"  {outcome.reason}"
