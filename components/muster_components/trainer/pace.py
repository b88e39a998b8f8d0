"""How fast this rank makes its steps, beside its own last ones."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

STEPS: Final = 100
"""The last steps with which a step is compared."""
MIN_STEPS: Final = 20
RECENT_STEPS: Final = 10


class StepPace:
    """The times of the last steps."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=STEPS + 1)

    def add(self, step_time_s: float) -> None:
        self._times_s.append(step_time_s)

    def newest(self) -> float | None:
        """The time of the newest step as a multiple of the median of the 100 before it; None before there are 20."""
        *before, newest = self._times_s or (0.0,)
        usual_s = median(before) if len(before) >= MIN_STEPS else 0.0
        return newest / usual_s if usual_s > 0 else None

    def recent(self) -> float | None:
        """The median of the last 10 steps as a multiple of the median of the steps before them: 2 is twice as slow."""
        times_s = list(self._times_s)
        before, recent = times_s[:-RECENT_STEPS], times_s[-RECENT_STEPS:]
        usual_s = median(before) if len(before) >= MIN_STEPS else 0.0
        return median(recent) / usual_s if usual_s > 0 else None
