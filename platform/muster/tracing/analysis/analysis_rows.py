"""The analysis of a run as plain rows, as `muster trace analyze --json` prints them (docs/concepts/analysis.md)."""

from __future__ import annotations

from typing import Any

from muster.tracing.analysis.run_analysis import Report
from muster.tracing.analysis.summary import LabelledTrace
from muster.tracing.efficiency.advice import efficiency_advice
from muster.tracing.efficiency.operator_efficiency import Efficiency, OperatorEfficiency, bound
from muster.tracing.ranks.step_account import StepRow
from muster.tracing.work.hta_breakdown import HtaVersion
from muster.tracing.work.work_kinds import TimeCategory


def analysis_rows(report: Report, *, hta: HtaVersion | None = None) -> dict[str, Any]:
    """The analysis as JSON: the first sentence; `verdicts`, costliest first; `temporal`, `idle` and `clocks` per rank;
    the account of a step, the efficiency of operators; sentences.

    `critical_path` is null unless it was wanted.
    """
    return {
        "headline": report.headline,
        "source_line": report.source_line or None,
        "verdicts": [
            {
                "ranks": list(verdict.ranks),
                "stage": verdict.stage,
                "cause": str(verdict.cause),
                "cost_ms": round(verdict.cost_ms, 3),
                "evidence": verdict.evidence,
                "confidence": verdict.confidence,
                "advice": verdict.advice,
                "place": verdict.place,
            }
            for verdict in report.verdicts
        ],
        "temporal": temporal_rows(report, hta=hta),
        "idle": [
            {
                "rank": row.trace.rank,
                "stream": idle.stream,
                "host_wait_us": idle.host_wait_ns / 1e3,
                "kernel_wait_us": idle.kernel_wait_ns / 1e3,
                "other_us": idle.other_ns / 1e3,
            }
            for row in report.traces
            for idle in (row.trace.hta_stream_idle if hta else row.trace.stream_idle)
        ],
        "clocks": [
            {"rank": clock.rank, "offset_us": clock.offset_ns / 1e3, "error_us": _us(clock.error_ns)}
            for clock in report.clocks
        ],
        "critical_path": _critical_path(report),
        "pipeline": _pipeline(report),
        "account": _account(report),
        "efficiency": _efficiency(report),
        "findings": list(report.findings),
        "notes": list(report.notes),
        "missing": list(report.missing),
        "skipped": [{"file": skipped.file, "reason": skipped.reason} for skipped in report.skipped],
    }


def _account(report: Report) -> dict[str, Any] | None:
    found = report.account
    if found is None:
        return None

    def row(one: StepRow) -> dict[str, Any]:
        parts = {str(part.use): round(part.ms, 3) for part in one.parts}
        places = {
            str(part.use): {place: round(ms, 3) for place, ms in part.places} for part in one.parts if part.places
        }
        step = {} if one.step is None else {"step": one.step}
        return {"rank": one.rank, **step, "ms": round(one.ms, 3), "parts_ms": parts, "places_ms": places}

    return {
        "steps": found.steps,
        "step_ms": round(found.step_ms, 3),
        "lost_ms": round(found.lost_ms, 3),
        "ranks": [row(one) for one in found.ranks],
        "longer_steps": [row(one) for one in found.longer],
    }


def _efficiency(report: Report) -> dict[str, Any] | None:
    found = report.efficiency
    if found is None:
        return None
    limits = found.limits
    return {
        "device": found.device,
        "limits": None
        if limits is None
        else {"tflop_s": {str(p): peak / 1e12 for p, peak in limits.flop_s.items()}, "gb_s": limits.bytes_s / 1e9},
        "covered_pct": round(100 * found.covered_ns / found.compute_ns, 2) if found.compute_ns else None,
        "operators": [_shape_row(found, one) for one in found.operators],
        "advice": [
            {
                "reason": one.reason,
                "cost_ms": round(one.ms, 3),
                "compute_pct": round(100 * one.share, 2),
                "sentence": one.sentence,
            }
            for one in efficiency_advice(found)
        ],
    }


def _shape_row(found: Efficiency, row: OperatorEfficiency) -> dict[str, Any]:
    limit = bound(row, found.limits)
    return {
        "operator": row.operator,
        "sizes": row.sizes,
        "dtype": row.dtype,
        "kernel": row.kernel,
        "calls_per_step": row.calls / found.steps,
        "ms_per_step": round(row.time_ns / 1e6 / found.steps, 6),
        "tflop_s": round(row.flop_s / 1e12, 3) if row.flops else None,
        "gb_s": round(row.bytes_s / 1e9, 3),
        "bound_by": None if limit is None else limit.by,
        "reached_pct": None if limit is None else round(100 * limit.reached, 2),
    }


def _pipeline(report: Report) -> dict[str, Any] | None:
    found = report.pipeline
    if found is None:
        return None
    shares = {"bubble_pct": found.bubble, "ideal_pct": found.ideal, "ideal_of_twice_pct": found.ideal_of_twice}
    percents = {key: round(100 * share, 2) for key, share in shares.items()}
    schedule = {"schedule": found.schedule, "ranks": found.ranks, "micro_batches": found.micro_batches}
    return {**schedule, **percents, "phase_ms": round(found.phase_ms, 3)}


def _critical_path(report: Report) -> dict[str, Any] | None:
    path = report.critical_path
    if path is None:
        return None
    parts = [{"kind": p.kind, "name": p.name, "rank": p.rank, "ms": round(p.ms, 6)} for p in path.parts]
    return {"steps": path.steps, "step_ms": round(path.step_ms, 6), "parts": parts}


def temporal_rows(report: Report, *, hta: HtaVersion | None = None) -> list[dict[str, Any]]:
    """The time of each rank; `hta`: by the rules of this version of HolisticTraceAnalysis."""
    rows = report.traces
    return [row for trace in rows if (row := _hta_row(trace, hta) if hta else _row(trace)) is not None]


def _row(row: LabelledTrace) -> dict[str, Any]:
    trace = row.trace
    seconds = {kind: trace.time_by_category_s[kind.name.lower()] for kind in TimeCategory}
    ratio = trace.overlap_ratio
    return {
        "rank": trace.rank,
        "idle_us": round((seconds[TimeCategory.OTHER] + seconds[TimeCategory.DATA]) * 1e6, 3),
        "compute_us": round((seconds[TimeCategory.COMPUTE] + seconds[TimeCategory.OPTIMIZER]) * 1e6, 3),
        "non_compute_us": round((seconds[TimeCategory.COMMUNICATION] + seconds[TimeCategory.MEMORY]) * 1e6, 3),
        "kernel_us": round(trace.window_s * 1e6, 3),
        "overlap_pct": None if ratio is None else round(100 * ratio, 2),
    }


def _hta_row(row: LabelledTrace, version: HtaVersion) -> dict[str, Any] | None:
    hta = row.trace.hta if version is HtaVersion.V0_5 else row.trace.hta_0_6
    if hta is None:
        return None
    return {
        "rank": row.trace.rank,
        "idle_us": hta.idle_us,
        "compute_us": hta.compute_us,
        "non_compute_us": hta.non_compute_us,
        "kernel_us": hta.kernel_us,
        "overlap_pct": hta.overlap_percent,
    }


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e3
