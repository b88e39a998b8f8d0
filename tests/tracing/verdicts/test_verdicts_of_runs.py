"""Verdicts from what the trainer records besides the events of a trace: its pipeline schedule and its compilations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Muster, muster
from tests.tracing.kineto import Event, GpuRank, gpu_job, kernel, launch, step, write_trace
from tests.tracing.run_folders import metrics_line, page_of

from muster.tracing.report import build
from muster.tracing.verdicts import Cause

__all__ = ["muster"]  # a fixture
SCHEDULE = {"schedule": "1F1B", "ranks": 2, "micro_batches": 8, "ideal_bubble": 0.111111}


def pipeline(folder: Path, compute_ms: float, schedule: object = SCHEDULE) -> Path:
    """Two stages that compute this long in the 90 ms of forward and backward."""
    for rank in range(2):
        events = []
        for number in range(4):
            at, calls = number * 100_000.0, 10 * number
            events += [
                step(number, at, 100_000),
                Event("forward and backward", at, 500, "user_annotation"),
                *(launch(calls + i, at + 10 + i) for i in range(2)),
                kernel("gemm", at, 500 * compute_ms, launch=calls),
                kernel("gemm", at + 90_000 - 500 * compute_ms, 500 * compute_ms, launch=calls + 1),
                launch(calls + 5, at + 600),
                kernel("adam", at + 91_000, 9_000, launch=calls + 5),
            ]
        path = write_trace(folder / f"{rank}.json", events, rank=rank, world_size=2)
        document = json.loads(path.read_text())
        document["muster"] = {"job": "pipe", "pipeline": schedule}
        path.write_text(json.dumps(document))
    return folder


def test_a_bubble_above_the_ideal_of_the_schedule_has_a_verdict(tmp_path: Path, muster: Muster) -> None:
    folder = pipeline(tmp_path, 54)
    report = build(folder)
    (verdict,) = report.verdicts
    assert (verdict.cause, verdict.ranks, verdict.stage) == (Cause.PIPELINE_BUBBLE, (), None)
    assert verdict.cost_ms == pytest.approx((0.4 - 1 / 9) * 90, abs=0.01)
    found = json.loads(muster("trace", "analyze", str(folder), "--json").out)["pipeline"]
    assert found == {
        "schedule": "1F1B",
        "ranks": 2,
        "micro_batches": 8,
        "bubble_pct": 40.0,
        "ideal_pct": 11.11,
        "ideal_of_twice_pct": 5.88,
        "phase_ms": 90.0,
    }
    assert "does not compute 40.0% of forward and backward" in " ".join(report.findings)


def test_a_bubble_near_the_ideal_has_none_and_is_in_the_findings(tmp_path: Path) -> None:
    report = build(pipeline(tmp_path, 77))
    assert report.verdicts == ()
    assert report.pipeline is not None
    assert report.pipeline.bubble == pytest.approx(1 - 77 / 90)
    assert "would be 11.1%, and with twice the micro-batches 5.9%" in " ".join(report.findings)
    page = page_of(report)
    assert "<dt>pipeline bubble</dt><dd>14.4% <small>11.1% with equal stages</small>" in page
    assert "would be 11.1%" in page


@pytest.mark.parametrize("schedule", [None, {"schedule": 1}, "1F1B"])
def test_traces_without_a_valid_schedule_have_no_bubble(tmp_path: Path, schedule: object) -> None:
    report = build(pipeline(tmp_path, 54, schedule))
    assert report.pipeline is None
    assert report.verdicts == ()


def run_with_records(folder: Path, ranks: list[GpuRank], records: list[dict[str, object]]) -> Path:
    """A run folder of 41 steps, of which 10 to 13 are traced; rank 1 has these records of compilation."""
    for name in ("metrics", "traces/spool", "compilation"):
        (folder / name).mkdir(parents=True)
    traced = gpu_job(folder / "new", ranks)
    for rank in range(len(ranks)):
        (traced / f"rank{rank}.json").rename(folder / f"traces/spool/rank-{rank}.attempt-0.steps-10-14.json")
        (folder / f"metrics/rank-{rank}.jsonl").write_text("".join(metrics_line(i) for i in range(1, 42)))
    place = {"function": "forward", "file": "model.py", "line": 7, "attempt": 0}
    lines = [{"kind": "graph", "step": 1, "seconds": 60, **place}, *({**place, **record} for record in records)]
    (folder / "compilation/rank-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def recompilation(number: int) -> dict[str, object]:
    return {"kind": "graph", "step": number, "seconds": 2.0, "reason": "0/1: tensor 'x' size mismatch at index 0"}


def test_recompilations_in_steps_that_are_not_traced_have_a_verdict_with_their_cause(tmp_path: Path) -> None:
    run = run_with_records(tmp_path, [GpuRank()] * 2, [recompilation(number) for number in (20, 25, 30, 35)])
    (verdict,) = build(run).verdicts
    assert (verdict.cause, verdict.ranks) == (Cause.RECOMPILATION, (1,))
    assert verdict.cost_ms == pytest.approx(4 * 2000 / 40)
    assert verdict.evidence == (
        "up to 200 ms of compilation a step, 4 compilations in 40 steps, most often of "
        "forward (model.py:7): 0/1: tensor 'x' size mismatch at index 0"
    )


def test_compilation_in_the_first_step_has_no_verdict(tmp_path: Path) -> None:
    assert build(run_with_records(tmp_path, [GpuRank()] * 2, [])).verdicts == ()


def test_recompilations_in_traced_steps_name_their_recorded_cause(tmp_path: Path) -> None:
    run = run_with_records(tmp_path, [GpuRank(), GpuRank(compile_ms=100)], [recompilation(11)])
    first = build(run).verdicts[0]
    assert (first.cause, first.ranks) == (Cause.RECOMPILATION, (1,))
    assert first.cost_ms == pytest.approx(100)
    assert "size mismatch" in first.evidence


def test_graph_breaks_have_a_verdict_only_if_the_devices_idle(tmp_path: Path) -> None:
    broken: list[dict[str, object]] = [{"kind": "graph_break", "step": 1, "reason": "Failed to trace builtin operator"}]
    assert build(run_with_records(tmp_path / "busy", [GpuRank()] * 2, broken)).verdicts == ()
    idle = GpuRank(blocked=("forward", 20, 1))
    (verdict,) = build(run_with_records(tmp_path / "idle", [idle] * 2, broken)).verdicts
    assert (verdict.cause, verdict.ranks) == (Cause.GRAPH_BREAK, ())
    assert verdict.cost_ms == pytest.approx(20, abs=0.1)
    assert verdict.evidence.endswith("most often at forward (model.py:7): Failed to trace builtin operator")
