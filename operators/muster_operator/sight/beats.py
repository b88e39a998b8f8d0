"""What jobs said of themselves when they were last asked, and what that is worth by now.

A job that cannot be asked is no job that stands still: as long as nobody answers, it counts as if it had just made a
step. So trouble of the pod network, of the operator or of a collector never ends a job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from muster.beats import SKEW_S, Clock, beat_of, count_of, time_of
from muster.cluster import Beat


@dataclass(frozen=True, slots=True)
class Said:
    """One answer. `now` is the clock of who answered; `durable`: its checkpoints outlive its pods."""

    pod: str
    now: float
    beat: Mapping[str, object]
    checkpoint: Mapping[str, object]
    durable: bool


@dataclass(frozen=True, slots=True)
class _Known:
    pod: str
    heard_at: float
    offset_s: float  # what to add to a time of the pod's clock
    beat: Beat | None


class Beats:
    """By job uid. An answer is good for `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._known: dict[str, _Known] = {}

    def heard(self, uid: str, said: Said, now: float) -> bool:
        """An answer came; whether it brings news. `now` is our clock, as it came."""
        before = self._known.get(uid)
        if before is not None and before.pod == said.pod:
            offset_s = before.offset_s
        else:
            skew_s = now - said.now
            offset_s = float(round(skew_s)) if abs(skew_s) > SKEW_S else 0.0
        old = None if before is None else before.beat
        beat = beat_of(said.beat, said.checkpoint, Clock(now, offset_s), old)
        if beat is not None and not said.durable:
            beat = replace(beat, checkpoint_step=None, checkpoint_at=None)
            beat = old if beat == old else beat
        self._known[uid] = _Known(said.pod, now, offset_s, beat)
        return beat is not old

    def ended(self, uid: str, pod: str, checkpoint: tuple[float, float], now: float) -> bool:
        """The last words of a pod whose checkpoints are durable name this one (step, when); whether that is news."""
        before = self._known.get(uid)
        same = before is not None and before.pod == pod
        offset_s = before.offset_s if before is not None and same else 0.0
        step, at = count_of(checkpoint[0]), time_of(checkpoint[1], Clock(now, offset_s))
        old = None if before is None else before.beat
        if step is None or at is None or (old is not None and (old.checkpoint_at or 0.0) >= at):
            return False
        beat = replace(old or Beat(at=at, step=step, step_at=at), checkpoint_step=step, checkpoint_at=at)
        heard_at = before.heard_at if before is not None and same else 0.0
        self._known[uid] = _Known(pod, heard_at, offset_s, beat)
        return True

    def heard_at(self, uid: str, pod: str) -> float | None:
        """When this pod of the job last answered."""
        known = self._known.get(uid)
        return known.heard_at if known is not None and known.pod == pod else None

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all other jobs."""
        for uid in self._known.keys() - uids:
            del self._known[uid]

    def shown(self, watched: Iterable[tuple[str, str]], now: float) -> dict[str, Beat]:
        """The beats as the engine is to see them; what did not change keeps its identity.

        `watched` are jobs that may not stand still, and the name of the pod that speaks for each.
        """
        shown = {uid: known.beat for uid, known in self._known.items() if known.beat is not None}
        for uid, pod in watched:
            heard_at = self.heard_at(uid, pod)
            if heard_at is None or now - heard_at > self._patience_s:
                last = shown.get(uid) or Beat(at=0.0, step=0, step_at=now)
                shown[uid] = replace(last, step_at=now)
        return shown
