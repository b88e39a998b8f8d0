"""How far a job is, by what its ranks said last (docs/run-folder.md): in a few words, and when they are worth another
line (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.amounts import count, duration
from muster.spec import ProgressStatus

STILL_EVERY_S = 30.0
"""What takes long before the first step is told again no sooner than this, with the time that it has taken."""
_PREPARING = {"setup": "setting up", "compile": "compiling"}


def leading(beats: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The beat of the lowest rank of the newest attempt: it speaks for the job."""
    if not beats:
        return None
    newest = max(beat.get("attempt") or 0 for beat in beats)
    return min((beat for beat in beats if (beat.get("attempt") or 0) == newest), key=lambda beat: beat.get("rank") or 0)


def present(beats: Sequence[dict[str, Any]], attempt: int) -> dict[str, Any] | None:
    """The beat that speaks for the attempt at hand: what an earlier one said last is no progress of this one."""
    beat = leading(beats)
    return beat if beat is None or (beat.get("attempt") or 0) >= attempt else None


def at_rest(beat: Mapping[str, Any]) -> dict[str, Any]:
    """What a rank said last, for a job that runs no more: how far it came, not what it was about to do."""
    return {**beat, "phase": "done", "eta_s": None}


def preparing(beat: Mapping[str, Any], now: float) -> str:
    """What a rank does before its first step, and for how long; empty once it has made one."""
    if beat.get("loss") is not None or beat.get("phase") not in _PREPARING:
        return ""
    at = beat.get("at")
    since = f" for {duration(now - at)}" if isinstance(at, int | float) and now - at >= 1 else ""
    hint = "; the first time this can take a minute or more" if beat["phase"] == "compile" else ""
    return f"{_PREPARING[beat['phase']]}{since}{hint}"


def told(progress: ProgressStatus) -> dict[str, Any]:
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


def figures(beat: Mapping[str, Any]) -> str:
    """`step 40/60  loss 2.31  12.3k tokens/s  MFU 41.2%  ETA 1m10s`; what is unknown is left out."""
    parts = []
    if beat.get("step") is not None:
        parts.append(f"step {beat['step']}" + (f"/{beat['steps']}" if beat.get("steps") else ""))
    if beat.get("phase") in ("setup", "compile", "checkpoint"):
        parts.append(str(beat["phase"]))
    if beat.get("loss") is not None:
        parts.append(f"loss {beat['loss']:.4g}")
    if beat.get("tokens_per_s"):
        parts.append(f"{count(beat['tokens_per_s'])} tokens/s")
    if beat.get("mfu"):
        parts.append(f"MFU {beat['mfu'] * 100:.1f}%")
    left = eta_s(beat)
    if left is not None:
        parts.append(f"ETA {duration(left)}")
    return "  ".join(parts)


def eta_s(beat: Mapping[str, Any]) -> float | None:
    """Seconds to the last step, as the job says or by its step time; None when it is done or cannot be known."""
    step, steps = beat.get("step") or 0, beat.get("steps")
    if beat.get("phase") == "done" or (steps and step >= steps):
        return None
    if beat.get("eta_s") is not None:
        return float(beat["eta_s"])
    if steps and step and beat.get("step_time_s"):
        return float((steps - step) * beat["step_time_s"])
    return None


@dataclass(frozen=True, slots=True)
class _Doing:
    """What a line is about: only a new one is worth a new line."""

    attempt: int
    preparing: str  # the phase, before the first step
    step: int | None


@dataclass(slots=True)
class Lines:
    """Lines about one job, one after the other. Another phase is told at once, another step `every_s` seconds after the
    last line or later, and what goes on and on before the first step every `STILL_EVERY_S`."""

    every_s: float
    _shown: _Doing | None = None
    _shown_at: float = -math.inf

    def due(self, beat: Mapping[str, Any] | None, now: float, *, over: bool = False) -> str | None:
        """The line that is worth printing now, if any. Once the job is `over`, its last step need not wait."""
        said = "" if beat is None else preparing(beat, now)
        doing = _doing(beat, said)
        if beat is None or doing is None:
            return None
        waited_s = now - self._shown_at
        if doing == self._shown:
            if not (doing.preparing and waited_s >= STILL_EVERY_S):
                return None
        elif not (over or doing.preparing or waited_s >= self.every_s):
            return None
        self._shown, self._shown_at = doing, now
        return said or figures(beat)


def _doing(beat: Mapping[str, Any] | None, said: str) -> _Doing | None:
    """None as long as the job says nothing."""
    if beat is None:
        return None
    phase = str(beat["phase"]) if said else ""
    step = None if phase else beat.get("step")
    return _Doing(beat.get("attempt") or 0, phase, step) if phase or step is not None else None
