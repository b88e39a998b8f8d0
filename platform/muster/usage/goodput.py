"""What each second of a job was spent on: the account in its status, in which the time that pods ran is divided by what
launcher and trainer recorded in the run folder.

Nothing is estimated: what no record explains is `unknown`, and the parts always sum to the time since the submission.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Literal, TypeAlias

from muster.usage.time_spent import RECOVERY, RUNNING, START, STOPPING, UNKNOWN, WAITING

PRODUCTIVE: Final = "productive"
CHECKPOINT: Final = "checkpoint"
TRACING: Final = "tracing"
SLOW: Final = "slow"
LOST: Final = "lost"
CAUSES: Final = (
    WAITING, START, PRODUCTIVE, CHECKPOINT, TRACING, SLOW, LOST, RECOVERY, STOPPING, RUNNING, UNKNOWN,
)  # fmt: skip
"""In the order in which they are shown. Waiting has its reason behind a slash; running is time of pods that cannot be
divided, since no records of steps can be read."""
_MAX_GAP_STEPS, _MAX_GAP_S = 3.0, 5.0
"""The step that is being computed now is one at most so long."""
_BEFORE: Final = (START, RECOVERY)
"""From which causes time is taken that the status counts as start already: launchers start before pods are ready."""
_GRACE: Final = (STOPPING, f"{WAITING}/Suspended")
"""Causes in the status of time in which a stopped attempt still made steps and saved."""

LaunchKind: TypeAlias = Literal["start", "failure", "end"]


@dataclass(frozen=True, slots=True)
class Launch:
    """What the launcher of rank 0 did in an attempt, and when: started ranks, saw the first one fail, or ended."""

    attempt: int
    at: float
    kind: LaunchKind


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of an attempt that ended at a Unix time: its seconds, and those before it that training waited for a save
    and for the profiler. Of a program that reports, only some steps are recorded."""

    attempt: int
    step: int
    at: float
    step_s: float
    checkpoint_s: float = 0.0
    tracing_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The records of a run folder. `stopped`: attempts that were asked to stop."""

    launches: Sequence[Launch] = ()
    steps: Sequence[RecordedStep] = ()
    stopped: frozenset[int] = frozenset()


def goodput(spent: Mapping[str, int], records: RunRecords, now: float) -> dict[str, int]:
    """Milliseconds by cause. `spent`: by the status (`time_spent`), until `now`."""
    whole_ms = spent.get(RUNNING, 0)
    seconds = _divide(records, now)
    found = {cause: round(amount * 1000) for cause, amount in seconds.items()}
    result = {cause: amount for cause, amount in spent.items() if cause != RUNNING}
    excess = sum(found.values()) - whole_ms
    for sums, causes in ((found, (UNKNOWN,)), (result, _GRACE), (found, _BEFORE)) if excess > 0 else ():
        for cause in causes:
            taken = min(excess, sums.get(cause, 0))
            sums[cause] = sums.get(cause, 0) - taken
            excess -= taken
    if not found or excess > 0:  # no records, or clocks that disagree
        return dict(spent)
    found[UNKNOWN] = found.get(UNKNOWN, 0) - excess
    for cause, amount in found.items():
        result[cause] = result.get(cause, 0) + amount
    return {cause: amount for cause, amount in result.items() if amount}


def by_main_cause(spent: Mapping[str, int]) -> dict[str, int]:
    """The sums of `CAUSES`, in that order, without the reasons for waiting."""
    sums = dict.fromkeys(CAUSES, 0)
    for cause, amount in spent.items():
        sums[cause.partition("/")[0]] += amount
    return {cause: amount for cause, amount in sums.items() if amount}


def _divide(records: RunRecords, now: float) -> dict[str, float]:
    """Seconds by cause of the attempts with a launch and steps."""
    steps: dict[int, list[RecordedStep]] = {}
    for step in records.steps:
        steps.setdefault(step.attempt, []).append(step)
    launches: dict[int, dict[LaunchKind, float]] = {}
    for launch in records.launches:
        launches.setdefault(launch.attempt, {})[launch.kind] = launch.at
    sums: dict[str, float] = {}
    attempts = sorted(launches)
    for number in attempts:
        own = steps.get(number, [])
        later = [step.step for attempt, of_attempt in steps.items() if attempt > number for step in of_attempt[:1]]
        before = launches.get(number - 1, {})
        fresh = number == 0 or number - 1 in records.stopped or ("end" in before and "failure" not in before)
        parts = _divide_attempt(own, launches[number], min(later, default=None), START if fresh else RECOVERY)
        for cause, amount in (*parts, *_tail(own, launches[number], number, records, now, number == attempts[-1])):
            sums[cause] = sums.get(cause, 0.0) + amount
    return sums if steps else {}


def _divide_attempt(
    steps: Sequence[RecordedStep], launch: Mapping[LaunchKind, float], again_from: int | None, start: str
) -> Iterable[tuple[str, float]]:
    """From the launch to the end of the last step. `again_from`: the first step that a later attempt did again."""
    if not steps or "start" not in launch:
        return
    usual_s = median([step.step_s for step in steps[1:]] or [steps[0].step_s])

    def lost_of(step: int, count: int) -> int:
        """How many of the `count` steps until `step` were done again."""
        return 0 if again_from is None else min(count, max(0, step - again_from + 1))

    first = steps[0]
    whole_s = first.at - launch["start"]
    computed_s = min(first.step_s, usual_s, max(0.0, whole_s))
    yield start, whole_s - computed_s  # import, data, compilation
    yield LOST if lost_of(first.step, 1) else PRODUCTIVE, computed_s
    for before, step in pairwise(steps):
        left_s, count = step.at - before.at, max(1, step.step - before.step)
        lost = lost_of(step.step, count)
        yield LOST, left_s * lost / count
        left_s, count = left_s * (count - lost) / count, count - lost
        for cause, wanted_s in (
            (PRODUCTIVE, count * min(step.step_s, usual_s)),
            (CHECKPOINT, step.checkpoint_s),
            (TRACING, step.tracing_s),
            (SLOW, count * (step.step_s - usual_s)),
        ):
            taken_s = min(left_s, max(0.0, wanted_s))
            left_s -= taken_s
            yield cause, taken_s
        if left_s <= usual_s:  # metrics are written between steps
            yield PRODUCTIVE, left_s
        else:  # the mean of several steps is above the median, but of less than twice as much
            yield (SLOW if count > 1 and left_s <= count * usual_s else UNKNOWN), left_s


def _tail(
    steps: Sequence[RecordedStep],
    launch: Mapping[LaunchKind, float],
    attempt: int,
    records: RunRecords,
    now: float,
    is_last: bool,
) -> Iterable[tuple[str, float]]:
    """From the end of the last step, or without one from the launch, to the end of the attempt."""
    since = steps[-1].at if steps else launch.get("start")
    if since is None:
        return
    end = launch.get("end")
    if end is None:
        if is_last and steps:
            usual_s = median(step.step_s for step in steps)
            gap_s = now - since
            yield (PRODUCTIVE if gap_s <= max(_MAX_GAP_S, _MAX_GAP_STEPS * usual_s) else UNKNOWN), max(0.0, gap_s)
        return  # killed with its launcher: the rest is unknown
    failure = launch.get("failure")
    if failure is None or attempt in records.stopped:
        yield STOPPING, end - since
    else:
        yield UNKNOWN, failure - since
        yield RECOVERY, end - failure
