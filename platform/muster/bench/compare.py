"""Compares two sides of a suite: which runs are needed, and what their records say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import msgspec

from muster.bench.results import RunKey, RunRecord, program_name, read_results, values_by_repetition
from muster.bench.session import Session, Side, WantedRun
from muster.bench.statistics import (
    MIN_PAIRS,
    Criteria,
    Outcome,
    RatioInterval,
    pair_order,
    paired_ratio,
    unpaired_ratio,
)
from muster.bench.suite import METRICS, Benchmark, Metric, Suite
from muster.errors import InvalidSpec, InvalidTrace
from muster.tracing.analysis.rank_records import read_rank_records
from muster.tracing.ranks.trace_diff import WorkChange, diff_work


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """One benchmark of a comparison.

    `outcome` is None if a side has no times; then `error` says why. `intervals` has every recorded metric, `metric`
    decides. `medians_s` are the medians over the runs of each side. `changes` are kernels and collectives, the largest
    first, if both sides were traced.
    """

    name: str
    metric: Metric
    outcome: Outcome | None
    intervals: Mapping[Metric, RatioInterval]
    medians_s: tuple[float, float] | None
    error: str = ""
    changes: tuple[WorkChange, ...] = ()

    @property
    def interval(self) -> RatioInterval | None:
        """That of the deciding metric."""
        return self.intervals.get(self.metric)


def compare_sides(session: Session, a: Side, b: Side) -> tuple[BenchmarkResult, ...]:
    """Run pairs of both sides until each benchmark is decided with the wanted precision, then the traced runs."""
    benchmarks = session.suite.benchmarks
    while wanted := [
        run for one in benchmarks for run in missing_runs(session.results.runs, one, a, b, session.suite.criteria)
    ]:
        session.execute(wanted)
    traced = [
        WantedRun(one, side, 0, traced=True)
        for one in benchmarks
        if one.trace_steps and not failure_of(session.results.runs.values(), one, (a.label, b.label))
        for side in (a, b)
    ]
    session.execute(traced)
    return tuple(evaluate(session, one, a.label, b.label) for one in benchmarks)


def evaluate(session: Session, benchmark: Benchmark, a: str, b: str) -> BenchmarkResult:
    """The result of a benchmark, with what changed in the traces."""
    runs = session.results.runs.values()
    found = evaluate_runs(runs, benchmark, (a, b), session.suite.criteria, paired=True)
    return replace(found, changes=traced_changes(session, benchmark, a, b))


def traced_changes(session: Session, benchmark: Benchmark, a: str, b: str) -> tuple[WorkChange, ...]:
    """What changed between the traced runs of two sides; empty unless both have a readable trace."""
    folders = {key: run.folder for key, run in session.results.runs.items() if run.traced and not run.error}
    return _work_changes(folders, benchmark.name, a, b)


def missing_runs(
    runs: Mapping[RunKey, RunRecord], benchmark: Benchmark, a: Side, b: Side, criteria: Criteria
) -> list[WantedRun]:
    """The next runs of a benchmark; none once it has failed or is decided."""
    if failure_of(runs.values(), benchmark, (a.label, b.label)):
        return []
    done = paired_values(runs.values(), benchmark, benchmark.metric, a.label, b.label)
    pairs = len(done[0])
    interval = paired_ratio(*done, criteria.false_alarm_rate) if pairs >= criteria.min_pairs else None
    sides = {"A": a, "B": b}
    order = pair_order(criteria.missing_pairs(interval, pairs), first=pairs)
    return [WantedRun(benchmark, sides[side], pair) for pair, side in order]


def failure_of(runs: Iterable[RunRecord], benchmark: Benchmark, labels: Sequence[str]) -> str:
    """The error of the first failed run of these sides, or why its metric is missing; empty if there is none."""
    programs = [program_name(benchmark.name, label) for label in labels]
    for run in runs:
        if run.program not in programs or run.traced:
            continue
        if run.error:
            return f"{run.program}, run {run.repetition}: {run.error}"
        if run.value(benchmark.metric, benchmark.warmup) is None:
            return f"{run.program}, run {run.repetition}: metric {benchmark.metric} was not recorded"
    return ""


def evaluate_runs(
    runs: Iterable[RunRecord], benchmark: Benchmark, labels: tuple[str, str], criteria: Criteria, *, paired: bool
) -> BenchmarkResult:
    """The result of a benchmark from the records of two sides, which were interleaved if `paired`."""
    runs = tuple(runs)
    error = failure_of(runs, benchmark, labels)
    intervals: dict[Metric, RatioInterval] = {}
    medians = None
    for metric in METRICS:
        before, after = _values(runs, benchmark, metric, labels)
        sides = _in_pairs(before, after) if paired else (list(before.values()), list(after.values()))
        if min(map(len, sides)) >= MIN_PAIRS:
            ratio = paired_ratio if paired else unpaired_ratio
            intervals[metric] = ratio(*sides, criteria.false_alarm_rate)
            if metric == benchmark.metric:
                medians = (median(sides[0]), median(sides[1]))
    decisive = intervals.get(benchmark.metric)
    if decisive is None and not error:
        error = f"both sides need at least {MIN_PAIRS} runs with the metric {benchmark.metric}"
    outcome = None if error or decisive is None else criteria.decide(decisive)
    return BenchmarkResult(benchmark.name, benchmark.metric, outcome, intervals, medians, error)


def paired_values(
    runs: Iterable[RunRecord], benchmark: Benchmark, metric: Metric, a: str, b: str
) -> tuple[list[float], list[float]]:
    """The values of repetitions that both sides have, in order."""
    return _in_pairs(*_values(tuple(runs), benchmark, metric, (a, b)))


def _in_pairs(before: Mapping[int, float], after: Mapping[int, float]) -> tuple[list[float], list[float]]:
    both = sorted(before.keys() & after.keys())
    return [before[repetition] for repetition in both], [after[repetition] for repetition in both]


def _values(
    runs: Sequence[RunRecord], benchmark: Benchmark, metric: Metric, labels: tuple[str, str]
) -> tuple[dict[int, float], dict[int, float]]:
    before, after = (values_by_repetition(runs, program_name(benchmark.name, one), metric, benchmark) for one in labels)
    return before, after


def suite_runs(suite: Suite, side: Side) -> list[WantedRun]:
    """The runs of `muster bench run`: the maximum of each benchmark in turn, then the traced ones."""
    runs = [
        WantedRun(one, side, repetition) for repetition in range(suite.criteria.max_pairs) for one in suite.benchmarks
    ]
    return runs + [WantedRun(one, side, 0, traced=True) for one in suite.benchmarks if one.trace_steps]


def compare_recorded(a: Path, b: Path) -> tuple[BenchmarkResult, ...]:
    """Compare two files of `muster bench run`, by the benchmarks and criteria of the first. Raises `InvalidSpec`."""
    (plan, before, _), (other, after, _) = read_results(a), read_results(b)
    for path, one in ((a, plan), (b, other)):
        if one.get("kind") != "run":
            raise InvalidSpec(f"{path}: must be a file of `muster bench run`; got one of bench {one.get('kind')}")
    suite = Suite.from_json(plan["suite"])
    runs = [*before.values(), *(_renamed(run) for run in after.values())]
    folders = {run.key: run.folder for run in runs if run.traced and not run.error}
    return tuple(
        replace(
            evaluate_runs(runs, one, ("A", "B"), suite.criteria, paired=False),
            changes=_work_changes(folders, one.name, "A", "B"),
        )
        for one in suite.benchmarks
    )


def _renamed(run: RunRecord) -> RunRecord:
    """A recorded run as one of side B."""
    return msgspec.structs.replace(run, program=program_name(run.program.rpartition("@")[0], "B"))


def _work_changes(folders: Mapping[RunKey, str], benchmark: str, a: str, b: str) -> tuple[WorkChange, ...]:
    """Kernels, operators and collectives by change; empty unless both sides have a readable trace. `folders` are those
    of the traced runs."""
    before, after = (folders.get(RunKey(program_name(benchmark, side), 0, True), "") for side in (a, b))
    if not before or not after:
        return ()
    try:
        return diff_work(read_rank_records([Path(before)]), read_rank_records([Path(after)]))
    except (InvalidTrace, OSError):
        return ()
