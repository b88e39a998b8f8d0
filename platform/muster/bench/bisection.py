"""Runs the search of `muster.bench.bisect` by jobs: each step compares one commit with the good one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from muster.bench.bisect import CommitResult, SearchRange, StepRule
from muster.bench.compare import BenchmarkResult, compare_sides, failure_of, paired_values, traced_changes
from muster.bench.session import Session, Side, WantedRun
from muster.bench.statistics import Outcome, RatioInterval, pair_order, paired_ratio
from muster.bench.suite import Benchmark
from muster.tracing.trace_diff import WorkChange

SHORT = 12


@dataclass(frozen=True, slots=True)
class Step:
    """One commit that was compared with the good one. `interval` is None for a commit that does not run."""

    commit: str
    result: CommitResult
    interval: RatioInterval | None
    error: str = ""

    def describe(self) -> str:
        """One line without the commit."""
        if self.interval is not None:
            return f"{self.result}, {self.interval.ratio:.3f} times the time of GOOD"
        return f"{self.result}: {self.error.splitlines()[0]}" if self.error else str(self.result)


@dataclass(frozen=True, slots=True)
class BisectResult:
    """`first_bad` are the commits of which one is the first bad one: one, unless neighbours could not be decided or
    did not run; empty if BAD is not slower. `whole` compares GOOD and BAD, `changes` is what the
    first bad commit changed in traces."""

    benchmark: str
    whole: BenchmarkResult
    steps: tuple[Step, ...] = ()
    first_bad: tuple[str, ...] = ()
    changes: tuple[WorkChange, ...] = ()


@dataclass(frozen=True, slots=True)
class Bisection:
    """`folder_of` returns a folder with the sources of a commit, `done_with` may remove it."""

    session: Session
    good: str
    commits: Sequence[str]
    folder_of: Callable[[str], str]
    done_with: Callable[[str], None]
    note: Callable[[str], None] = field(default=lambda text: None)

    def run(self) -> BisectResult:
        """Compare GOOD and BAD; then search with the benchmark that became slower most."""
        bad = self.commits[-1]
        untraced = replace(
            self.session,
            suite=replace(
                self.session.suite,
                benchmarks=tuple(replace(one, trace_steps="") for one in self.session.suite.benchmarks),
            ),
        )
        results = compare_sides(untraced, self._side("good", self.good), self._side("bad", bad))
        slower = [one for one in results if one.outcome is Outcome.REGRESSION and one.interval is not None]
        if not slower:
            return BisectResult("", max(results, key=_ratio))
        whole = max(slower, key=_ratio)
        benchmark = next(one for one in self.session.suite.benchmarks if one.name == whole.name)
        self.note(f"{whole.name}: BAD takes {_ratio(whole):.3f} times as long as GOOD")
        steps: dict[str, Step] = {}
        search = SearchRange(self.commits, {})
        while (commit := search.next_commit) is not None:
            step = steps[commit] = self._step(benchmark, commit, StepRule(_ratio(whole), self.session.suite.criteria))
            self.note(f"{commit[:SHORT]}: {step.describe()}")
            search = SearchRange(self.commits, {name: one.result for name, one in steps.items()})
            self.done_with(commit)
        first_bad = tuple(search.candidates)
        changes = self._changes(benchmark, first_bad)
        return BisectResult(whole.name, whole, tuple(steps.values()), first_bad, changes)

    def _side(self, label: str, commit: str) -> Side:
        return Side(label, self.folder_of(commit))

    def _step(self, benchmark: Benchmark, commit: str, rule: StepRule) -> Step:
        good, side = self._side(f"good-{commit[:SHORT]}", self.good), self._side(commit[:SHORT], commit)
        results = self.session.results
        while True:
            if error := failure_of(results.runs.values(), benchmark, (good.label, side.label)):
                return Step(commit, CommitResult.BROKEN, None, error)
            done = paired_values(results.runs.values(), benchmark, benchmark.metric, good.label, side.label)
            pairs = len(done[0])
            interval = paired_ratio(*done, rule.rate) if pairs >= self.session.suite.criteria.min_pairs else None
            missing = rule.missing_pairs(interval, pairs)
            if not missing and interval is not None:
                return Step(commit, rule.decide(interval), interval)
            sides = {"A": good, "B": side}
            order = pair_order(missing, first=pairs)
            self.session.execute([WantedRun(benchmark, sides[one], pair) for pair, one in order])

    def _changes(self, benchmark: Benchmark, first_bad: Sequence[str]) -> tuple[WorkChange, ...]:
        """What the newest candidate changed against the commit before all candidates; empty without traces."""
        if not benchmark.trace_steps:
            return ()
        at = self.commits.index(first_bad[0])
        before = self.commits[at - 1] if at else self.good
        sides = (self._side("before", before), self._side("after", first_bad[-1]))
        self.session.execute([WantedRun(benchmark, side, 0, traced=True) for side in sides])
        return traced_changes(self.session, benchmark, "before", "after")


def _ratio(result: BenchmarkResult) -> float:
    return 0.0 if result.interval is None else result.interval.ratio
