"""How far a job is, by what its ranks said last (docs/run-folder.md): in a few words, and when they are worth another
line (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.spec import ProgressStatus
from muster.text.humanize import format_count, format_duration

STARTUP_REPEAT_S = 30.0
"""What takes long before the first step is told again no sooner than this, with the time that it has taken."""
_STARTUP_PHASES = {"setup": "setting up", "compile": "compiling"}


def leading_heartbeat(heartbeats: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The beat of the lowest rank of the newest attempt: it speaks for the job."""
    if not heartbeats:
        return None
    newest = max(beat.get("attempt") or 0 for beat in heartbeats)
    return min(
        (beat for beat in heartbeats if (beat.get("attempt") or 0) == newest), key=lambda beat: beat.get("rank") or 0
    )


def current_heartbeat(heartbeats: Sequence[dict[str, Any]], attempt: int) -> dict[str, Any] | None:
    """The beat that speaks for the attempt at hand: what an earlier one said last is no progress of this one."""
    beat = leading_heartbeat(heartbeats)
    return beat if beat is None or (beat.get("attempt") or 0) >= attempt else None


def final_heartbeat(heartbeat: Mapping[str, Any]) -> dict[str, Any]:
    """What a rank said last, for a job that runs no more: how far it came, not what it was about to do."""
    return {**heartbeat, "phase": "done", "eta_s": None}


def startup_message(heartbeat: Mapping[str, Any], now: float) -> str:
    """What a rank does before its first step, and for how long; empty once it has made one."""
    if heartbeat.get("loss") is not None or heartbeat.get("phase") not in _STARTUP_PHASES:
        return ""
    at = heartbeat.get("at")
    since = f" for {format_duration(now - at)}" if isinstance(at, int | float) and now - at >= 1 else ""
    hint = "; the first time this can take a minute or more" if heartbeat["phase"] == "compile" else ""
    return f"{_STARTUP_PHASES[heartbeat['phase']]}{since}{hint}"


def heartbeat_from_status(progress: ProgressStatus) -> dict[str, Any]:
    """What a status tells of how far a job is, as the beat of rank 0."""
    return {
        "rank": 0,
        "attempt": progress.attempt,
        "step": progress.step,
        "steps": progress.steps,
        "loss": progress.loss,
        "tokens_per_s": progress.tokens_per_second,
        "at": progress.at,
    }


def progress_line(heartbeat: Mapping[str, Any]) -> str:
    """`step 40/60  loss 2.31  12.3k tokens/s  MFU 41.2%  ETA 1m10s`; what is unknown is left out."""
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
    left = eta_s(heartbeat)
    if left is not None:
        parts.append(f"ETA {format_duration(left)}")
    return "  ".join(parts)


def eta_s(heartbeat: Mapping[str, Any]) -> float | None:
    """Seconds to the last step, as the job says or by its step time; None when it is done or cannot be known."""
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
    """What a line is about: only a new one is worth a new line."""

    attempt: int
    startup_phase: str  # the phase, before the first step
    step: int | None


@dataclass(slots=True)
class ProgressLines:
    """Lines about one job, one after the other. Another phase is told at once, another step `every_s` seconds after the
    last line or later, and what goes on and on before the first step every `STILL_EVERY_S`."""

    every_s: float
    _last_key: _LineKey | None = None
    _last_printed_at: float = -math.inf

    def next_line(self, heartbeat: Mapping[str, Any] | None, now: float, *, finished: bool = False) -> str | None:
        """The line that is worth printing now, if any. Once the job is `over`, its last step need not wait."""
        said = "" if heartbeat is None else startup_message(heartbeat, now)
        doing = _line_key(heartbeat, said)
        if heartbeat is None or doing is None:
            return None
        waited_s = now - self._last_printed_at
        if doing == self._last_key:
            if not (doing.startup_phase and waited_s >= STARTUP_REPEAT_S):
                return None
        elif not (finished or doing.startup_phase or waited_s >= self.every_s):
            return None
        self._last_key, self._last_printed_at = doing, now
        return said or progress_line(heartbeat)


def _line_key(heartbeat: Mapping[str, Any] | None, message: str) -> _LineKey | None:
    """None as long as the job says nothing."""
    if heartbeat is None:
        return None
    phase = str(heartbeat["phase"]) if message else ""
    step = None if phase else heartbeat.get("step")
    return _LineKey(heartbeat.get("attempt") or 0, phase, step) if phase or step is not None else None
