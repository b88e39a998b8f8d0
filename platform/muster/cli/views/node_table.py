"""The table of `muster nodes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.cli.views.queue_bar import BarUsage, queue_bar
from muster.quantity import parse_quantity
from muster.text.humanize import format_resource, short_resource_name

if TYPE_CHECKING:
    from muster.cli.connect import NodeTableRow

_BAR_WIDTH = 10


def node_table(rows: Sequence[NodeTableRow], width: int = 160) -> Table:
    """One line per node, with a bar for every resource that any node has, GPUs first. The bars are omitted if they do
    not fit into `width` columns; names are never truncated."""
    table = _table(rows, _BAR_WIDTH)
    console = Console(width=1000)
    return table if console.measure(table).maximum <= width else _table(rows, 0)


def _table(rows: Sequence[NodeTableRow], bar: int) -> Table:
    names = {name for row in rows for name in row["allocatable"] if name != "pods"}
    resources = sorted(names, key=lambda name: (name in ("cpu", "memory"), name))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("NODE", no_wrap=True, min_width=max((len(row["name"]) for row in rows), default=None))
    for title in ("FLAVOR", *(short_resource_name(name).upper() for name in resources), "PODS", ""):
        table.add_column(title, no_wrap=True)
    for row in rows:
        flavor = Text(row["flavor"]) if row["flavor"] else Text("none", style="red")
        state = _state_text(row)
        cells = [_usage_cell(row, name, bar) for name in resources]
        table.add_row(Text(row["name"]), flavor, *cells, str(len(row["pods"])), state)
    return table


def _state_text(row: NodeTableRow) -> Text:
    if not row["ready"]:
        return Text("not ready", style="red")
    if row["draining"] or row["cordoned"]:
        return Text("draining" if row["draining"] else "cordoned", style="yellow")
    return Text("virtual", style="dim") if row["virtual"] else Text()


def _usage_cell(row: NodeTableRow, resource: str, bar: int) -> Text:
    if resource not in row["allocatable"]:
        return Text()
    total = parse_quantity(row["allocatable"][resource], resource)
    used = parse_quantity(row["used"].get(resource, 0), resource)
    text = f"{format_resource(used, resource)}/{format_resource(total, resource)}"
    return Text.assemble(queue_bar(BarUsage(used, total, total), total, bar), " ", text) if bar else Text(text)
