"""The profiled steps of a trace, and the skew between ranks in each step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from muster.tracing.events import EventKind, Trace

STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)")


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One profiled step of one rank; nanoseconds since the trace's origin."""

    number: int
    start: int
    end: int

    @property
    def duration_ns(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class StepSkew:
    """Step times of the ranks in one step, in seconds: fastest, median, slowest, and which rank was slowest."""

    step: int
    fastest_s: float
    median_s: float
    slowest_s: float
    slowest_rank: int

    @property
    def spread(self) -> float:
        """(slowest - fastest) / median; 0 if the median is 0."""
        return (self.slowest_s - self.fastest_s) / self.median_s if self.median_s > 0 else 0.0


def profiled_steps(trace: Trace) -> tuple[ProfiledStep, ...]:
    """The `ProfilerStep#n` annotations of a trace, by start time; empty if `profiler.step()` was never called."""
    numbers = {code: int(m.group(1)) for code, name in enumerate(trace.names) if (m := STEP.match(name))}
    if not numbers:
        return ()
    events = trace.events
    found = [
        ProfiledStep(numbers[int(events.name[i])], int(events.start[i]), int(events.end[i]))
        for code in numbers
        for i in (((events.name == code) & (events.kind == EventKind.ANNOTATION)).nonzero()[0])
    ]
    return tuple(sorted(found, key=lambda step: (step.start, step.number)))


def step_skews(seconds: Mapping[int, Mapping[int, float]]) -> tuple[StepSkew, ...]:
    """The skew of each step that at least two ranks report; `seconds` maps rank to step to step time in seconds."""
    by_step: dict[int, list[tuple[float, int]]] = {}
    for rank, steps in seconds.items():
        for step, s in steps.items():
            by_step.setdefault(step, []).append((s, rank))
    return tuple(_step_skew(step, sorted(times)) for step, times in sorted(by_step.items()) if len(times) > 1)


def _step_skew(step: int, times: Sequence[tuple[float, int]]) -> StepSkew:
    return StepSkew(
        step=step,
        fastest_s=times[0][0],
        median_s=median(s for s, _ in times),
        slowest_s=times[-1][0],
        slowest_rank=times[-1][1],
    )
