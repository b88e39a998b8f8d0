"""The work that changed between the traced runs of two sides."""

from __future__ import annotations

from pathlib import Path

from muster.bench.results import RunKey, program_name
from muster.errors import InvalidTrace
from muster.tracing.analysis import AnalysedTrace, summarise_trace_files
from muster.tracing.rank_record import RankRecord
from muster.tracing.run_folder import read_run_folder
from muster.tracing.trace_diff import WorkChange, diff_work


def work_changes(folders: dict[RunKey, str], benchmark: str, a: str, b: str) -> tuple[WorkChange, ...]:
    """Kernels, operators and collectives by change; empty unless both sides have a readable trace. `folders` are those
    of the traced runs."""
    before, after = (_records(folders.get(RunKey(program_name(benchmark, side), 0, True), "")) for side in (a, b))
    return diff_work(before, after) if before and after else ()


def _records(folder: str) -> list[RankRecord]:
    """The ranks of the newest window of steps."""
    if not folder:
        return []
    try:
        windows = read_run_folder(Path(folder)).windows
    except InvalidTrace:
        return []
    analysed = summarise_trace_files(windows[0].files) if windows else ()
    return [one.record for one in analysed if isinstance(one, AnalysedTrace) and one.record is not None]
