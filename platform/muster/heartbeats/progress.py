"""Progress lines of a job, from the newest heartbeats of its ranks (docs/reference/run-folder.md). No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.api.spec import ProgressStatus
from muster.text import format_count, format_duration

STARTUP_REPEAT_S = 30.0
"""Before the first step, the line of a phase is repeated after this time, with the time that the phase has taken."""
_STARTUP_PHASES = {"setup": "setting up", "compile": "compiling"}


def leading_heartbeat(heartbeats: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The heartbeat of the lowest rank of the newest attempt, which represents the job."""
    if not heartbeats:
        return None
    newest = max(heartbeat.get("attempt") or 0 for heartbeat in heartbeats)
    of_attempt = (heartbeat for heartbeat in heartbeats if (heartbeat.get("attempt") or 0) == newest)
    return min(of_attempt, key=lambda heartbeat: heartbeat.get("rank") or 0)


def current_heartbeat(heartbeats: Sequence[dict[str, Any]], attempt: int) -> dict[str, Any] | None:
    """The leading heartbeat, unless it is of an attempt before `attempt`."""
    leading = leading_heartbeat(heartbeats)
    return leading if leading is None or (leading.get("attempt") or 0) >= attempt else None


def final_heartbeat(heartbeat: Mapping[str, Any]) -> dict[str, Any]:
    """The last heartbeat of a job that has ended: without phase and remaining time."""
    return {**heartbeat, "phase": "done", "eta_s": None}


def startup_message(heartbeat: Mapping[str, Any], now: float) -> str:
    """The phase before the first step and its duration; empty once a step is done."""
    if heartbeat.get("loss") is not None or heartbeat.get("phase") not in _STARTUP_PHASES:
        return ""
    at = heartbeat.get("at")
    since = f" for {format_duration(now - at)}" if isinstance(at, int | float) and now - at >= 1 else ""
    hint = "; the first time this can take a minute or more" if heartbeat["phase"] == "compile" else ""
    return f"{_STARTUP_PHASES[heartbeat['phase']]}{since}{hint}"


def heartbeat_from_status(progress: ProgressStatus) -> dict[str, Any]:
    """The progress in a job's status as a heartbeat of rank 0."""
    return {
        "rank": 0,
        "attempt": progress.attempt,
        "step": progress.step,
        "steps": progress.steps,
        "loss": progress.loss,
        "tokens_per_s": progress.tokens_per_second,
        "eta_s": progress.estimated_remaining_seconds,
        "collectives_per_step": progress.collectives_per_step,
        "collective_bytes_per_step": progress.collective_bytes_per_step,
        "at": progress.at,
    }


def progress_from_heartbeat(heartbeat: Mapping[str, Any]) -> ProgressStatus | None:
    """A heartbeat with valid numbers as the progress in a job's status; None without a step."""
    if heartbeat.get("step") is None or heartbeat.get("at") is None:
        return None
    return ProgressStatus(
        step=heartbeat["step"],
        steps=heartbeat.get("steps"),
        loss=heartbeat.get("loss"),
        tokens_per_second=heartbeat.get("tokens_per_s"),
        estimated_remaining_seconds=eta_s(heartbeat),
        collectives_per_step=heartbeat.get("collectives_per_step"),
        collective_bytes_per_step=heartbeat.get("collective_bytes_per_step"),
        attempt=heartbeat.get("attempt") or 0,
        at=heartbeat["at"],
    )


def progress_line(heartbeat: Mapping[str, Any]) -> str:
    """`step 40/60  loss 2.31  12.3k tokens/s  MFU 41.2%  ETA 1m10s`, without unknown parts."""
    parts = []
    if heartbeat.get("step") is not None:
        parts.append(f"step {heartbeat['step']}" + (f"/{heartbeat['steps']}" if heartbeat.get("steps") else ""))
    if heartbeat.get("phase") in ("setup", "compile", "checkpoint"):
        parts.append(str(heartbeat["phase"]))
    if heartbeat.get("loss") is not None:
        parts.append(f"loss {heartbeat['loss']:.4g}")
    if heartbeat.get("tokens_per_s"):
        parts.append(f"{format_count(heartbeat['tokens_per_s'])} tokens/s")
    if heartbeat.get("mfu"):
        parts.append(f"MFU {heartbeat['mfu'] * 100:.1f}%")
    remaining_s = eta_s(heartbeat)
    if remaining_s is not None:
        parts.append(f"ETA {format_duration(remaining_s)}")
    return "  ".join(parts)


def eta_s(heartbeat: Mapping[str, Any]) -> float | None:
    """Seconds to the last step, as reported or computed from the step time; None if done or unknown."""
    step, steps = heartbeat.get("step") or 0, heartbeat.get("steps")
    if heartbeat.get("phase") == "done" or (steps and step >= steps):
        return None
    if heartbeat.get("eta_s") is not None:
        return float(heartbeat["eta_s"])
    if steps and step and heartbeat.get("step_time_s"):
        return float((steps - step) * heartbeat["step_time_s"])
    return None


@dataclass(frozen=True, slots=True)
class _LineKey:
    """Identifies what a line reports: a line is printed when this changes."""

    attempt: int
    startup_phase: str  # the phase, before the first step
    step: int | None


@dataclass(slots=True)
class ProgressLines:
    """Decides when the progress of one job is printed: a new phase at once, a new step at least `every_s` seconds after
    the last line, an unchanged phase before the first step every `STARTUP_REPEAT_S`."""

    every_s: float
    _last_key: _LineKey | None = None
    _last_printed_at: float = -math.inf

    def next_line(self, heartbeat: Mapping[str, Any] | None, now: float, *, finished: bool = False) -> str | None:
        """The line to print now, or None. With `finished`, a new step is printed without waiting."""
        startup = "" if heartbeat is None else startup_message(heartbeat, now)
        key = _line_key(heartbeat, startup)
        if heartbeat is None or key is None:
            return None
        waited_s = now - self._last_printed_at
        if key == self._last_key:
            if not (key.startup_phase and waited_s >= STARTUP_REPEAT_S):
                return None
        elif not (finished or key.startup_phase or waited_s >= self.every_s):
            return None
        self._last_key, self._last_printed_at = key, now
        return startup or progress_line(heartbeat)


def _line_key(heartbeat: Mapping[str, Any] | None, message: str) -> _LineKey | None:
    """None while there is neither a startup phase nor a step."""
    if heartbeat is None:
        return None
    phase = str(heartbeat["phase"]) if message else ""
    step = None if phase else heartbeat.get("step")
    return _LineKey(heartbeat.get("attempt") or 0, phase, step) if phase or step is not None else None
