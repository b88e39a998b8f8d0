"""Finds the commit that made a benchmark slower, by jobs: each step compares one commit with the good one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from muster.bench.compare import BenchmarkResult, compare_sides, failure_of, paired_values, traced_changes
from muster.bench.session import Session, Side, WantedRun
from muster.bench.statistics import Criteria, Outcome, RatioInterval, pair_order, paired_ratio
from muster.bench.suite import Benchmark
from muster.tracing.ranks.trace_diff import WorkChange

SHORT = 12


class CommitResult(StrEnum):
    """What is known of a commit."""

    GOOD = "good"
    BAD = "bad"
    BROKEN = "does not run"
    UNDECIDED = "undecided"
    """Not decided with the maximum number of runs; skipped as a commit that does not run."""


@dataclass(frozen=True, slots=True)
class SearchRange:
    """`commits` oldest first; the last one is bad, and what precedes the first is good."""

    commits: Sequence[str]
    results: Mapping[str, CommitResult]

    @property
    def candidates(self) -> Sequence[str]:
        """The commits of which one is the first bad one: from the first after the newest good one to the oldest bad."""
        bad = next(i for i, one in enumerate(self.commits) if self._known(one) is CommitResult.BAD)
        good = max((i for i, one in enumerate(self.commits[:bad]) if self._known(one) is CommitResult.GOOD), default=-1)
        return self.commits[good + 1 : bad + 1]

    @property
    def next_commit(self) -> str | None:
        """The commit without a result that is nearest to the middle of the candidates; None at the end."""
        candidates = self.candidates
        middle = (len(candidates) - 2) / 2  # the last candidate is bad
        unknown = [i for i, one in enumerate(candidates[:-1]) if self._known(one) is None]
        return candidates[min(unknown, key=lambda i: (abs(i - middle), i))] if unknown else None

    def _known(self, commit: str) -> CommitResult | None:
        return CommitResult.BAD if commit == self.commits[-1] else self.results.get(commit)


@dataclass(frozen=True, slots=True)
class StepRule:
    """When a commit is as slow as the bad one: its ratio to the good one is above the (geometric) middle between 1 and
    `bad_ratio`.

    The interval is looked at after each batch of pairs, so the rate of errors is divided by the number of looks.
    """

    bad_ratio: float
    criteria: Criteria

    @property
    def rate(self) -> float:
        """The rate for one bound of one look."""
        given = self.criteria
        return given.false_alarm_rate / (1 + math.ceil((given.max_pairs - given.min_pairs) / given.batch))

    def decide(self, interval: RatioInterval) -> CommitResult:
        middle = math.sqrt(self.bad_ratio)
        if interval.low > middle:
            return CommitResult.BAD
        return CommitResult.GOOD if interval.high < middle else CommitResult.UNDECIDED

    def missing_pairs(self, interval: RatioInterval | None, pairs: int) -> int:
        """How many more pairs to run; 0 once it is decided or the maximum is reached."""
        endless = replace(self.criteria, precision=0.0)
        if interval is not None and self.decide(interval) is not CommitResult.UNDECIDED:
            return max(0, self.criteria.min_pairs - pairs)
        return endless.missing_pairs(interval, pairs)


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
