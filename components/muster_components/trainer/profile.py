"""Traces of the configured steps, by torch.profiler, into the run folder's spool.

The file is renamed once it is complete, so that the collector never reads an incomplete trace. The profiler starts one
step early, since the first step includes its set-up. On a full disk the trace is lost and training continues.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import warnings
from pathlib import Path
from typing import Literal

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.reporter import Reporter

ProfilerTransition = Literal["start", "write"]
"""Slow actions between two steps: start the profiler, or stop it and write the trace."""


class StepTracer:
    """Call `begin_step(step)` before each step (from 1) and `close(last)` at the end."""

    def __init__(self, config: TraceConfig, context: RunContext, reporter: Reporter) -> None:
        self._config = config
        self._context = context
        self._reporter = reporter
        self._profiler: profile | None = None
        self._first_recorded_step: int | None = None
        self._finished = not config.covers(context.rank)

    @property
    def pending(self) -> bool:
        """Whether steps remain to be recorded or written."""
        return not self._finished

    def next_transition(self, step: int) -> ProfilerTransition | None:
        """The slow action that `begin_step(step)` will perform, if any."""
        if self._finished:
            return None
        if self._profiler is None:
            return "start" if self._config.start - 1 <= step < self._config.end else None
        return "write" if step >= self._config.end else None

    def begin_step(self, step: int) -> None:
        """Call before `step` starts, after the previous one has ended."""
        if self._finished:
            return
        if self._profiler is None:
            if step >= self._config.end:
                self._finished = True
            elif step >= self._config.start - 1:
                self._start(step)
        elif step >= self._config.end:
            self._stop_and_write(step)
        else:
            self._profiler.step()
        if self._profiler is not None and self._first_recorded_step is None and step >= self._config.start:
            self._first_recorded_step = step

    def close(self, last: int) -> None:
        """Training ended with step `last`; writes a trace that is still being recorded with the steps that it has."""
        if self._profiler is not None:
            self._stop_and_write(last + 1)
        self._finished = True

    def _start(self, step: int) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        try:
            profiler = profile(
                activities=activities,
                schedule=self._action,
                record_shapes=self._config.shapes,
                with_stack=self._config.stack,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about keeping only one cycle: there is only one
                profiler.start()
                # Step 0 is not recorded, so that the first call of `step` opens the annotation with the true number.
                profiler.step_num = step - 1
                profiler.step()
        except RuntimeError as error:
            self._finished = True
            self._reporter.record_event("trace_failed", f"no trace: the profiler cannot start: {error}", step=step)
            return
        self._profiler = profiler

    def _action(self, step: int) -> ProfilerAction:
        if self._config.start <= step < self._config.end:
            return ProfilerAction.RECORD
        return ProfilerAction.WARMUP if 0 < step == self._config.start - 1 else ProfilerAction.NONE

    def _stop_and_write(self, end: int) -> None:
        """Write the steps from the first recorded one to `end` - 1."""
        profiler, start = self._profiler, self._first_recorded_step
        self._profiler, self._finished = None, True
        if profiler is None:
            return
        if start is None or start >= end:
            profiler.stop()  # no step after the warm-up
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
            self._reporter.record_event(
                "trace_failed", f"no trace of steps {start}:{end}: {reason}; training continues", step=end - 1
            )
            return
        self._reporter.record_event(
            "trace_written", f"trace of steps {start}:{end} in {path}", step=end - 1, echo=False
        )

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
        }
        profiler.add_metadata_json("muster", json.dumps(owner))


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
