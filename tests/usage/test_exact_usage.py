"""Usage is exactly what was charged, whatever is killed, resized, preempted or deleted."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.checked_cluster import Killed, workloads
from tests.engine.faults import FAULTS, KILLS, Arrivals, Fault, schedule_faults
from tests.usage.histories import ChargedCluster, charged_cluster, gpu_cells

from muster.api.spec import TERMINAL_PHASES
from muster.engine import Engine, run_cycle
from muster.usage.record import UsageDocument, decode_jobs, decode_totals, encode, next_document
from muster.usage.report import RecordedUsage, UsagePeriod, usage_series
from muster.usage.segments import JobSegments, segments_of
from muster.usage.totals import UsageTotals

MIDNIGHT = 20_000 * 86_400.0
EVERYTHING = UsagePeriod(0, 10**7, "hour")


class Recorder:
    """Writes documents as the operator does: a write is made, or not, or made without an answer before a kill."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, int, bytes, bytes]] = []  # durable: day, number, sums, jobs
        self._newest: UsageDocument | None = None

    def restart(self) -> None:
        """Everything in memory is lost."""
        self._newest = None
        if self.stored:
            day, number, sums, jobs = self.stored[-1]
            self._newest = UsageDocument(day, number, decode_totals(sums), *decode_jobs(jobs))

    def record(self, live: list[JobSegments], deleted: list[JobSegments], now: float, outcome: str) -> None:
        max_bytes = 100_000
        if outcome == "full" and self._newest is not None:  # no larger than its successor would be
            max_bytes = encode(self._newest.successor(self._newest.day).updated(live, deleted)).size
        found = next_document(self._newest, round(now * 1000), live, deleted, max_bytes)
        one = found.document
        if outcome != "killed before the write":
            row = (one.day, one.number, found.totals, found.jobs)
            if self._newest is not None and (self._newest.day, self._newest.number) == row[:2]:
                self.stored[-1] = row
            else:
                self.stored.append(row)
        if outcome in ("written", "full"):
            self._newest = one
        else:
            self.restart()

    def recorded(self) -> RecordedUsage:
        """As a reader finds it."""
        if not self.stored:
            return RecordedUsage()
        sums = tuple(decode_totals(row[2]) for row in self.stored)
        return RecordedUsage(sums, decode_jobs(self.stored[-1][3])[0])


OUTCOMES = st.sampled_from(["written", "full", "killed before the write", "killed after the write", "not tried"])


def live(cluster: ChargedCluster) -> list[JobSegments]:
    found = (segments_of(cluster.job(uid), cluster.now) for uid in cluster.job_uids())
    return [one for one in found if one is not None]


def run(cluster: ChargedCluster, recorder: Recorder, kills: list[int], outcomes: list[str]) -> None:
    """Until nothing happens any more; after each cycle usage is recorded, or the recorder is killed."""
    engine, wake_at = Engine(), None

    def removed(job: Any) -> None:
        segments = segments_of(job, cluster.now)
        if segments is not None:
            recorder.record(live(cluster), [segments.with_end()], cluster.now, "written")

    cluster.on_removed = removed  # type: ignore[method-assign]
    cluster.writes_left = kills.pop(0) if kills else None
    for _ in range(5000):
        jobs = cluster.job_uids()
        ended = all(cluster.job(uid).status.phase in TERMINAL_PHASES for uid in jobs)
        times = [at for at in (cluster.next_event_time(), wake_at) if at is not None]
        if not times or (ended and cluster.next_event_time() is None):
            return
        cluster.advance(max(cluster.now, min(times)))
        try:
            wake_at = run_cycle(cluster, engine).wake_at
        except Killed:
            engine, wake_at = Engine(), cluster.now
            cluster.writes_left = kills.pop(0) if kills else None
        outcome = outcomes.pop(0) if outcomes else "written"
        if outcome != "not tried":
            recorder.record(live(cluster), [], cluster.now, outcome)
            cluster.recorded_usage = dict(recorder.recorded().counted)
        check(cluster, recorder)
    raise AssertionError("never ends")


def check(cluster: ChargedCluster, recorder: Recorder) -> None:
    """What a reader computes at any time is what was charged until then."""
    found = recorder.recorded()
    sums = UsageTotals()
    for totals in found.totals:
        sums.merge(totals.hours)
    for job in live(cluster):
        counted = found.counted.get(job.uid, 0)
        sums.add_all(job.after(counted))
        if job.current is not None:
            sums.add(job.current)
    assert gpu_cells([sums]) == cluster.charged()
    by_queue = usage_series(found, live(cluster), EVERYTHING, "queue", lambda namespace: True)
    total: dict[str, int] = {}
    for (_, queue, _), amount in cluster.charged().items():
        total[queue] = total.get(queue, 0) + amount
    assert {one.name: one.total for one in by_queue if one.resource == "nvidia.com/gpu"} == total


@settings(deadline=None)
@given(
    workloads(),
    KILLS,
    FAULTS,
    st.lists(OUTCOMES, max_size=60),
    st.sampled_from([0.0, MIDNIGHT - 30.0, MIDNIGHT - 3600.0 - 20.0]),
)
def test_at_any_time_the_record_and_the_statuses_together_are_what_was_charged(
    arrivals: Arrivals, kills: list[int], faults: list[Fault], outcomes: list[str], start: float
) -> None:
    cluster = charged_cluster(arrivals, start)
    schedule_faults(cluster, [(start + at, kind, number) for at, kind, number in faults])
    run(cluster, Recorder(), list(kills), list(outcomes))
