"""Results of the analysis as frames of pandas, which is not a requirement: `pip install pandas`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from muster.tracing.analysis.analysis_rows import analysis_rows
from muster.tracing.analysis.run_analysis import Report
from muster.tracing.trace_tables import TableOptions, read_table
from muster.tracing.work.hta_breakdown import HtaVersion

if TYPE_CHECKING:
    import pandas


def analysis_frames(report: Report, *, hta: HtaVersion | None = None) -> dict[str, pandas.DataFrame]:
    """Frames of `verdicts`, `temporal`, `idle`, `clocks` and, if it was wanted, the parts of the `critical_path`.

    Their columns are the keys of `muster trace analyze --json`. `hta`: `temporal` and `idle` by the rules of this
    version of HolisticTraceAnalysis.
    """
    import pandas

    rows = analysis_rows(report, hta=hta)
    tables = {name: rows[name] for name in ("verdicts", "temporal", "idle", "clocks")}
    if rows["critical_path"] is not None:
        tables["critical_path"] = rows["critical_path"]["parts"]
    return {name: pandas.DataFrame(table) for name, table in tables.items()}


def table_frame(name: str, path: Path, options: TableOptions | None = None) -> pandas.DataFrame:
    """A table of `muster trace table` of one trace, as `read_table` reads it."""
    import pandas

    return pandas.DataFrame(read_table(name, path, options).rows)
