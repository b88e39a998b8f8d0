"""Traces of selected steps, by torch.profiler, into the run folder's spool.

The steps are those of the configuration, and those that are requested while the job runs (`capture`). The file is
renamed once it is complete, so that the collector never reads an incomplete trace. The profiler starts one step early,
since the first step includes its set-up. On a full disk the trace is lost and training continues.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from muster_components.trainer.capture import CaptureInbox, CaptureState, ProfileRequest
from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.memory_snapshot import (
    snapshot_refusal,
    start_memory_history,
    stop_memory_history,
    write_memory_snapshot,
)
from muster_components.trainer.reporter import Reporter

SLOWER_PAUSE_STEPS: Final = 100
"""Steps after a trace of slower steps before the next one."""
_SLOWER_ALIGNMENT: Final = 10
"""Ranks that see a slower step at nearly the same time begin to trace at the same step: at a multiple of this."""
ProfilerTransition = Literal["start", "write"]
"""Slow actions between two steps: start the profiler, or stop it and write the trace."""


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """Profile the steps `start` <= k < `end`, because of a request or (None) of the configuration. With the option
    `snapshot`, the history of the GPU's memory is recorded instead."""

    start: int
    end: int
    options: frozenset[str]
    request: ProfileRequest | None = None

    @property
    def is_snapshot(self) -> bool:
        """Whether memory is recorded, not a trace."""
        return "snapshot" in self.options

    def overlaps(self, start: int, end: int) -> bool:
        """Whether these steps, with the one before them, in which a profiler starts, include steps of this window."""
        return start - 1 < self.end and self.start - 1 < end


class StepTracer:
    """Before each step (from 1) call `next_transition(step)`, then `begin_step(step)`; call `close(last)` at the end.

    Without an `inbox`, no traces can be requested while the job runs. `pipeline` is the schedule that traces name.
    """

    def __init__(
        self,
        config: TraceConfig,
        context: RunContext,
        reporter: Reporter,
        inbox: CaptureInbox | None = None,
        pipeline: Mapping[str, object] | None = None,
        *,
        all_threads: bool = False,
    ) -> None:
        """`all_threads`: record them all, and not only the one that calls."""
        self._config = config
        self._all_threads = all_threads
        self._context = context
        self._reporter = reporter
        self._inbox = inbox
        self._pipeline = pipeline
        self._configured = frozenset(
            name for name, chosen in (("shapes", config.shapes), ("stacks", config.stack)) if chosen
        )
        self._covered = config.covers(context.rank)
        self._requested: ProfileWindow | None = None  # its profiler has not started yet
        self._slower: ProfileWindow | None = None  # because of a slower step; its profiler has not started yet
        self._slower_from = 0  # the first step after which there may be one
        self._window: ProfileWindow | None = None  # of the profiler
        self._profiler: profile | None = None
        self._first_recorded_step: int | None = None

    def next_transition(self, step: int) -> ProfilerTransition | None:
        """The slow action that `begin_step(step)` will perform, if any. Reads a new request."""
        if self._inbox is not None and (request := self._inbox.poll()) is not None:
            self._on_request(request, step)
        if self._config.when_slower is not None and step >= self._slower_from:
            self._compare_pace(self._config.when_slower, step)
        if self._window is None:
            return "start" if self._due_window(step) is not None else None
        return "write" if step >= self._window.end else None

    def begin_step(self, step: int) -> None:
        """Call before `step` starts, after the previous one has ended."""
        if self._window is None:
            if (window := self._due_window(step)) is not None:
                self._start(window, step)
        elif step >= self._window.end:
            self._stop_and_write(step)
        elif self._profiler is not None:
            self._profiler.step()
        if self._window is not None and self._first_recorded_step is None and step >= self._window.start:
            self._first_recorded_step = step
            self._answer(self._window, "recording", step)

    def close(self, last: int) -> None:
        """Training ended with step `last`; writes a trace that is still being recorded with the steps that it has."""
        if self._window is not None:
            self._stop_and_write(last + 1)
        if self._requested is not None:
            self._answer(self._requested, "failed", last + 1, f"the run ended after step {last}")
        self._covered, self._requested, self._slower, self._inbox = False, None, None, None

    def save_snapshot(self, step: int) -> None:
        """`step` ran out of memory: write the memory snapshot that is being recorded, if any."""
        if self._window is not None and self._window.is_snapshot:
            self._stop_and_write(step + 1)

    def _compare_pace(self, when_slower: float, step: int) -> None:
        """Plan a trace if the newest step was slower, and no other trace is near."""
        pace = self._reporter.pace.newest()
        if pace is None or pace < when_slower or not self._covered or self._window or self._requested or self._slower:
            return
        start = -(-(step + 1) // _SLOWER_ALIGNMENT) * _SLOWER_ALIGNMENT
        window = ProfileWindow(start, start + self._config.end - self._config.start, self._configured)
        configured = self._configured_window(step)
        if configured is not None and configured.overlaps(window.start, window.end):
            return
        self._slower = window
        why = f"a step took {pace:.2f} times the median of those before it"
        message = f"{why}: steps {window.start}:{window.end} are to be traced"
        self._reporter.record_event("trace_planned", message, step=window.start, echo=False)

    def _on_request(self, request: ProfileRequest, step: int) -> None:
        """Accept or reject a request, or withdraw an earlier one."""
        assert self._inbox is not None
        self._requested = None
        if request.cancelled or (request.ranks and self._context.rank not in request.ranks):
            return
        window = ProfileWindow(request.start, request.end, request.options, request)
        if window.is_snapshot and (reason := snapshot_refusal()):
            self._inbox.answer(request, "failed", step, reason)
            return
        if step > window.start:
            self._inbox.answer(request, "rejected", step, f"step {step - 1} had begun when the request was read")
            return
        for other in (self._window, self._slower, self._configured_window(window.start - 1)):
            if other is not None and other.overlaps(window.start, window.end):
                reason = f"the trace of steps {other.start}:{other.end} overlaps"
                self._inbox.answer(request, "rejected", step, reason)
                return
        self._requested = window
        self._inbox.answer(request, "armed", step)

    def _configured_window(self, step: int) -> ProfileWindow | None:
        """The configured steps that end after `step`."""
        found = self._config.window(step) if self._covered else None
        return None if found is None else ProfileWindow(*found, self._configured)

    def _due_window(self, step: int) -> ProfileWindow | None:
        """The window whose profiler has to start before `step`."""
        for window in (self._requested, self._slower, self._configured_window(step)):
            if window is not None and window.start - 1 <= step < window.end:
                return window
        return None

    def _answer(self, window: ProfileWindow, state: CaptureState, step: int, reason: str = "") -> None:
        if window.request is not None and self._inbox is not None:
            self._inbox.answer(window.request, state, step, reason)

    def _start(self, window: ProfileWindow, step: int) -> None:
        if window is self._slower:
            self._slower = None
        if window.is_snapshot:
            self._requested = None
            try:
                start_memory_history()
            except RuntimeError as error:
                self._answer(window, "failed", step, str(error))
                self._record_failed_snapshot(error, step)
                return
            self._window, self._first_recorded_step = window, None
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        if window.request is not None:
            self._requested = None
        try:
            profiler = profile(
                activities=activities,
                schedule=lambda number: _action(window, number),
                record_shapes="shapes" in window.options,
                with_stack="stacks" in window.options,
                profile_memory="memory" in window.options,
                with_flops="flops" in window.options,
                with_modules="modules" in window.options,
                experimental_config=_ExperimentalConfig(profile_all_threads=True) if self._all_threads else None,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about keeping only one cycle: there is only one
                profiler.start()
                # Step 0 is not recorded, so that the first call of `step` opens the annotation with the true number.
                profiler.step_num = step - 1
                profiler.step()
        except RuntimeError as error:
            reason = f"the profiler cannot start: {error}"
            if window.request is None:
                self._covered = False
            self._answer(window, "failed", step, reason)
            self._reporter.record_event("trace_failed", f"no trace: {reason}", step=step)
            return
        self._window, self._profiler, self._first_recorded_step = window, profiler, None

    def _stop_and_write(self, end: int) -> None:
        """Write the steps from the first recorded one to `end` - 1."""
        window, profiler, start = self._window, self._profiler, self._first_recorded_step
        self._window, self._profiler, self._first_recorded_step = None, None, None
        self._slower_from = end + SLOWER_PAUSE_STEPS  # profiled steps are slower themselves
        if window is None:
            return
        if start is None or start >= end:  # no step after the warm-up
            if profiler is not None:
                profiler.stop()
            else:
                stop_memory_history()
            self._answer(window, "failed", end, f"the run ended after step {end - 1}")
            return
        if profiler is None:
            self._write_snapshot(window, start, end)
            return
        path = self._context.trace_path(start, end)
        try:
            self._add_metadata(profiler, start, end)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of events still open when the profiler stops
                profiler.stop()
            write_trace(profiler, path)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._answer(window, "failed", end, reason)
            self._reporter.record_event(
                "trace_failed", f"no trace of steps {start}:{end}: {reason}; training continues", step=end - 1
            )
            return
        self._answer(window, "written", end)
        self._reporter.record_event(
            "trace_written", f"trace of steps {start}:{end} in {path}", step=end - 1, echo=False
        )

    def _write_snapshot(self, window: ProfileWindow, start: int, end: int) -> None:
        path = self._context.snapshot_path(start, end)
        try:
            write_memory_snapshot(path)
        except (OSError, RuntimeError) as error:
            self._answer(window, "failed", end, str(error))
            self._record_failed_snapshot(error, end - 1)
            return
        self._answer(window, "written", end)

    def _record_failed_snapshot(self, error: Exception, step: int) -> None:
        self._reporter.record_event("trace_failed", f"no memory snapshot: {error}; training continues", step=step)

    def _add_metadata(self, profiler: profile, start: int, end: int) -> None:
        """Write job, rank and steps into the trace."""
        context = self._context
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            # With a process group the profiler adds the same entry itself.
            single_rank = {"backend": "none", "rank": context.rank, "world_size": context.world_size}
            profiler.add_metadata_json("distributedInfo", json.dumps(single_rank))
        owner = {
            "job": context.job,
            "rank": context.rank,
            "world_size": context.world_size,
            "attempt": context.attempt,
            "start_step": start,
            "end_step": end,
            "host": socket.gethostname(),
            "pipeline": self._pipeline,
        }
        profiler.add_metadata_json("muster", json.dumps(owner))


def _action(window: ProfileWindow, step: int) -> ProfilerAction:
    if window.start <= step < window.end:
        return ProfilerAction.RECORD
    return ProfilerAction.WARMUP if 0 < step == window.start - 1 else ProfilerAction.NONE


def write_trace(profiler: profile, path: Path) -> None:
    """Export to `path` atomically. Raises OSError, also for a truncated file that the exporter did not detect."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        profiler.export_chrome_trace(str(temporary))
        with temporary.open("rb") as trace:
            trace.seek(max(0, os.fstat(trace.fileno()).st_size - 64))
            if not trace.read().rstrip().endswith(b"}"):
                raise OSError(errno.ENOSPC, "the file is truncated (disk full?)")
            os.fsync(trace.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        temporary.with_name(temporary.name + ".tmp").unlink(missing_ok=True)  # the exporter's own
