"""Reads the ranks of a run for comparisons."""

from __future__ import annotations

from pathlib import Path

from muster.errors import InvalidTrace
from muster.tracing.analysis import AnalysedTrace, summarise_trace_files
from muster.tracing.rank_record import RankRecord
from muster.tracing.run_folder import read_run_folder, read_selected_traces


def read_rank_records(path: Path, *, workers: int = 1) -> list[RankRecord]:
    """The ranks of the newest window of steps of a run folder, any folder of traces, or one trace.

    Raises InvalidTrace if there is no readable trace with a rank and steps.
    """
    folder = read_selected_traces([path]) if path.is_file() else read_run_folder(path)
    analysed = summarise_trace_files(folder.windows[0].files, workers=workers) if folder.windows else ()
    records = [one.record for one in analysed if isinstance(one, AnalysedTrace) and one.record is not None]
    if not records:
        raise InvalidTrace(f"{path}: must have a readable trace with a rank and steps (ProfilerStep)")
    return records
