"""Writes the newest heartbeat, one metrics line per step, events and progress lines of a rank. Imports no torch.

Errors must not stop training: they are logged to standard error once per file. A heartbeat replaces its file
atomically, at most once per second. The metrics lines since the last heartbeat are one write; what a full disk has
truncated is removed, so that the file remains valid JSON lines. Both are written in a thread of their own.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from muster_components.trainer.collective_counts import collective_counts, mean_collective_bytes
from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.pace import StepPace
from muster_components.trainer.regular_files import append_line, encode_line, replace_file
from muster_components.trainer.reports import ReportReader
from muster_components.trainer.write_thread import WriteThread

Phase = Literal["setup", "compile", "train", "checkpoint", "done"]
Clock = Callable[[], float]

HEARTBEAT_INTERVAL_S: Final = 1.0
COLLECTIVE_SIZES_INTERVAL_S: Final = 60.0
"""How often sizes of collectives are read, which takes about 25 ms of CPU time with 2000 of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHeartbeat:
    """A heartbeat; unknown values are None. `tokens_per_s` is of all ranks, times are Unix seconds."""

    rank: int
    world_size: int
    attempt: int
    step: int
    steps: int | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    step_time_s: float | None = None
    eta_s: float | None = None
    mfu: float | None = None
    peak_memory_bytes: int | None = None
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None
    stage: int | None = None
    """The pipeline stage; None without a pipeline."""
    time_slice: int | None = None
    """Of a program without an optimizer: its seconds, which requests for traces name."""
    phase: Phase = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The metrics of a completed step; unknown values are None. `tokens` are of all ranks.

    `trace_start_s` and `trace_write_s` are the seconds that this rank took before this step to start the profiler and
    to write its trace, `checkpoint_wait_s` those that it waited for a save. They are not part of `step_time_s`, but
    faster ranks wait for this one in this step.
    """

    step: int
    step_time_s: float | None
    data_time_s: float | None = None
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    trace_start_s: float | None = None
    trace_write_s: float | None = None
    checkpoint_wait_s: float | None = None


class Reporter:
    """Writes heartbeats, metrics and events of one rank into the run folder."""

    def __init__(self, context: RunContext, clock: Clock = time.time, reports: ReportReader | None = None) -> None:
        """`reports`: what the program reports of itself counts before what is observed."""
        self._context = context
        self._clock = clock
        self._reports = reports
        self._last_heartbeat_at = float("-inf")
        self._last_phase: Phase | None = None
        self._failed_paths: set[Path] = set()
        self._thread = WriteThread()
        self.pace = StepPace()
        self._metrics: list[tuple[StepMetrics, float]] = []  # not given to the thread yet
        # Of the thread:
        self._collectives = _CollectiveRates()

    @property
    def has_reported_step(self) -> bool:
        """Whether the program reports steps itself."""
        return self._reports is not None and self._reports.newest.step is not None

    def is_heartbeat_due(self, phase: Phase) -> bool:
        """Whether `write_heartbeat` would write one of this phase: building one costs more than asking."""
        return phase != self._last_phase or self._clock() - self._last_heartbeat_at >= HEARTBEAT_INTERVAL_S

    def write_heartbeat(self, heartbeat: RankHeartbeat) -> None:
        """Replace the heartbeat, unless the last one has the same phase and is less than a second old."""
        now = self._clock()
        if heartbeat.phase == self._last_phase and now - self._last_heartbeat_at < HEARTBEAT_INTERVAL_S:
            return
        self._last_heartbeat_at, self._last_phase = now, heartbeat.phase
        metrics, self._metrics = self._metrics, []
        self._thread.add(partial(self._write, heartbeat, metrics, now, self.pace.recent()))

    def write_metrics(self, metrics: StepMetrics) -> None:
        """Append one line, with the next heartbeat or `flush`. Of the steps between two heartbeats, the last one has
        the newest loss that the program has reported, unless its loss is known."""
        self._metrics.append((metrics, self._clock()))
        if metrics.step_time_s is not None:
            self.pace.add(metrics.step_time_s)

    def flush(self) -> None:
        """Wait until all heartbeats and metrics are written."""
        metrics, self._metrics = self._metrics, []
        if metrics:
            self._thread.add(partial(self._write, None, metrics, self._clock()))
        self._thread.flush()

    def _write(
        self,
        heartbeat: RankHeartbeat | None,
        metrics: list[tuple[StepMetrics, float]],
        now: float,
        pace: float | None = None,
    ) -> None:
        if self._reports is not None:
            self._reports.read(now)
        if metrics:
            self._append_metrics(metrics)
        if heartbeat is None:
            return
        counts = collective_counts()
        self._collectives.update(heartbeat.step, sum(counts.values()), now)
        rates = {
            "collectives_per_step": self._collectives.per_step,
            "collective_bytes_per_step": self._collectives.bytes_per_step,
        }
        measured = {"pace": pace, "collectives": counts, **rates}
        line = {**_values(heartbeat), **measured, **self._reported(heartbeat), "at": now}
        self._try_write(self._context.heartbeat_path, lambda path: replace_file(path, encode_line(line)))

    def _append_metrics(self, metrics: list[tuple[StepMetrics, float]]) -> None:
        last, at = metrics[-1]
        reported = {} if self._reports is None else self._reports.take_losses()
        if last.loss is None and reported:
            metrics = [*metrics[:-1], (replace(last, loss=next(reversed(reported.values()))[0]), at)]
        attempt = self._context.attempt
        lines = b"".join(encode_line({**_values(one), "attempt": attempt, "at": when}) for one, when in metrics)
        self._try_write(self._context.metrics_path, lambda path: append_line(path, lines))

    def _reported(self, heartbeat: RankHeartbeat) -> dict[str, object]:
        """What the program has reported until now, as fields of the heartbeat."""
        if self._reports is None:
            return {}
        fields = self._reports.newest.heartbeat_fields(heartbeat.step_time_s)
        if heartbeat.phase == "done":
            fields.pop("eta_s", None)
        # Steps that are counted here are those of this attempt, which requests for traces name.
        return {**fields, "optimizer_step": heartbeat.step} if "step" in fields and heartbeat.step else fields

    def replace(self, path: Path, content: Mapping[str, object]) -> None:
        """Replace a file of the run folder by one line of JSON."""
        self._try_write(path, lambda target: replace_file(target, encode_line(content)))

    def write_compilation(self, step: int, record: Mapping[str, object]) -> None:
        """Append what was compiled in `step`."""
        line = {"at": self._clock(), "attempt": self._context.attempt, "step": step, **record}
        self._try_write(self._context.compilation_path, lambda path: append_line(path, encode_line(line)))

    def record_event(self, kind: str, message: str, *, step: int | None = None, echo: bool = True) -> None:
        """Append an event (rank 0), and with `echo` log the message to standard error (all ranks)."""
        if echo:
            self.log(message)
        if self._context.is_rank0:
            event = {"at": self._clock(), "attempt": self._context.attempt, "step": step}
            line = encode_line({**event, "kind": kind, "message": message})
            self._try_write(self._context.events_path, lambda path: append_line(path, line))

    def log(self, message: str) -> None:
        prefix = "" if self._context.is_rank0 else f"[rank {self._context.rank}] "
        with contextlib.suppress(OSError):
            print(f"{prefix}{escape(message)}", file=sys.stderr, flush=True)

    def _try_write(self, path: Path, write: Callable[[Path], None]) -> None:
        try:
            try:
                write(path)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                write(path)
        except OSError as error:
            if path not in self._failed_paths:
                self._failed_paths.add(path)
                self.log(f"cannot write {path}: {error.strerror or error}; training continues")


@dataclass(slots=True)
class _CollectiveRates:
    """Collectives per step since the last heartbeat with an earlier step, and their bytes; None before there are two.

    Bytes are from the steps between two heartbeats, once per `COLLECTIVE_SIZES_INTERVAL_S`.
    """

    per_step: float | None = None
    bytes_per_step: int | None = None
    _since: tuple[int, int, float] | None = None  # step, number of collectives and time of an earlier heartbeat
    _sizes_read_at: float = float("-inf")

    def update(self, step: int, count: int, now: float) -> None:
        """A heartbeat of this step has this number of collectives."""
        if self._since is None or step < self._since[0]:
            self._since = (step, count, now)
        elif step > self._since[0]:
            before, called, since = self._since
            self._since, self.per_step = (step, count, now), round((count - called) / (step - before), 3)
            if now - self._sizes_read_at >= COLLECTIVE_SIZES_INTERVAL_S:
                self._sizes_read_at = now
                mean = mean_collective_bytes(since)
                self.bytes_per_step = None if mean is None else round(mean * self.per_step)


def _values(record: RankHeartbeat | StepMetrics) -> dict[str, object]:
    """By field; `asdict` takes five times as long."""
    return {name: getattr(record, name) for name in record.__slots__}


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
        every = f", and again every {self.config.every} steps" if self.config.every else ""
        message = f"steps {self._steps} are to be traced{every}"
        window = self.config.window(first)
        self.reporter.record_event(
            "trace_planned", message, step=self.config.start if window is None else window[0], echo=False
        )

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
        if self.config.window(first) is None:
            return f"in this attempt, tracing can begin with step {first}"
        if last is not None and self.config.start > last:
            return f"the run ends with step {last}"
        return None

    def _record_missed(self, reason: str, step: int) -> None:
        self.reporter.record_event("trace_missed", f"no trace of steps {self._steps}: {reason}", step=step)


GIB = 1024**3


def progress_line(
    *,
    step: int,
    steps: int,
    loss: float,
    speed: str,
    step_time_s: float,
    eta_s: float,
    run_speed: str = "",
    mfu: float | None = None,
    peak_memory_bytes: int | None = None,
) -> str:
    """One line; `speed` is that of the median step, `run_speed` that since the first step, with saves and all other
    pauses; `peak_memory_bytes` is given on GPUs only."""
    parts = [
        f"step {step}/{steps}",
        f"loss {loss:.2f}",
        speed,
        f"{step_time_s:.2f} s/step" if step_time_s >= 0.1 else f"{step_time_s * 1000:.1f} ms/step",
        *([f"run {run_speed}"] if run_speed else []),
        f"ETA {format_duration(eta_s)}",
    ]
    if mfu is not None:
        parts.append(f"MFU {mfu:.1%}")
    if peak_memory_bytes is not None:
        parts.append(f"peak {peak_memory_bytes / GIB:.1f} GiB")
    return "  ".join(parts)


def first_step_line(*, step: int, steps: int, loss: float, step_time_s: float) -> str:
    """The line of an attempt's first step, without speed and ETA, since it includes compilation."""
    return f"step {step}/{steps}  loss {loss:.2f}  first step {step_time_s:.1f} s"


def format_duration(seconds: float) -> str:
    """`21s`, `12m05s`, `3h20m`, `2d04h`: as Muster's commands show it."""
    total = max(0, round(seconds))
    for unit, size, below, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if total >= size:
            return f"{total // size}{unit}{total % size // part:02}{below}"
    return f"{total}s"


def format_count(number: int) -> str:
    """`10.8M`, `8.03B`, `512`."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def escape(text: str) -> str:
    """The text with characters that do not print as in Python: control characters, and bytes of a file name that is
    not UTF-8, which print() refuses. Line ends remain."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def print_line(line: str) -> None:
    """Print and flush; a full disk under the log does not stop training."""
    with contextlib.suppress(OSError):
        print(escape(line), flush=True)
