"""The analysis as frames of pandas, with the keys of `muster trace analyze --json` as columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tracing.kineto import DATA, GpuRank, gpu_job

from muster.tracing.analysis.run_analysis import analyse_run
from muster.tracing.frames import analysis_frames, table_frame
from muster.tracing.runs.run_folder import read_run_folder
from muster.tracing.trace_tables import TableOptions
from muster.tracing.work.hta_breakdown import HtaVersion

pytest.importorskip("pandas")


def test_verdicts_and_times_of_ranks_are_frames(tmp_path: Path) -> None:
    folder = gpu_job(tmp_path, [GpuRank(), GpuRank(extra=4)])
    report = analyse_run(read_run_folder(folder), with_critical_path=True)
    frames = analysis_frames(report)
    assert set(frames) == {"verdicts", "temporal", "idle", "clocks", "critical_path"}
    verdicts = frames["verdicts"]
    assert list(verdicts.columns) == ["ranks", "stage", "cause", "cost_ms", "evidence", "confidence", "advice", "place"]
    assert verdicts[["cause", "cost_ms"]].values.tolist() == [["extra-kernels", 20.0]]
    assert frames["temporal"].set_index("rank")["compute_us"].to_dict() == {0: 160_000, 1: 240_000}
    by_hta = analysis_frames(report, hta=HtaVersion.V0_5)["temporal"]
    assert by_hta.set_index("rank")["compute_us"].to_dict() == {0: 120_000, 1: 180_000}
    assert frames["critical_path"]["ms"].sum() > 0


def test_a_table_of_a_trace_is_a_frame() -> None:
    frame = table_frame("kernels", DATA / "ns_resolution.pt.trace.json.gz", TableOptions(hta=True))
    assert frame["calls"].sum() == 4876
    assert frame["total_ns"].is_monotonic_decreasing
