"""The tree of `muster queues` and the table of `muster nodes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from muster.api.quantity import parse_quantity
from muster.api.spec.queues import FLAVOR_REASONS
from muster.queue_bars import (
    QUOTA_COLUMNS,
    BarUsage,
    FlavorResource,
    bar_segments,
    bar_totals,
    quota_cells,
    usage_by_resource,
)
from muster.text import format_resource, short_resource_name
from muster.text_layout import wrap_parts

if TYPE_CHECKING:
    from muster.tables import NodeTableRow, QueueTableRow

# All bars of a tree have one scale. The cells differ in shape as well, so that a bar is readable without colours.
_OWN_CELL, _BORROWED_CELL, _IDLE_CELL, _BORROWABLE_CELL = "█", "▓", "░", "·"
_CELLS = {"own": _OWN_CELL, "borrowed": _BORROWED_CELL, "idle": _IDLE_CELL, "borrowable": _BORROWABLE_CELL}
_MIN_CELLS = 4  # cells
_CELL_STYLES = {_OWN_CELL: "green", _BORROWED_CELL: "yellow", _IDLE_CELL: "green dim", _BORROWABLE_CELL: "bright_black"}
_WIDE_TERMINAL, _MAX_BAR_WIDTH = 100, 40  # columns of the terminal, cells
_BAR_TITLE = ""  # the title above bars
_SHORT_TITLES = {"RESOURCE": "RES", "GUARANTEED": "GUAR", "BORROWED": "BORR"}
_EMPTY_CELLS = [Text()] * 5  # under the titles from the bar on
_NODE_BAR_WIDTH = 10  # cells


def _queue_bar(usage: BarUsage, total: int, width: int) -> Text:
    """`width` cells for `total`; a part above zero gets at least one cell."""
    text, drawn = Text(no_wrap=True), 0
    for kind, _, end in bar_segments(usage, total):
        cells = max(1, round(end / total * width) - drawn) if total else 0
        cells = min(cells, width - drawn)
        cell = _CELLS[kind]
        text.append(cell * cells, style=_CELL_STYLES[cell])
        drawn += cells
    return text.append(" " * (width - drawn))


@dataclass(frozen=True, slots=True)
class _QueueBar:
    """A bar in a table column that shrinks in a narrow terminal: `_MIN_CELLS` to `width` cells."""

    usage: BarUsage
    total: int
    width: int

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The range of widths, for the table's layout."""
        return Measurement(min(_MIN_CELLS, self.width), self.width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar in the width of its column."""
        yield _queue_bar(self.usage, self.total, min(self.width, options.max_width))


def _legend(width: int, *, with_bars: bool) -> list[Text]:
    """The _legend of the cells (if there are bars) and of the job symbols, in lines of at most `width` columns."""
    words = (
        ((_OWN_CELL, "used"), (_BORROWED_CELL, "borrowed"), (_IDLE_CELL, "own, idle"), (_BORROWABLE_CELL, "may borrow"))
        if with_bars
        else ()
    )
    jobs = (("●", "green", "running"), ("○", "yellow", "waiting"))
    parts = [Text.assemble((cell * 2, _CELL_STYLES[cell]), " ", (word, "dim")) for cell, word in words]
    parts += [Text.assemble((mark, style), " ", (word, "dim")) for mark, style, word in jobs]
    return wrap_parts(parts, width, separator="  ")


@dataclass(frozen=True, slots=True)
class _QueueTreeRow:
    """A queue with its root, the tree lines before its name, and those of its following lines."""

    row: QueueTableRow
    root: str
    prefix: str
    continuation_prefix: str


def queue_tree(rows: Sequence[QueueTableRow], width: int = 120) -> RenderableType:
    """The tree with bars, a _legend, and a warning for each queue that is inactive, overcommitted or without flavor."""
    levels = {row["name"]: usage_by_resource(row) for row in rows}
    branches = list(_tree_rows(rows))
    totals = bar_totals({branch.row["name"]: branch.root for branch in branches}, levels)
    several = len({flavor for by_key in levels.values() for flavor, _ in by_key}) > 1
    wide = width >= _WIDE_TERMINAL
    bar = max(12, min(_MAX_BAR_WIDTH, width - 92)) if wide else 16
    rows_of = (_queue_cells(branch, levels[branch.row["name"]], totals, several, bar) for branch in branches)
    cells = [row for drawn in rows_of for row in drawn]
    titles = ["QUEUE", "JOBS", "RESOURCE", _BAR_TITLE, *map(str.upper, QUOTA_COLUMNS)]
    titles = titles if wide else [_SHORT_TITLES.get(title, title) for title in titles]
    gap = 2 if wide else 1
    with_bars = width - _fixed_width(titles, cells, gap) >= _MIN_CELLS
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for title in titles:
        if title != _BAR_TITLE or with_bars:  # only the bars are dropped: names are never truncated
            right = title in titles[titles.index(_BAR_TITLE) + 1 :]
            table.add_column(title, no_wrap=title != _BAR_TITLE, justify="right" if right else "left")
    bar_column = titles.index(_BAR_TITLE)
    for row in cells:
        table.add_row(*(row if with_bars else row[:bar_column] + row[bar_column + 1 :]))
    return Group(table, Text(), *_legend(width, with_bars=with_bars), *_warning_lines(branches))


def _fixed_width(titles: Sequence[str], rows: Sequence[Sequence[Text | _QueueBar]], gap: int) -> int:
    """Terminal columns of all table columns but the bars, gaps included."""
    widths = [Text(title).cell_len + gap for title in titles]
    for row in rows:
        for column, cell in enumerate(row):
            if isinstance(cell, Text) and titles[column] != _BAR_TITLE:
                widths[column] = max(widths[column], cell.cell_len + gap)
    return sum(widths)


def _queue_cells(
    branch: _QueueTreeRow,
    levels: Mapping[FlavorResource, BarUsage],
    totals: Mapping[tuple[str, FlavorResource], int],
    several_flavors: bool,
    bar: int,
) -> Iterator[list[Text | _QueueBar]]:
    """The rows of one queue: one per flavor and resource, with a cell per column."""
    row = branch.row
    name = Text.assemble((branch.prefix, "bright_black"), (row["name"], "bold" if row["active"] else "red"))
    if not row["active"] or row["overcommitted"] or row["reason"] in FLAVOR_REASONS:
        name.append(" !", style="bold red" if not row["active"] else "bold yellow")
    jobs = Text.assemble(
        (f"●{row['admitted']}" if row["admitted"] else "", "green"),
        " " if row["admitted"] and row["waiting"] else "",
        (f"○{row['waiting']}" if row["waiting"] else "", "yellow"),
    )
    if not levels:
        text = Text("no flavor", style="yellow") if _without_flavor(row) else Text("no quota", style="dim")
        yield [name, jobs, text, *_EMPTY_CELLS]
    below = Text(branch.continuation_prefix, style="bright_black")
    for index, (key, level) in enumerate(levels.items()):
        cells = _resource_cells(key, level, totals[branch.root, key], several_flavors, bar)
        yield [below if index else name, Text() if index else jobs, *cells]


def _without_flavor(row: QueueTableRow) -> bool:
    """Whether neither the queue nor one above it names a flavor; `muster submit` refuses its jobs."""
    return row["active"] and row["reason"] == "NoResources"


def _warning_lines(branches: Sequence[_QueueTreeRow]) -> Iterator[Text]:
    for branch in branches:
        row = branch.row
        inactive = None if row["active"] else row["message"]
        flavor_warning = row["message"] if row["reason"] in FLAVOR_REASONS else None
        for message, style in ((inactive, "red"), (flavor_warning, "yellow"), (row["overcommitted"], "yellow")):
            if message:
                yield Text.assemble(("! ", f"bold {style}"), (f"{row['name']}: ", style), message)


def _resource_cells(
    key: FlavorResource, level: BarUsage, total: int, several_flavors: bool, bar: int
) -> list[Text | _QueueBar]:
    flavor, resource = key
    name = Text.assemble(short_resource_name(resource), (f" {flavor}" if several_flavors else "", "dim"))
    full = level.limit is not None and level.used >= level.limit > 0
    styles = (
        "bold" if level.used else "dim",
        "green" if level.guaranteed else "dim",
        "yellow",
        "red" if full else "dim",
    )
    cells = [Text(text, style=style) for text, style in zip(quota_cells(level, resource), styles, strict=True)]
    # without quota, no queue on the path to the root sets one
    return [name, _QueueBar(level, total, bar) if level.has_quota else Text("not limited", style="dim"), *cells]


def _tree_rows(rows: Sequence[QueueTableRow]) -> Iterator[_QueueTreeRow]:
    names = {row["name"] for row in rows}
    children: dict[str | None, list[QueueTableRow]] = {}
    for row in rows:
        children.setdefault(row["parent"] if row["parent"] in names else None, []).append(row)
    seen: set[str] = set()

    def walk(row: QueueTableRow, root: str, before: str, stem: str) -> Iterator[_QueueTreeRow]:
        seen.add(row["name"])
        below = sorted(children.get(row["name"], ()), key=lambda child: child["name"])
        yield _QueueTreeRow(row, root, before, stem + ("│" if below else ""))
        for child in below:
            last = child is below[-1]
            yield from walk(child, root, f"{stem}{'└─ ' if last else '├─ '}", f"{stem}{'   ' if last else '│  '}")

    for row in sorted(children.get(None, ()), key=lambda row: row["name"]):
        yield from walk(row, row["name"], "", "")
    for row in rows:  # queues in a parent cycle have no root
        if row["name"] not in seen:
            seen.add(row["name"])
            yield _QueueTreeRow(row, row["name"], "", "")


def node_table(rows: Sequence[NodeTableRow], width: int = 160) -> Table:
    """One line per node, with a bar for every resource that any node has, GPUs first. The bars are omitted if they do
    not fit into `width` columns; names are never truncated."""
    table = _node_columns(rows, _NODE_BAR_WIDTH)
    console = Console(width=1000)
    return table if console.measure(table).maximum <= width else _node_columns(rows, 0)


def _node_columns(rows: Sequence[NodeTableRow], bar: int) -> Table:
    names = {name for row in rows for name in row["allocatable"] if name != "pods"}
    resources = sorted(names, key=lambda name: (name in ("cpu", "memory", "ephemeral-storage"), name))
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
    return Text.assemble(_queue_bar(BarUsage(used, total, total), total, bar), " ", text) if bar else Text(text)
