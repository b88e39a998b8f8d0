"""The output of `muster bench`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.bench.bisection import SHORT, BisectResult
from muster.bench.compare import BenchmarkResult, failure_of
from muster.bench.results import RunKey, RunRecord, program_name, values_by_repetition
from muster.bench.statistics import Outcome, RatioInterval
from muster.bench.suite import METRICS, Suite
from muster.tracing.formatting import format_seconds
from muster.tracing.ranks.trace_diff import WorkChange

_MAX_CHANGES = 5
_STYLES = {Outcome.REGRESSION: "red", Outcome.IMPROVEMENT: "green", Outcome.UNCHANGED: "dim"}


def run_rows(suite: Suite, runs: Mapping[RunKey, RunRecord]) -> list[dict[str, Any]]:
    """One per benchmark: `name, runs, metric, metrics` (seconds: median, min, max over runs), `error`."""
    rows = []
    for one in suite.benchmarks:
        metrics = {}
        for metric in METRICS:
            values = list(values_by_repetition(runs.values(), program_name(one.name, "A"), metric, one).values())
            if values:
                metrics[metric] = {"median": median(values), "min": min(values), "max": max(values)}
        count = sum(run.program == program_name(one.name, "A") and not run.traced for run in runs.values())
        error = failure_of(runs.values(), one, ("A",))
        rows.append({"name": one.name, "runs": count, "metric": one.metric, "metrics": metrics, "error": error})
    return rows


def run_table(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """Medians over runs, with the range of the deciding metric."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("BENCHMARK", "RUNS", "WALL", "CPU", "TOTAL CPU", "RANGE"):
        table.add_column(name)
    for row in rows:
        known = row["metrics"]
        medians = [format_seconds(known[metric]["median"]) if metric in known else "" for metric in METRICS]
        decisive = known.get(row["metric"])
        span = f"{format_seconds(decisive['min'])} to {format_seconds(decisive['max'])}" if decisive else ""
        table.add_row(row["name"], str(row["runs"]), *medians, row["error"] or span)
    return table


def comparison_rows(results: Sequence[BenchmarkResult]) -> list[dict[str, Any]]:
    """One per benchmark; the keys are documented in docs/tasks/regression.md."""
    return [_comparison_row(one) for one in results]


def _comparison_row(result: BenchmarkResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "outcome": None if result.outcome is None else str(result.outcome),
        "metric": result.metric,
        "medianSeconds": None if result.medians_s is None else {"a": result.medians_s[0], "b": result.medians_s[1]},
        "metrics": {metric: _interval_row(interval) for metric, interval in result.intervals.items()},
        "changes": [change_row(change) for change in result.changes],
        "error": result.error,
    }


def _interval_row(interval: RatioInterval) -> dict[str, Any]:
    return {
        "ratio": interval.ratio,
        "low": interval.low,
        "high": interval.high,
        "runs": interval.samples,
        "interleaved": interval.paired,
    }


def change_row(change: WorkChange) -> dict[str, Any]:
    """One kernel, operator or collective, as JSON."""
    return {
        "kind": change.kind,
        "name": change.name,
        "aMilliseconds": change.a_ms,
        "bMilliseconds": change.b_ms,
        "aCalls": change.a_calls,
        "bCalls": change.b_calls,
    }


def comparison_table(results: Sequence[BenchmarkResult]) -> RenderableType:
    """The decision with its interval, the other metrics, then what changed in traces."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("BENCHMARK", "RESULT", "A", "B", "CHANGE", "RUNS", "OTHER METRICS"):
        table.add_column(name)
    for one in results:
        if one.outcome is None or one.interval is None or one.medians_s is None:
            table.add_row(one.name, Text("failed", style="red"), "", "", "", "", one.error)
            continue
        others = ", ".join(
            f"{name} {_percent(value.ratio)}" for name, value in one.intervals.items() if name != one.metric
        )
        table.add_row(
            one.name,
            Text(str(one.outcome), style=_STYLES[one.outcome]),
            *(format_seconds(value) for value in one.medians_s),
            f"{one.metric} {_describe(one.interval)}",
            str(one.interval.samples),
            others,
        )
    changes = [Text(f"{one.name}: {line}") for one in results for line in change_lines(one.changes)]
    return Group(table, *changes)


def change_lines(changes: Sequence[WorkChange]) -> list[str]:
    """The largest changes, as sentences."""
    return [change.describe() for change in changes[:_MAX_CHANGES]]


def bisect_row(result: BisectResult, describe: Callable[[str], str]) -> dict[str, Any]:
    """The keys are documented in docs/tasks/regression.md."""
    return {
        "benchmark": result.benchmark,
        "whole": _comparison_row(result.whole),
        "firstBad": [{"commit": commit, "description": describe(commit)} for commit in result.first_bad],
        "steps": [
            {
                "commit": step.commit,
                "result": str(step.result),
                "interval": None if step.interval is None else _interval_row(step.interval),
                "error": step.error,
            }
            for step in result.steps
        ],
        "changes": [change_row(change) for change in result.changes],
    }


def bisect_text(result: BisectResult, describe: Callable[[str], str]) -> RenderableType:
    """The commit, or the commits of which one it is, and what it changed."""
    if not result.first_bad:
        return Group(Text("BAD is not slower than GOOD in any benchmark:"), comparison_table([result.whole]))
    if len(result.first_bad) == 1:
        head = [f"{result.benchmark} became slower with {describe(result.first_bad[0])}"]
    else:
        unclear = "these commits; those before the last do not run or could not be decided"
        head = [f"{result.benchmark} became slower with one of {unclear}:"]
        head += [f"  {describe(commit)}" for commit in result.first_bad]
    steps = [f"  {step.commit[:SHORT]} {step.describe()}" for step in result.steps]
    return Group(*(Text(line) for line in (*head, *change_lines(result.changes), "steps:", *steps)))


def _describe(interval: RatioInterval) -> str:
    return f"{_percent(interval.ratio)} ({_percent(interval.low)} to {_percent(interval.high)})"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}%"
