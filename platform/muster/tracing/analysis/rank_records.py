"""The ranks of a set of traces, as `muster trace diff` and the benchmarks compare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.errors import InvalidTrace
from muster.tracing.account.rank_record import RankRecord
from muster.tracing.analysis.captures import newest_capture
from muster.tracing.analysis.completeness import comparable
from muster.tracing.analysis.trace_summary import AnalysedTrace, UnreadableTrace, summarise_trace_files
from muster.tracing.runs.run_folder import read_traces


def read_rank_records(paths: Sequence[Path], *, workers: int = 1) -> list[RankRecord]:
    """The ranks of the newest capture of a run folder, or of the traces of these files, folders and archives.

    Raises InvalidTrace if there is no readable trace with events of steps.
    """
    folder = read_traces(paths)
    analysed = summarise_trace_files(folder.windows[0].files, workers=workers) if folder.windows else ()
    found = [one for one in analysed if isinstance(one, AnalysedTrace)]
    unreadable = [one for one in analysed if isinstance(one, UnreadableTrace)]
    records = [one.record for one in comparable(newest_capture(found).traces)[0] if one.record is not None]
    if not records:
        problems = "; ".join(f"{Path(one.source).name}: {one.reason}" for one in unreadable[:4])
        raise InvalidTrace(
            f"{', '.join(map(str, paths))}: must have a readable trace{f' ({problems})' if problems else ''}"
        )
    return records
