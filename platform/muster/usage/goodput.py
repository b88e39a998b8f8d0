"""What each second of a job was spent on: the account in its status, in which the time that pods ran is divided by what
launcher and trainer recorded in the run folder.

Nothing is spread: what no record explains is `unknown`, and the parts always sum to the time since the submission.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from muster.api.spec import RunTimeStatus, TimeSpentStatus
from muster.cluster import RunTime
from muster.usage.causes import (
    CAUSES,
    CHECKPOINT,
    LOST,
    PRODUCTIVE,
    RECOVERY,
    RUNNING,
    SLOW,
    START,
    STOPPING,
    TRACING,
    UNKNOWN,
    WAITING,
)
from muster.usage.run_account import AttemptAccount, RecordedStep, RunAccount, Span
from muster.usage.segments import Charged
from muster.usage.time_spent import recorded_time, sums_until

_MAX_GAP_STEPS, _MAX_GAP_S = 3.0, 5.0
"""The step that is being computed now is one at most so long."""
_BEFORE: Final = (START, RECOVERY)
"""From which causes time is taken that the status counts as start already: launchers start before pods are ready."""
_GRACE: Final = (STOPPING, f"{WAITING}/Suspended")
"""Causes in the status of time in which a stopped attempt still made steps and saved."""
_OF_STEPS: Final = (PRODUCTIVE, CHECKPOINT, TRACING, SLOW)
_MAX_RUNS: Final = 16
"""In a status; earlier ones are added up."""

LaunchKind: TypeAlias = Literal["start", "failure", "end"]


@dataclass(frozen=True, slots=True)
class Launch:
    """What the launcher of rank 0 did in an attempt, and when: started ranks, saw the first one fail, or ended."""

    attempt: int
    at: float
    kind: LaunchKind


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run folder. `stopped`: attempts that were asked to stop."""

    launches: Sequence[Launch] = ()
    steps: RunAccount = field(default_factory=RunAccount)
    stopped: frozenset[int] = frozenset()


def account_of_steps(steps: Sequence[RecordedStep]) -> RunAccount:
    """The account of steps that are all at hand."""
    account = RunAccount()
    seen: list[tuple[RecordedStep, Span]] = []
    for step in steps:
        account.add(step, Span(), lambda _: tuple(seen))
        seen.append((step, Span()))
    return account


def divide(records: RunRecords, now: float) -> RunTime | None:
    """What the attempts with a launch and steps spent until `now`; None without steps of a launched attempt."""
    launches: dict[int, dict[LaunchKind, float]] = {}
    for launch in records.launches:
        launches.setdefault(launch.attempt, {})[launch.kind] = launch.at
    own = {number: one for number, one in records.steps.attempts.items() if "start" in launches.get(number, {})}
    if not own:
        return None
    sums: dict[str, float] = {}
    newest = max(launches)
    for number in sorted(launches):
        steps, before = own.get(number), launches.get(number - 1, {})
        fresh = number == 0 or number - 1 in records.stopped or ("end" in before and "failure" not in before)
        parts = () if steps is None else steps.divided(launches[number]["start"], START if fresh else RECOVERY)
        was_stopped = number in records.stopped
        for cause, amount in (*parts, *_tail(steps, launches[number], was_stopped, now if number == newest else None)):
            sums[cause] = sums.get(cause, 0.0) + amount
    milliseconds = {cause: round(amount * 1000) for cause, amount in sums.items()}
    first, last = own[min(own)], own[max(own)]
    return RunTime(
        first.attempt, first.first_step, last.last_step, now, {c: ms for c, ms in milliseconds.items() if ms}
    )


def _tail(
    steps: AttemptAccount | None, launch: Mapping[LaunchKind, float], was_stopped: bool, now: float | None
) -> Iterator[tuple[str, float]]:
    """From the end of the last step, or without one from the launch, to the end of the attempt; `now`: of the newest
    attempt."""
    since = steps.last_at if steps is not None else launch.get("start")
    if since is None:
        return
    end = launch.get("end")
    if end is None:
        if now is not None and steps is not None:
            gap_s = max(0.0, now - since)
            yield (PRODUCTIVE if gap_s <= max(_MAX_GAP_S, _MAX_GAP_STEPS * steps.usual_s) else UNKNOWN), gap_s
        return  # killed with its launcher: the rest is unknown
    failure = launch.get("failure")
    if failure is None or was_stopped:
        yield STOPPING, max(0.0, end - since)
    else:
        yield UNKNOWN, max(0.0, failure - since)
        yield RECOVERY, max(0.0, end - failure)


def goodput(
    spent: Mapping[str, int], runs: Sequence[RunTime], now: float, *, is_running: bool = False
) -> dict[str, int]:
    """Milliseconds by cause. `spent`: by the status (`time_spent`), until `now`; `runs`: divide its running time. What
    has run since the last of them is not divided yet where the job still runs."""
    whole_ms = spent.get(RUNNING, 0)
    found: dict[str, int] = {}
    for run in runs:
        for cause, amount in run.milliseconds.items():
            found[cause] = found.get(cause, 0) + amount
    result = {cause: amount for cause, amount in spent.items() if cause != RUNNING}
    excess = sum(found.values()) - whole_ms
    for sums, causes in ((found, (UNKNOWN,)), (result, _GRACE), (found, _BEFORE)) if excess > 0 else ():
        for cause in causes:
            taken = min(excess, sums.get(cause, 0))
            sums[cause] = sums.get(cause, 0) - taken
            excess -= taken
    if not found or excess > 0:  # no records, or clocks that disagree
        return dict(spent)
    newer = min(-excess, max(0, round((now - runs[-1].at) * 1000))) if is_running else 0
    found[RUNNING] = newer
    found[UNKNOWN] = found.get(UNKNOWN, 0) - excess - newer
    for cause, amount in found.items():
        result[cause] = result.get(cause, 0) + amount
    return {cause: amount for cause, amount in result.items() if amount}


def job_time(job: Charged, now: float, run: RunTime | None = None) -> dict[str, int]:
    """Milliseconds by cause of a job, until `now` or its end: by its status, and by `run` where its run folder can be
    read here. Empty for one without a submission time."""
    recorded = recorded_time(job.metadata, job.status)
    return {} if recorded is None else account_until(recorded, now, run)


def account_until(recorded: TimeSpentStatus, now: float, run: RunTime | None = None) -> dict[str, int]:
    """As `job_time`, of the account in a status."""
    until = recorded.since if recorded.cause == "" else now
    runs = next_runs([_from_status(one) for one in recorded.runs], run)
    return goodput(sums_until(recorded, now), runs, until, is_running=recorded.cause == RUNNING)


def next_runs(before: Sequence[RunTime], new: RunTime | None) -> tuple[RunTime, ...]:
    """The divisions with that of the folder of the newest pods. It covers the attempts whose records are there; those
    before it had folders of their own. Of their steps those that are done again are lost: their part of the steps."""
    if new is None or (before and new.at < before[-1].at):
        return tuple(before)
    kept = [_without_lost(one, new.first_step) for one in before if one.attempt < new.attempt]
    if len(kept) >= _MAX_RUNS:
        kept = [_sum_of(kept[: len(kept) - _MAX_RUNS + 2]), *kept[len(kept) - _MAX_RUNS + 2 :]]
    return (*kept, new)


def _without_lost(run: RunTime, first_step: int) -> RunTime:
    """A division whose steps from `first_step` on are done again."""
    if run.last_step < first_step or run.last_step < run.first_step:
        return run
    count = run.last_step - run.first_step + 1
    lost = run.last_step - max(first_step, run.first_step) + 1
    milliseconds = dict(run.milliseconds)
    for cause in _OF_STEPS:
        moved = milliseconds.get(cause, 0) * lost // count
        milliseconds[cause] = milliseconds.get(cause, 0) - moved
        milliseconds[LOST] = milliseconds.get(LOST, 0) + moved
    left = {cause: amount for cause, amount in milliseconds.items() if amount}
    return replace(run, last_step=max(first_step - 1, run.first_step - 1, 0), milliseconds=left)


def _sum_of(runs: Sequence[RunTime]) -> RunTime:
    sums: dict[str, int] = {}
    for run in runs:
        for cause, amount in run.milliseconds.items():
            sums[cause] = sums.get(cause, 0) + amount
    return RunTime(runs[0].attempt, runs[-1].first_step, runs[-1].last_step, runs[-1].at, sums)


def runs_with(recorded: Sequence[RunTimeStatus], new: RunTime) -> list[RunTimeStatus]:
    """The divisions of a status with a newer one."""
    return [
        RunTimeStatus(
            attempt=run.attempt,
            first_step=run.first_step,
            last_step=run.last_step,
            at=run.at,
            milliseconds=dict(run.milliseconds),
        )
        for run in next_runs([_from_status(run) for run in recorded], new)
    ]


def _from_status(run: RunTimeStatus) -> RunTime:
    return RunTime(run.attempt, run.first_step, run.last_step, run.at, run.milliseconds)


def by_main_cause(spent: Mapping[str, int]) -> dict[str, int]:
    """The sums of `CAUSES`, in that order, without the reasons for waiting."""
    sums = dict.fromkeys(CAUSES, 0)
    for cause, amount in spent.items():
        sums[cause.partition("/")[0]] += amount
    return {cause: amount for cause, amount in sums.items() if amount}
