"""What a program reports of itself: lines of JSON that it appends to a file (docs/reference/run-folder.md). Imports no
torch.

The rank's instrumentation reads them, or its launcher if the program is not instrumented, and puts the newest values
into the rank's heartbeat. Programs of any language write them, so each value is checked.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

REPORT_FILE_VARIABLE: Final = "MUSTER_REPORT_FILE"
MAX_READ_BYTES: Final = 1 << 18
"""Of the lines since the last reading, those within the newest bytes."""
MAX_FILE_BYTES: Final = 4 << 20
"""Of a file, after which the launcher replaces its lines by the newest values: half a day at one line a second."""
MAX_TIMES: Final = 20
_MAX_COUNT: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """The newest values; None: not reported. Times are Unix seconds, `tokens` of one step."""

    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    tokens: int | None = None
    eta_s: float | None = None
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None
    step_time_s: float | None = None
    """Median of the times between reports, by step."""

    def heartbeat_fields(self, step_time_s: float | None) -> dict[str, object]:
        """The fields of a heartbeat that are known; `step_time_s`: as measured by others, which counts before."""
        step_time_s = step_time_s or self.step_time_s
        eta_s = self.eta_s
        if eta_s is None and step_time_s and self.step is not None and self.steps is not None:
            eta_s = max(0, self.steps - self.step) * step_time_s
        fields = {
            "step": self.step,
            "steps": self.steps,
            "loss": self.loss,
            "step_time_s": step_time_s,
            "tokens_per_s": self.tokens / step_time_s if self.tokens is not None and step_time_s else None,
            "eta_s": eta_s,
            "checkpoint_step": self.checkpoint_step,
            "checkpoint_at": self.checkpoint_at,
        }
        return {name: value for name, value in fields.items() if value is not None}


class ReportReader:
    """The newest reported values of one rank."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._times: deque[tuple[int, float]] = deque(maxlen=MAX_TIMES)
        self.newest = Reported()
        self.losses: dict[int | None, tuple[float, float]] = {}
        """By step, those that were read and not taken, and when they were reported; None: without a step."""
        self.own_fields: set[str] = set()
        """What the program itself has reported, not its launcher from what it logs."""

    def read(self, now: float) -> bool:
        """Read the lines that were added; whether there were any. `now`: the time of lines without one. Errors of the
        file and invalid lines are ignored."""
        try:
            lines = self._new_lines()
        except OSError:
            return False
        for line in lines:
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(fields, dict):
                self._add(fields, now)
        return bool(lines)

    def compact(self, max_bytes: int = MAX_FILE_BYTES) -> None:
        """Replace the lines by the newest values if there are more than `max_bytes`, all of which this reader has read.
        Writers append, and other readers, whose position is beyond the end then, read from the beginning. Errors of
        the file are ignored."""
        if self._position <= max_bytes:
            return
        content = "".join(json.dumps(line) + "\n" for line in self._newest_lines()).encode()
        with contextlib.suppress(OSError):
            handle = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(handle).st_size == self._position:
                    os.pwrite(handle, content, 0)
                    os.ftruncate(handle, len(content))
                    self._position = len(content)
            finally:
                os.close(handle)

    def _newest_lines(self) -> list[dict[str, object]]:
        """Without the loss, which would be recorded a second time."""
        newest, source = self.newest, {"source": "newest values"}
        lines: list[dict[str, object]] = []
        if newest.checkpoint_step is not None:
            saved = {"step": newest.checkpoint_step, "checkpoint": True, "at": newest.checkpoint_at}
            lines.append({**saved, **source})
        fields = {name: getattr(newest, name) for name in ("step", "steps", "tokens", "eta_s")}
        at = self._times[-1][1] if self._times else None
        lines.append({name: value for name, value in {**fields, "at": at}.items() if value is not None} | source)
        return lines

    def take_losses(self) -> dict[int | None, tuple[float, float]]:
        """The losses by step since the last call, and when they were reported."""
        taken, self.losses = self.losses, {}
        return taken

    def _new_lines(self) -> list[bytes]:
        handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size == self._position:
                return []
            begin = 0 if status.st_size < self._position else self._position
            skipped = max(0, status.st_size - begin - MAX_READ_BYTES)
            content = os.pread(handle, MAX_READ_BYTES, begin + skipped)
        finally:
            os.close(handle)
        end = content.rfind(b"\n") + 1
        self._position = begin + skipped + (end or (len(content) if skipped else 0))
        lines = content[:end].split(b"\n")
        return [line for line in (lines[1:] if skipped else lines) if line]

    def _add(self, fields: Mapping[str, Any], now: float) -> None:
        step, loss, at = _count(fields.get("step")), _number(fields.get("loss")), _number(fields.get("at"))
        at = now if at is None or not 0 <= at <= now + 1 else at
        known: dict[str, Any] = {
            "step": step,
            "steps": _count(fields.get("steps")),
            "loss": loss,
            "tokens": _count(fields.get("tokens")),
            "eta_s": _number(fields.get("eta_s"), least=0),
        }
        if step is not None and known["eta_s"] is None and "source" not in fields:
            self.newest = replace(self.newest, eta_s=None)  # that of an earlier step
        self.newest = replace(self.newest, **{name: value for name, value in known.items() if value is not None})
        if "source" not in fields:
            self.own_fields.update(name for name, value in known.items() if value is not None)
        if loss is not None:
            self.losses[step] = loss, at
        if step is not None:
            if fields.get("checkpoint"):
                self.newest = replace(self.newest, checkpoint_step=step, checkpoint_at=at)
            if self._times and step < self._times[-1][0]:
                self._times.clear()
            if not self._times or step > self._times[-1][0]:
                self._times.append((step, at))
                self.newest = replace(self.newest, step_time_s=_step_time_s(self._times))


def _step_time_s(times: deque[tuple[int, float]]) -> float | None:
    pairs = zip(times, list(times)[1:], strict=False)
    known = [(later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in pairs]
    return max(median(known), 0.0) or None if known else None


def _number(value: object, least: float = -math.inf) -> float | None:
    """A finite number of at least `least`, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) and value >= least else None


def _count(value: object) -> int | None:
    number = _number(value, least=0)
    return int(number) if number is not None and number <= _MAX_COUNT else None


def flush_reports() -> None:
    """Have `muster.report` write what it has not written, if the program has used it."""
    module = sys.modules.get("muster.program.report")
    if module is not None:
        module.flush_reports()


def report_file(environ: Mapping[str, str]) -> Path | None:
    """Where this rank's program reports; None without a launcher."""
    path = environ.get(REPORT_FILE_VARIABLE, "")
    return Path(path) if path else None
