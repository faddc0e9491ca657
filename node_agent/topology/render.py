"""The links of a node as a table, in the style of ``nvidia-smi topo -m``. ``drawing`` draws them instead.

Plain data and strings: the command line may lay the same rows out with colours.
"""

from collections.abc import Mapping

from msgspec import Struct

from node_agent.model.gpu import Gpu
from node_agent.model.inventory import Inventory
from node_agent.model.links import Link

LEGEND: Mapping[str, str] = {
    "X": "the GPU itself",
    "NV#": "that many NVLinks together",
    "PSB": "PCIe, two GPUs on one board",
    "PIX": "PCIe, one switch",
    "PXB": "PCIe, several switches below one host bridge",
    "PHB": "PCIe, through the host bridge, which is in the CPU",
    "NODE": "PCIe and the links between the host bridges of one NUMA node",
    "SYS": "PCIe and the links between NUMA nodes",
    "?": "no NVLink, and the driver cannot tell the PCIe path",
}


class LinkTable(Struct, frozen=True, kw_only=True):
    """A header and one row per GPU, all of the same length; ``legend`` explains the words that occur in it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    legend: Mapping[str, str]


def link_word(link: Link) -> str:
    """A link in one word: ``NV18``, or where there is no NVLink the PCIe path, such as ``PIX``."""
    if link.nvlinks:
        return f"NV{link.nvlinks}"
    return link.path.short if link.path is not None else "?"


def link_table(inventory: Inventory, cpus: Mapping[int, str] | None = None) -> LinkTable:
    """The table of all pairs. ``cpus`` adds a column: the CPUs of each NUMA node, such as ``0-55,112-167``."""
    names = [gpu.name.removeprefix("gpu-") for gpu in inventory.gpus]
    cells = [[_cell(inventory, a, b) for b in inventory.gpus] for a in inventory.gpus]
    # One line for all counts of NVLinks.
    used = {"NV#" if word.startswith("NV") else word for words in cells for word in words}
    return LinkTable(
        header=("", *names, *([] if cpus is None else ["CPU affinity"]), "NUMA node"),
        rows=tuple((gpu.name, *words, *_affinity(gpu, cpus)) for gpu, words in zip(inventory.gpus, cells, strict=True)),
        legend={word: meaning for word, meaning in LEGEND.items() if word in used},
    )


def _cell(inventory: Inventory, a: Gpu, b: Gpu) -> str:
    return "X" if a is b else link_word(inventory.links.between(a.uuid, b.uuid))


def _affinity(gpu: Gpu, cpus: Mapping[int, str] | None) -> list[str]:
    node = "N/A" if gpu.numa_node is None else str(gpu.numa_node)
    if cpus is None:
        return [node]
    return ["N/A" if gpu.numa_node is None else cpus.get(gpu.numa_node, "N/A"), node]


def render_table(table: LinkTable) -> str:
    """The table as text, with its legend; closer together where it would be wider than 100 columns."""
    if not table.rows:
        return "No GPUs."
    lines = [table.header, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    gap = "  " if sum(widths) + 2 * len(widths) <= 100 else " "
    text = [gap.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    widest = max(map(len, table.legend))
    return "\n".join([*text, "", *(f"{word.ljust(widest)}  {meaning}" for word, meaning in table.legend.items())])
