"""The work that changed between the traced runs of two sides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from muster.bench.results import RunKey, program_name
from muster.errors import InvalidTrace
from muster.tracing.rank_records import read_rank_records
from muster.tracing.trace_diff import WorkChange, diff_work


def work_changes(folders: Mapping[RunKey, str], benchmark: str, a: str, b: str) -> tuple[WorkChange, ...]:
    """Kernels, operators and collectives by change; empty unless both sides have a readable trace. `folders` are those
    of the traced runs."""
    before, after = (folders.get(RunKey(program_name(benchmark, side), 0, True), "") for side in (a, b))
    if not before or not after:
        return ()
    try:
        return diff_work(read_rank_records(Path(before)), read_rank_records(Path(after)))
    except (InvalidTrace, OSError):
        return ()
