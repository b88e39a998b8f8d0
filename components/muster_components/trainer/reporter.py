"""Writes the newest heartbeat, one metrics line per step, and events of a rank.

Errors must not stop training: they are logged to standard error once per file. A heartbeat replaces its file
atomically, at most once per second. A metrics line is one write; a line truncated by a full disk is removed, so that
the file remains valid JSON lines.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from muster_components.trainer.context import RunContext

Phase = Literal["setup", "compile", "train", "checkpoint", "done"]
Clock = Callable[[], float]

HEARTBEAT_INTERVAL_S: Final = 1.0


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
    phase: Phase = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The metrics of a completed step; unknown values are None. `tokens` are of all ranks.

    `trace_start_s` and `trace_write_s` are the seconds that this rank took before this step to start the profiler and
    to write its trace. They are not part of `step_time_s`, but faster ranks wait for this one in this step.
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


class Reporter:
    """Writes heartbeats, metrics and events of one rank into the run folder."""

    def __init__(self, context: RunContext, clock: Clock = time.time) -> None:
        self._context = context
        self._clock = clock
        self._last_heartbeat_at = float("-inf")
        self._last_phase: Phase | None = None
        self._failed_paths: set[Path] = set()

    def write_heartbeat(self, heartbeat: RankHeartbeat) -> None:
        """Replace the heartbeat, unless the last one has the same phase and is less than a second old."""
        now = self._clock()
        if heartbeat.phase == self._last_phase and now - self._last_heartbeat_at < HEARTBEAT_INTERVAL_S:
            return
        self._last_heartbeat_at, self._last_phase = now, heartbeat.phase
        self._try_write(
            self._context.heartbeat_path, lambda path: replace_file(path, encode_line({**asdict(heartbeat), "at": now}))
        )

    def write_metrics(self, metrics: StepMetrics) -> None:
        """Append one line."""
        line = {**asdict(metrics), "attempt": self._context.attempt, "at": self._clock()}
        self._try_write(self._context.metrics_path, lambda path: append_line(path, encode_line(line)))

    def record_event(self, kind: str, message: str, *, step: int | None = None, echo: bool = True) -> None:
        """Append an event (rank 0), and with `echo` log the message to standard error (all ranks)."""
        if echo:
            self.log(message)
        if self._context.is_rank0:
            event = {"at": self._clock(), "attempt": self._context.attempt, "step": step}
            line = encode_line({**event, "kind": kind, "message": message})
            self._try_write(self._context.events_path, lambda path: append_line(path, line))

    def log(self, message: str) -> None:
        """Write a line to standard error, with the rank if it is not 0."""
        prefix = "" if self._context.is_rank0 else f"[rank {self._context.rank}] "
        with contextlib.suppress(OSError):
            print(f"{prefix}{message}", file=sys.stderr, flush=True)

    def _try_write(self, path: Path, write: Callable[[Path], None]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
        except OSError as error:
            if path not in self._failed_paths:
                self._failed_paths.add(path)
                self.log(f"cannot write {path}: {error.strerror or error}; training continues")


def encode_line(value: Mapping[str, object]) -> bytes:
    """One line of JSON; NaN and infinities become null."""
    finite = {k: None if isinstance(v, float) and not -1e308 <= v <= 1e308 else v for k, v in value.items()}
    return json.dumps(finite, separators=(", ", ": "), allow_nan=False).encode() + b"\n"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically. Raises OSError.

    The temporary name is random, since pods may share the folder and have equal process ids.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, line: bytes) -> None:
    """Append in one write, or leave the file unchanged. Raises OSError, without blocking for a FIFO without reader."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
    try:
        before = os.fstat(handle).st_size
        try:
            written = os.write(handle, line)
        except OSError:
            os.ftruncate(handle, before)
            raise
        if written < len(line):
            os.ftruncate(handle, before)
            raise OSError(errno.ENOSPC, "no space left on device")
    finally:
        os.close(handle)
