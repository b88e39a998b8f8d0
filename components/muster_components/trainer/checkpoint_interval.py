"""After which steps to save: every N steps, or (`auto`) so that saves and failures together cost the least time.

Saves that cost training C seconds each, and failures M seconds apart on average, waste least if a save begins every
sqrt(2CM) seconds (Young 1974). Daly's form (2006) is also right where C is not small beside M:
sqrt(2CM) (1 + sqrt(C/2M)/3 + C/18M) - C for C < 2M, else M.

C is measured: the wait, and how much longer than the median the next step takes. M counts the failures of the earlier
attempts of this run in the time that it has trained, and one more in `PRIOR_DEVICE_S` on each device: 419 interruptions
of 16,384 GPUs in 54 days (Llama 3, 2024) are one in 50,000 hours of a GPU.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

PRIOR_DEVICE_S: Final = 50_000 * 3600.0
FIRST_STEPS: Final = 10
"""Before the first save of `auto`, which measures the cost."""
MAX_S: Final = 1800.0
"""Small runs also fail by what the statistics of large ones do not contain."""
_MIN_COST_S: Final = 1e-3
_CHANGE: Final = 1.2
"""A new interval is reported if it differs by this factor."""


@dataclass(frozen=True, slots=True)
class FailureHistory:
    """What earlier attempts of the run say: how many ended by a failure, and how long they trained together."""

    failures: int = 0
    trained_s: float = 0.0

    def mean_time_between_s(self, ranks: int, attempt_s: float) -> float:
        """Expected seconds between failures, after `attempt_s` of the present attempt on `ranks` devices."""
        return (PRIOR_DEVICE_S / ranks + self.trained_s + attempt_s) / (1 + self.failures)


def read_history(events: Path, attempt: int) -> FailureHistory:
    """The history before `attempt`, from the events of the run. An attempt that was asked to stop did not fail. Lines
    that cannot be read are skipped."""
    spans: dict[int, tuple[float, float]] = {}
    stopped: set[int] = set()
    try:
        with events.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                    number, at, kind = int(event["attempt"]), float(event["at"]), event["kind"]
                except (ValueError, KeyError, TypeError):
                    continue
                first, last = spans.get(number, (at, at))
                spans[number] = (min(first, at), max(last, at))
                if kind == "stopping":
                    stopped.add(number)
    except OSError:
        return FailureHistory()
    earlier = {number: end - start for number, (start, end) in spans.items() if number < attempt}
    return FailureHistory(len(earlier.keys() - stopped), sum(earlier.values()))


def best_interval_s(cost_s: float, between_failures_s: float) -> float:
    """Seconds from the end of one save to the start of the next (Daly 2006, equation 37)."""
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = cost_s / (2 * between_failures_s)
    return math.sqrt(2 * cost_s * between_failures_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


class SaveSchedule:
    """Decides on all ranks alike after which steps to save. `agree`: from the number of rank 0, the same on all ranks;
    every rank calls it. `report` gets the text of a new interval."""

    def __init__(
        self,
        every: int | None,
        start: int,
        ranks: int,
        history: FailureHistory,
        agree: Callable[[int], int],
        report: Callable[[str], None],
    ) -> None:
        """`every`: steps (0: never), None: auto; `start`: the step before the first one of this attempt."""
        self._every, self._ranks, self._history = every, ranks, history
        self._agree, self._report = agree, report
        self._next = start + FIRST_STEPS
        self._costs: deque[float] = deque(maxlen=5)
        self._saved_step: int | None = None
        self._attempt_s = 0.0
        self._interval: int | None = None

    def is_due(self, step: int) -> bool:
        """Whether to save after `step`."""
        if self._every is None:
            return step >= self._next
        return self._every > 0 and step % self._every == 0

    def step_ended(self, step: int, step_time_s: float, median_s: float | None) -> None:
        """A step took so long, those before `median_s`."""
        self._attempt_s += step_time_s
        if median_s is not None and self._saved_step is not None and step == self._saved_step + 1 and self._costs:
            self._costs[-1] += max(0.0, step_time_s - median_s)

    def saved(self, step: int, waited_s: float, median_s: float | None) -> None:
        """A save began after `step`, for which training waited so long. Chooses when the next one is due."""
        if self._every is not None:
            return
        self._costs.append(waited_s)
        self._saved_step = step
        cost_s = max(_MIN_COST_S, median(self._costs))
        between_s = self._history.mean_time_between_s(self._ranks, self._attempt_s)
        interval_s = min(MAX_S, best_interval_s(cost_s, between_s))
        interval = self._agree(max(1, round(interval_s / median_s)) if median_s else FIRST_STEPS)
        self._next = step + interval
        last, self._interval = self._interval, interval
        if last is None or not last / _CHANGE <= interval <= last * _CHANGE:
            failures = self._history.failures
            self._report(
                f"a checkpoint every {interval:,} steps ({interval_s:,.1f} s): one costs {cost_s:.3f} s, a failure is "
                f"expected every {between_s / 3600:,.1f} h ({self._ranks} ranks, {failures} failures so far)"
            )
