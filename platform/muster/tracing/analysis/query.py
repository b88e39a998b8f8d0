"""SQL over the summaries of traces: calls and times of each operator, annotation and kernel, by rank.

A summary is the Parquet file that a collector writes beside a trace; traces without one are summed here. DuckDB runs
the query in memory, without access to files and the network. It is not a requirement: `pip install duckdb`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from muster.errors import InvalidSpec, InvalidTrace
from muster.tracing.analysis.trace_summary import RANK_IN_NAME
from muster.tracing.collect.event_totals import EventTotals, encode_totals
from muster.tracing.read.json_stream import DEFAULT_LIMITS, TraceLimits
from muster.tracing.reader import validate_trace
from muster.tracing.runs.trace_files import SUMMARIES
from muster.tracing.shared_folder import open_regular

MAX_SUMMARY_BYTES = 16 << 20
TABLE = "totals"
_COLUMNS = "category VARCHAR, name VARCHAR, calls BIGINT, total_us DOUBLE, min_us DOUBLE, max_us DOUBLE"
_NAMES = "category, name, calls, total_us, min_us, max_us"


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The columns and rows of a query, and the traces that cannot be read, with the reason."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    skipped: tuple[str, ...]


def query_traces(sql: str, traces: Sequence[Path], limits: TraceLimits = DEFAULT_LIMITS) -> QueryResult:
    """Run a query over the table `totals`: `rank` (null if the file's name has none), `trace`, and the columns of a
    summary.

    Raises ImportError without DuckDB, InvalidSpec for SQL that it refuses, InvalidTrace if no trace can be read.
    """
    import duckdb

    skipped = []
    with duckdb.connect(":memory:") as database, TemporaryDirectory() as folder:
        database.execute(f"CREATE TABLE {TABLE} (rank INTEGER, trace VARCHAR, {_COLUMNS})")
        for trace in traces:
            try:
                content = _summary(trace, limits)
            except (InvalidTrace, OSError) as error:
                skipped.append(str(error))
                continue
            copy = Path(folder) / "summary.parquet"
            copy.write_bytes(content)
            named = RANK_IN_NAME.search(trace.name)
            try:
                database.execute(
                    f"INSERT INTO {TABLE} SELECT ?, ?, {_NAMES} FROM read_parquet(?)",
                    [int(named[1]) if named else None, trace.name, str(copy)],
                )
            except duckdb.Error as error:
                skipped.append(f"{trace}: its summary cannot be read: {_first_line(error)}")
        if len(skipped) == len(traces):
            raise InvalidTrace(f"no trace can be read: {'; '.join(skipped[:3])}")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        try:
            found = database.execute(sql)
            columns = tuple(str(column[0]) for column in found.description or ())
            return QueryResult(columns, tuple(found.fetchall()), tuple(skipped))
        except duckdb.Error as error:
            raise InvalidSpec(f"SQL: {_first_line(error)}", field="SQL") from error


def _summary(trace: Path, limits: TraceLimits) -> bytes:
    """The collector's summary of a trace, else one that is made of the trace."""
    stem = trace.name.removesuffix(".gz").removesuffix(".json")
    stored = trace.parent / SUMMARIES / f"{stem}.parquet"
    if stored.is_file() and not stored.is_symlink():
        with open_regular(stored) as file:
            content = file.read(MAX_SUMMARY_BYTES + 1)
        if len(content) > MAX_SUMMARY_BYTES:
            raise InvalidTrace(f"{stored}: must have at most {MAX_SUMMARY_BYTES} bytes")
        return content
    totals = EventTotals()
    with open_regular(trace) as file:
        validate_trace(file, trace, limits.text_bytes, on_events=totals.add)
    return encode_totals(totals.table())


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
