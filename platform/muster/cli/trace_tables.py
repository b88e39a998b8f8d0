"""The commands `trace table` and `trace counters`: what the traces of a run contain, trace by trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.cli.options import PATH, PlainOption, json_option, namespace_option, runs_argument
from muster.cli.output import print_json, print_note, print_renderable, print_text, usage_error
from muster.errors import InvalidTrace

if TYPE_CHECKING:
    from rich.console import RenderableType

    from muster.tracing.trace_tables import TableOfTrace

TABLE_NAMES = (
    "kernels", "kernel-types", "annotations", "annotated-kernels", "launches", "queue-lengths", "queue-changes",
    "sequences", "operator-delays", "memory-bandwidth", "bandwidth-changes", "kernel-counters",
)  # fmt: skip
_DEFAULT_ROWS = 20
_KERNEL_COLUMNS = ("name", "kernel", "kernels")  # full names only in JSON
_runs = runs_argument("traces")
_rank = click.option("--rank", cls=PlainOption, type=click.IntRange(min=0), metavar="N", help="Of this rank only.")


@click.command()
@click.argument("name", metavar="NAME", help="The table, see above.")
@_runs
@_rank
@click.option("--operator", default="", metavar="TEXT", help="For sequences: operators whose name contains this.")
@click.option(
    "--full",
    cls=PlainOption,
    type=click.IntRange(min=1),
    default=1024,
    metavar="N",
    help="For queue-lengths: a full queue; default 1024.",
)
@click.option("--compat", type=click.Choice(["hta"]), metavar="hta", help="By HolisticTraceAnalysis's rules.")
@click.option(
    "--limit",
    cls=PlainOption,
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Rows of each trace; default {_DEFAULT_ROWS}, with --json all.",
)
@namespace_option
@json_option
def table(
    name: str,
    runs: tuple[str, ...],
    rank: int | None,
    operator: str,
    full: int,
    compat: str | None,
    limit: int | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Show a table of each trace of a run, of a folder, or of these files.

    \b
    NAME is one of
      kernels            kernels, copies and memsets by name
      kernel-types       time by the kinds of work that run at once
      annotations        annotations on the device by name
      annotated-kernels  kernels with the innermost annotation on their stream
      launches           each launch: its call, its work, the delay between them
      queue-lengths      work launched and not begun, by stream
      queue-changes      the same after each change
      sequences          kernels that calls of --operator launch, by frequency
      operator-delays    from an operator to its first launch and kernel
      memory-bandwidth   bandwidth of copies and memsets by kind
      bandwidth-changes  the same after each change
      kernel-counters    hardware counters of kernels (CUPTI), by operator

    Times are in nanoseconds. Of a run folder, the newest steps. Exit code 2: there is no readable trace.
    """
    if name not in TABLE_NAMES:
        usage_error(f"NAME must be one of {', '.join(TABLE_NAMES)}; got {name[:60]!r}", "NAME")
    if name == "sequences" and not operator:
        usage_error("the table sequences needs --operator, the name of an operator or a part of it", "--operator")
    from muster.tracing.trace_tables import TableOptions, read_table

    options = TableOptions(operator=operator, full=full, hta=compat == "hta")
    found: list[dict[str, Any]] = []
    shown = 0
    for path in _traces(runs, namespace, rank):
        try:
            one = read_table(name, path, options)
        except (InvalidTrace, OSError) as error:
            print_note(f"skipped: {error}")
            continue
        if rank is not None and one.rank != rank:
            continue
        shown += 1
        if one.lost:
            print_note(f"note: {path.name}: {one.lost}; the rest is in the table")
        if as_json:
            found += [{"rank": one.rank, "trace": path.name, **row} for row in one.rows[:limit]]
        else:
            print_renderable(_table(one, path.name, limit or _DEFAULT_ROWS))
    _require(shown, runs, rank)
    if as_json:
        print_json(found)


@click.command()
@_runs
@click.option("--out", "-o", type=PATH, metavar="DIR", help="Folder for the copies; must be given.")
@_rank
@namespace_option
def counters(runs: tuple[str, ...], out: Path | None, rank: int | None, namespace: str | None) -> None:
    """Write copies of traces with counters for Perfetto: lengths of the launch queues, bandwidth of copies.

    Exit code 2: there is no readable trace.
    """
    if out is None:
        usage_error("--out must be a folder for the copies", "--out")
    from muster.tracing.tables.counter_tracks import write_with_counters

    written = 0
    for path in _traces(runs, namespace, rank):
        try:
            target = write_with_counters(path, out)
        except InvalidTrace as error:
            print_note(f"skipped: {error}")
            continue
        written += 1
        print_text(str(target))
    _require(written, runs, rank)


def _traces(runs: tuple[str, ...], namespace: str | None, rank: int | None) -> Iterator[Path]:
    """The traces of a run's newest steps, of a folder, or these files; without those whose name has another rank."""
    from muster.cli.runs import resolve_traces
    from muster.tracing.runs.run_folder import read_traces
    from muster.tracing.runs.trace_files import parse_trace_name

    folder = read_traces(resolve_traces(runs, namespace)[0])
    for file in folder.windows[0].files if folder.windows else ():
        name = parse_trace_name(file.name)
        if rank is None or name is None or name.rank == rank:
            yield file


def _require(count: int, runs: tuple[str, ...], rank: int | None) -> None:
    if not count:
        of_rank = "" if rank is None else f" of rank {rank}"
        raise InvalidTrace(f"{', '.join(runs)}: must have a readable trace{of_rank}")


def _table(one: TableOfTrace, name: str, limit: int) -> RenderableType:
    """The rows of one trace; lists in one cell."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from muster.text import pluralize

    rank, rows = one.rank, one.rows
    of_rank = name if rank is None else f"rank {rank} ({name})"
    shown = rows[:limit]
    title = f"{of_rank}: {pluralize(len(rows), 'row')}" + (f", of which the first {limit}" if len(rows) > limit else "")
    if one.lacks:
        title += f": the trace has no {one.lacks}"
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, value in (shown[0] if shown else {}).items():
        table.add_column(column, justify="right" if isinstance(value, int | float) else "left")
    for row in shown:
        table.add_row(*(Text(_cell(column, value)) for column, value in row.items()))
    return Group(Text(title, style="bold"), *([table] if shown else []))


def _cell(column: str, value: Any) -> str:
    from muster.tracing.work.operator_stats import short_name

    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(column, one) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={_cell(key, one)}" for key, one in value.items())
    text = short_name(value) if column in _KERNEL_COLUMNS else str(value)
    return " ".join(text.split())  # a name with line ends must not look like further rows
