"""What collectors report: the newest heartbeat of each job, how much progress it proves now, traces collected, and
ranks that did not stop.

A job whose collector cannot be reached does not count as stalled: while there is no answer it counts as if it had just
made a step. So a failure of the pod network, the operator or a collector never ends a job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from muster.capture.protocol import MAX_WORLD_SIZE
from muster.cluster import Heartbeat
from muster.heartbeats.parse import (
    MAX_CLOCK_SKEW_S,
    ClockReading,
    parse_count,
    parse_heartbeat,
    parse_run_time,
    parse_time,
)


@dataclass(frozen=True, slots=True)
class HeartbeatReport:
    """One answer of a collector. `now`: the collector's clock; `durable`: the job's checkpoints outlive its pods."""

    pod: str
    now: float
    heartbeat: Mapping[str, object]
    checkpoint: Mapping[str, object]
    durable: bool
    run_time: object = None


@dataclass(frozen=True, slots=True)
class _Entry:
    pod: str
    responded_at: float
    offset_s: float  # to add to a time of the pod's clock
    heartbeat: Heartbeat | None
    unanswered: Heartbeat | None  # the same without the time of a step: it proves no stall

    @classmethod
    def of(cls, pod: str, responded_at: float, offset_s: float, heartbeat: Heartbeat | None) -> _Entry:
        unanswered = None if heartbeat is None else replace(heartbeat, step_time_s=None)
        return cls(pod, responded_at, offset_s, heartbeat, unanswered)

    def shown(self, now: float, timeout_s: float) -> Heartbeat | None:
        return self.heartbeat if now - self.responded_at <= timeout_s else self.unanswered


class HeartbeatCache:
    """Newest report by job uid. A report is valid for `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._entries: dict[str, _Entry] = {}

    def on_response(self, uid: str, report: HeartbeatReport, now: float) -> bool:
        """Record an answer; whether the engine would see a change. `now`: our clock on receipt."""
        before = self._entries.get(uid)
        if before is not None and before.pod == report.pod:
            offset_s = before.offset_s
        else:
            skew_s = now - report.now
            offset_s = float(round(skew_s)) if abs(skew_s) > MAX_CLOCK_SKEW_S else 0.0
        old = None if before is None else before.heartbeat
        heartbeat = parse_heartbeat(report.heartbeat, report.checkpoint, ClockReading(now, offset_s), old)
        if heartbeat is not None and not report.durable:
            heartbeat = replace(heartbeat, checkpoint_step=None, checkpoint_at=None)
        if heartbeat is not None:
            run_time = parse_run_time(report.run_time, ClockReading(now, offset_s))
            heartbeat = replace(heartbeat, run_time=run_time or (None if old is None else old.run_time))
            heartbeat = old if heartbeat == old else heartbeat
        self._entries[uid] = _Entry.of(report.pod, now, offset_s, heartbeat)
        return heartbeat is not old

    def on_termination(self, uid: str, pod: str, checkpoint: tuple[float | None, float], now: float) -> bool:
        """Record the durable checkpoint (step, time) in a pod's termination message; whether that is a change."""
        before = self._entries.get(uid)
        same = before is not None and before.pod == pod
        offset_s = before.offset_s if before is not None and same else 0.0
        step, at = parse_count(checkpoint[0]), parse_time(checkpoint[1], ClockReading(now, offset_s))
        old = None if before is None else before.heartbeat
        if at is None or (old is not None and (old.checkpoint_at or 0.0) >= at):
            return False
        heartbeat = replace(
            old or Heartbeat(at=at, step=step or 0, step_changed_at=at, has_stepped=False),
            checkpoint_step=step,
            checkpoint_at=at,
        )
        received_at = before.responded_at if before is not None and same else 0.0
        self._entries[uid] = _Entry.of(pod, received_at, offset_s, heartbeat)
        return True

    def on_final_run_time(self, uid: str, pod: str, reported: object, now: float) -> None:
        """Record the division of time in a pod's termination message, where that pod has sent a heartbeat."""
        before = self._entries.get(uid)
        run_time = parse_run_time(reported, ClockReading(now, before.offset_s if before is not None else 0.0))
        old = None if before is None else before.heartbeat
        if before is None or before.pod != pod or old is None or run_time is None:
            return
        if old.run_time is None or run_time.at >= old.run_time.at:
            heartbeat = replace(old, run_time=run_time)
            self._entries[uid] = _Entry.of(pod, before.responded_at, before.offset_s, heartbeat)

    def last_response_at(self, uid: str, pod: str) -> float | None:
        """When this pod of the job last answered."""
        known = self._entries.get(uid)
        return known.responded_at if known is not None and known.pod == pod else None

    def retain(self, uids: Collection[str]) -> None:
        """Forget all other jobs."""
        for uid in self._entries.keys() - uids:
            del self._entries[uid]

    def observed(self, watched: Iterable[tuple[str, str]], now: float) -> dict[str, Heartbeat]:
        """The heartbeats for the engine; unchanged ones keep their identity. Of a collector that does not answer it
        lacks the time of a step.

        `watched`: jobs with a time-out of steps, and the name of the lead pod of each.
        """
        entries = ((uid, known.shown(now, self._timeout_s)) for uid, known in self._entries.items())
        shown = {uid: heartbeat for uid, heartbeat in entries if heartbeat is not None}
        for uid, pod in watched:
            received_at = self.last_response_at(uid, pod)
            if received_at is None or now - received_at > self._timeout_s:
                last = shown.get(uid) or Heartbeat(at=0.0, step=0, step_changed_at=now)
                shown[uid] = replace(last, step_changed_at=now)
        return shown


class TraceCounts:
    """Traces collected, from heartbeats and termination messages: counts by job uid, then by (role, index).

    A collector also counts the traces of earlier attempts that it still finds, so the maximum of each pod counts.
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[tuple[str, int], int]] = {}
        self._pending: set[str] = set()

    def record(self, uid: str, slot: tuple[str, int], traces: int) -> None:
        """The collector of this pod has collected so many."""
        counts = self._counts.setdefault(uid, {})
        counts[slot] = max(traces, counts.get(slot, 0))

    def record_final(self, uid: str, slot: tuple[str, int], traces: int) -> None:
        """The collector of this pod has ended with so many."""
        self.record(uid, slot, traces)
        self._pending.add(uid)

    def count(self, uid: str) -> int:
        """Sum over the pods of a job."""
        return sum(self._counts.get(uid, {}).values())

    def pending(self) -> list[str]:
        """Jobs with a collector that ended since `mark_written`, sorted."""
        return sorted(self._pending)

    def mark_written(self, uid: str) -> None:
        """The final counts of a job were written."""
        self._pending.discard(uid)

    def retain(self, uids: Collection[str]) -> None:
        """Forget all other jobs."""
        for uid in self._counts.keys() - uids:
            del self._counts[uid]
            self._pending.discard(uid)


@dataclass(frozen=True, slots=True)
class StoppedPod:
    """A pod whose collector ended with a message about its ranks; it is not decoded here. `did_not_stop`: they had to
    be killed."""

    pod: str
    node: str
    message: str
    did_not_stop: bool = True


@dataclass(slots=True)
class HungAttempt:
    """The pods of an attempt with such ranks, by name."""

    attempt: int
    pods: dict[str, StoppedPod] = field(default_factory=dict)


class HungRanks:
    """The newest such attempt of each job, by uid."""

    def __init__(self) -> None:
        self._attempts: dict[str, HungAttempt] = {}

    def record(self, uid: str, attempt: int, pod: StoppedPod) -> None:
        """A pod of this attempt has ended with such ranks."""
        known = self._attempts.get(uid)
        if known is None or known.attempt < attempt:
            known = self._attempts[uid] = HungAttempt(attempt)
        if known.attempt == attempt and len(known.pods) < MAX_WORLD_SIZE:
            known.pods[pod.pod] = pod

    def pending(self) -> list[tuple[str, HungAttempt]]:
        """Attempts whose ranks are not in the status yet, by uid."""
        return sorted(self._attempts.items(), key=lambda item: item[0])

    def mark_written(self, uid: str) -> None:
        """The status says it, or never will."""
        self._attempts.pop(uid, None)

    def retain(self, uids: Collection[str]) -> None:
        """Forget all other jobs."""
        for uid in self._attempts.keys() - uids:
            del self._attempts[uid]
