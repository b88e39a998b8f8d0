"""What the steps of a run were spent on, kept up as their records come: a state of bounded size, whatever the number of
steps, from which the account of the run is computed at any time.

Times of steps are kept in classes 0.2% wide, so that the median is exact to that, and the sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from muster.usage.causes import CHECKPOINT, LOST, PRODUCTIVE, SLOW, TRACING, UNKNOWN

_WIDTH: Final = math.log(1.002)
_SHORTEST_S: Final = 1e-6
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


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
class Span:
    """Where a record lies in its file: bytes from and to."""

    start: int = 0
    end: int = 0


class TimeClass(msgspec.Struct, array_like=True):
    """Steps of about the same time: how many were recorded, the sum of their times; how many steps they stand for that
    count, and the seconds of these."""

    recorded: Count = 0
    step_s: float = 0.0
    counted: float = 0.0
    spent_s: float = 0.0


class StepTimes(msgspec.Struct):
    """Times of steps by class."""

    classes: dict[int, TimeClass] = {}
    recorded: Count = 0
    recent_median: float | None = None
    """As of `median_of` recorded steps; computed again after an eighth more."""
    median_of: Count = 0

    def add(self, step_s: float, counted: float, spent_s: float) -> None:
        """A recorded step that took `step_s` and stands for `counted` steps that count, which took `spent_s`."""
        found = self.classes.setdefault(math.floor(math.log(max(step_s, _SHORTEST_S)) / _WIDTH), TimeClass())
        found.recorded += 1
        found.step_s += step_s
        found.counted += counted
        found.spent_s += spent_s
        self.recorded += 1
        if self.recorded - self.median_of > self.median_of // 8:
            self.recent_median, self.median_of = self.median(), self.recorded

    def median(self) -> float | None:
        """The mean of the class that has the median, the upper one of two; None without steps."""
        key = self._median_class()
        return None if key is None else self.classes[key].step_s / self.classes[key].recorded

    def divided(self) -> tuple[float, float]:
        """Seconds of the steps that count: of each up to the median, and above it."""
        key, usual_s = self._median_class(), self.median()
        if key is None or usual_s is None:
            return 0.0, 0.0
        above = [one for number, one in self.classes.items() if number > key]
        slow_s = sum(max(0.0, one.spent_s - one.counted * usual_s) for one in above)
        return sum(one.spent_s for one in self.classes.values()) - slow_s, slow_s

    def _median_class(self) -> int | None:
        left = self.recorded // 2
        for key in sorted(self.classes):
            left -= self.classes[key].recorded
            if left < 0:
                return key
        return None


class AttemptAccount(msgspec.Struct):
    """The steps of one attempt so far. Its records lie between two bytes of their file."""

    attempt: Count
    first_step: Count
    first_at: float
    first_s: float
    last_step: Count
    last_at: float
    start: Count = 0
    end: Count = 0
    again_from: Count | None = None
    """The first step that a later attempt did again."""
    times: StepTimes = msgspec.field(default_factory=StepTimes)
    seconds: dict[str, float] = {}
    """By cause, without the times of steps that count."""

    @classmethod
    def of(cls, step: RecordedStep, span: Span, again_from: int | None = None) -> AttemptAccount:
        """An attempt with its first step."""
        return cls(step.attempt, step.step, step.at, step.step_s, step.step, step.at, span.start, span.end, again_from)

    @property
    def usual_s(self) -> float:
        """The median of the steps but the first, which compiles; of one step its time."""
        median = self.times.median()
        return self.first_s if median is None else median

    def add(self, step: RecordedStep, span: Span) -> None:
        """The next step of this attempt."""
        left_s, count = max(0.0, step.at - self.last_at), max(1, step.step - self.last_step)
        lost = self.lost_of(step.step, count)
        self._spend(LOST, left_s * lost / count)
        left_s, count = left_s * (count - lost) / count, count - lost
        computed_s = min(left_s, count * step.step_s)
        self.times.add(step.step_s, count, computed_s)
        left_s -= computed_s
        for cause, wanted_s in ((CHECKPOINT, step.checkpoint_s), (TRACING, step.tracing_s)):
            taken_s = min(left_s, wanted_s)
            left_s -= taken_s
            self._spend(cause, taken_s)
        usual_s = self.times.recent_median or step.step_s
        if left_s <= usual_s:  # metrics are written between steps
            self._spend(PRODUCTIVE, left_s)
        else:  # the mean of several steps is above the median, but of less than twice as much
            self._spend(SLOW if count > 1 and left_s <= count * usual_s else UNKNOWN, left_s)
        self.last_step, self.last_at, self.end = step.step, max(self.last_at, step.at), span.end

    def lost_of(self, step: int, count: int) -> int:
        """How many of the `count` steps until `step` were done again."""
        return 0 if self.again_from is None else min(count, max(0, step - self.again_from + 1))

    def divided(self, launched_at: float, start: str) -> Iterator[tuple[str, float]]:
        """Seconds by cause from the launch to the end of the last step. `start`: the cause until the first step."""
        whole_s = max(0.0, self.first_at - launched_at)
        computed_s = min(self.first_s, self.usual_s, whole_s)
        yield start, whole_s - computed_s  # import, data, compilation
        yield LOST if self.lost_of(self.first_step, 1) else PRODUCTIVE, computed_s
        productive_s, slow_s = self.times.divided()
        yield PRODUCTIVE, productive_s
        yield SLOW, slow_s
        yield from self.seconds.items()

    def _spend(self, cause: str, seconds: float) -> None:
        if seconds > 0:
            self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds


class RunAccount(msgspec.Struct):
    """The steps of all attempts so far, by attempt."""

    attempts: dict[int, AttemptAccount] = {}

    def add(
        self,
        step: RecordedStep,
        span: Span,
        read_again: Callable[[AttemptAccount], Iterable[tuple[RecordedStep, Span]]],
    ) -> None:
        """The next record. Where it begins an attempt that does steps of earlier ones again, these are lost:
        `read_again` yields the records of such an earlier attempt once more."""
        known = self.attempts.get(step.attempt)
        if known is not None:
            known.add(step, span)
            return
        again_from = min((one.first_step for one in self.attempts.values() if one.attempt > step.attempt), default=None)
        self.attempts[step.attempt] = AttemptAccount.of(step, span, again_from)
        for earlier in tuple(self.attempts.values()):
            lost_before = earlier.again_from is not None and earlier.again_from <= step.step
            if earlier.attempt < step.attempt and earlier.last_step >= step.step and not lost_before:
                self.attempts[earlier.attempt] = _again(earlier, step.step, read_again(earlier))


def _again(account: AttemptAccount, again_from: int, records: Iterable[tuple[RecordedStep, Span]]) -> AttemptAccount:
    """The account of an attempt whose steps from `again_from` on are lost."""
    found: AttemptAccount | None = None
    for step, span in records:
        if step.attempt != account.attempt:
            continue
        if found is None:
            found = AttemptAccount.of(step, span, again_from)
        else:
            found.add(step, span)
    if found is None:  # the records are gone
        account.again_from = again_from
        return account
    return found
