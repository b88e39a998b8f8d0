"""The command `trace query`: SQL over the summaries of traces."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from muster.cli.options import json_option, namespace_option, runs_argument
from muster.cli.output import print_note, print_renderable
from muster.errors import InvalidSpec, InvalidTrace


@click.command()
@click.argument("sql", metavar="SQL", help="The query, see above.")
@runs_argument("traces")
@namespace_option
@json_option
def query(sql: str, runs: tuple[str, ...], namespace: str | None, as_json: bool) -> None:
    """Run SQL over calls and times of operators, annotations and kernels, by rank, with DuckDB (`pip install duckdb`).

    \b
    The table totals has a row for each trace, category and name:
      rank, trace, category (cpu_op, kernel, user_annotation, ...), name,
      calls, total_us, min_us, max_us

    Of a run folder, the newest steps. Exit code 2: there is no readable trace, or DuckDB refuses the query.
    """
    from muster.cli.runs import resolve_run
    from muster.tracing.analysis.query import query_traces
    from muster.tracing.runs.run_folder import read_run_folder, read_selected_traces

    path = resolve_run(runs[0], namespace)[0] if len(runs) == 1 else Path()
    if len(runs) == 1 and not path.is_file():
        folder = read_run_folder(path)
    else:
        folder = read_selected_traces([path] if len(runs) == 1 else list(map(Path, runs)))
    if not folder.windows:
        raise InvalidTrace(f"{path}: must have a trace")
    try:
        found = query_traces(sql, folder.windows[0].files)
    except ImportError as error:
        raise InvalidSpec("trace query needs the package duckdb (pip install duckdb)", field="SQL") from error
    for one in found.skipped:
        print_note(f"skipped: {one}")
    if as_json:
        rows = [dict(zip(found.columns, map(_plain, row), strict=True)) for row in found.rows]
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    first = found.rows[0] if found.rows else ()
    for place, column in enumerate(found.columns):
        is_number = bool(first) and isinstance(first[place], int | float | Decimal)
        table.add_column(Text(column), justify="right" if is_number else "left")
    for row in found.rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    print_renderable(table)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
    return " ".join(text.split())
