"""`muster.report`: the progress of a program of any kind, as a line of JSON in the run folder
(docs/reference/run-folder.md).

Muster's launcher, or its instrumentation in the same process, puts the newest values into the rank's heartbeat. In a
pod without the launcher the heartbeat is written here. At most one line a second is written; values between two lines
are combined, and the last ones are written when the program ends. Errors of files never reach the program.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import operator
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

INTERVAL_S = 1.0
"""Between two lines, which are read as often. A loss on a GPU is read for each line: the program waits for it."""


def report(
    step: SupportsIndex | None = None,
    *,
    steps: SupportsIndex | None = None,
    loss: SupportsFloat | None = None,
    tokens: SupportsIndex | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> None:
    """Report progress; without effect outside a job. Ranks other than 0 may call it, rank 0's values are shown.

    `step`: completed steps, counted over all attempts. `steps`: the last one. `loss`: at this step; a tensor is read
    only if a line is written. `tokens`: of one step, of all ranks. `checkpoint`: where a complete checkpoint of this
    step lies, which must be given together with `step`. Raises TypeError or ValueError for values of another kind.
    """
    counts = {"step": _count("step", step), "steps": _count("steps", steps), "tokens": _count("tokens", tokens)}
    fields: dict[str, Any] = {name: value for name, value in counts.items() if value is not None}
    if loss is not None:
        if not hasattr(loss, "__float__"):
            raise TypeError(f"loss must be a number; got {loss!r}")
        detach = getattr(loss, "detach", None)  # a tensor would keep its graph
        fields["loss"] = loss if detach is None else detach()
    if checkpoint is not None:
        if step is None:
            raise ValueError("checkpoint must be reported with its step: report(step=..., checkpoint=...)")
        fields["checkpoint"] = os.fspath(checkpoint)
    output = _output()
    if output is not None and fields:
        output.add(fields, time.time())


def _count(name: str, value: SupportsIndex | None) -> int | None:
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {value!r}") from None
    if count < 0:
        raise ValueError(f"{name} must be at least 0; got {count}")
    return count


class ReportOutput:
    """The reports of this process, in the job that the environment describes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        rank, attempt = environ.get("RANK", "0"), environ.get("MUSTER_ATTEMPT", "0")
        run_dir = Path(environ["MUSTER_RUN_DIR"])
        is_read = "MUSTER_REPORT_FILE" in environ  # by the launcher
        self._file = Path(environ["MUSTER_REPORT_FILE"]) if is_read else None
        self._heartbeat_file = run_dir / "heartbeats" / f"rank-{rank}.json"
        self._heartbeat: dict[str, Any] = {
            "rank": int(rank),
            "world_size": int(environ.get("WORLD_SIZE", "1")),
            "attempt": int(attempt),
            "phase": "train",
        }
        self._pending: dict[str, Any] = {}
        self._next_at = 0.0
        self._handle: int | None = None
        self._step: tuple[int, float] | None = None  # of the last heartbeat, and when it was reported

    def add(self, fields: Mapping[str, Any], now: float) -> None:
        """Write these values, or combine them with the next ones."""
        self._pending.update(fields)
        if "checkpoint" in fields or not 0 <= self._next_at - now <= INTERVAL_S:
            self.flush(now)

    def flush(self, now: float) -> None:
        fields, self._pending = self._pending, {}
        if not fields:
            return
        if "loss" in fields:
            loss = float(fields["loss"])
            fields["loss"] = loss if math.isfinite(loss) else None
        self._next_at = now + INTERVAL_S
        with contextlib.suppress(OSError):
            if self._file is None:
                self._write_heartbeat(fields, now)
            else:
                self._append(self._file, json.dumps({**fields, "at": now}).encode() + b"\n")

    def _append(self, file: Path, line: bytes) -> None:
        if self._handle is None:
            file.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            self._handle = os.open(file, flags, 0o644)
        os.write(self._handle, line)

    def _write_heartbeat(self, fields: Mapping[str, Any], now: float) -> None:
        known = self._heartbeat
        known.update({name: fields[name] for name in ("step", "steps", "loss") if name in fields})
        if "checkpoint" in fields:
            known.update(checkpoint_step=fields["step"], checkpoint_at=now)
        if "step" in fields:
            before, self._step = self._step, (fields["step"], now)
            if before is not None and fields["step"] > before[0] and now > before[1]:
                known["step_time_s"] = (now - before[1]) / (fields["step"] - before[0])
        if "tokens" in fields and known.get("step_time_s"):
            known["tokens_per_s"] = fields["tokens"] / known["step_time_s"]
        file = self._heartbeat_file
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({**known, "at": now}) + "\n")
        os.replace(temporary, file)


_outputs: list[ReportOutput | None] = []


def flush_reports() -> None:
    """Write what is reported and not written yet; when the program ends, and before its instrumentation does."""
    for output in _outputs:
        if output is not None:
            output.flush(time.time())


def _output() -> ReportOutput | None:
    """That of this process; None outside a job, and where the environment is not that of a job."""
    if not _outputs:
        try:
            _outputs.append(ReportOutput(os.environ))
            atexit.register(flush_reports)
        except (KeyError, ValueError):
            _outputs.append(None)
    return _outputs[0]
