"""Events about the steps configured for tracing, so that a window that a run never reaches is reported.

Rank 0 writes the events for all ranks. This module does not import torch, which a script may not use.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.reporter import Reporter


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """Call `announce` before the first step and `finish` after the last one."""

    config: TraceConfig
    context: RunContext
    reporter: Reporter

    def announce(self, first: int, last: int | None = None) -> None:
        """Write `trace_planned`, or `trace_missed` if the steps cannot be reached. The attempt can trace from step
        `first` on and ends with `last` (None: unknown)."""
        if not self._enabled:
            return
        if (missed := self._unreachable_reason(first, last)) is not None:
            self._record_missed(missed, first - 1)
            return
        message = f"steps {self._steps} are to be traced"
        self.reporter.record_event("trace_planned", message, step=self.config.start, echo=False)

    def finish(self, first: int, last: int, known_last: int | None = None) -> None:
        """Write `trace_missed` if the attempt, which ended after step `last`, did not reach the steps and `announce`
        did not write it. `first` and `known_last` are the arguments of `announce`."""
        if not self._enabled or self._unreachable_reason(first, known_last) is not None:
            return
        if self.config.start > last:
            done = f"this attempt ended after step {last}" if last else "no step was seen"
            self._record_missed(done, last)

    @property
    def _enabled(self) -> bool:
        return self.context.is_rank0 and self.config.end > self.config.start

    @property
    def _steps(self) -> str:
        return f"{self.config.start}:{self.config.end}"

    def _unreachable_reason(self, first: int, last: int | None) -> str | None:
        """Why none of the steps can be traced, or None."""
        if not any(self.config.covers(rank) for rank in range(self.context.world_size)):
            ranks = ",".join(map(str, self.config.ranks))
            return f"--trace_ranks {ranks} names none of the ranks 0 to {self.context.world_size - 1}"
        if self.config.end <= first:
            return f"in this attempt, tracing can begin with step {first}"
        if last is not None and self.config.start > last:
            return f"the run ends with step {last}"
        return None

    def _record_missed(self, reason: str, step: int) -> None:
        self.reporter.record_event("trace_missed", f"no trace of steps {self._steps}: {reason}", step=step)
