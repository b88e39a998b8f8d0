"""The operator's metrics: names, labels and help texts, and how those of jobs are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram

from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.lifecycle import is_admitted, is_finished
from muster.lifecycle.placement import from_status

DURATION_BUCKETS_S = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    7200.0,
    86400.0,
)

# Without `_created`, a second series for each counter and histogram.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class OperatorMetrics:
    """All metrics, in a registry of their own: without prometheus_client's metrics of the Python process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(prometheus_client.Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=DURATION_BUCKETS_S)
        self.api_calls = counter("muster_api_calls_total", "Requests to the API server.", ("verb", "resource", "code"))
        self.cycles = counter("muster_scheduling_cycles_total", "Scheduling cycles: observe, decide, write.")
        self.component_failures = counter(
            "muster_component_failures_total", "Failures after which a component was restarted.", ("component",)
        )
        self.conflicts = counter("muster_conflicts_total", "Status writes rejected because the job changed meanwhile.")
        self.scheduling_s = histogram("muster_scheduling_duration_seconds", "Time to decide in one scheduling cycle.")
        self.write_s = histogram(
            "muster_write_duration_seconds", "Time to write the decisions of one scheduling cycle."
        )
        self.wait_s = histogram("muster_wait_seconds", "Time from submission to admission.", ("queue",))
        self.admission_s = histogram(
            "muster_admission_seconds",
            "Time from the start of a scheduling cycle to the acknowledged admission of a job.",
        )
        self.admitted = counter("muster_admissions_total", "Jobs admitted.", ("queue",))
        self.gpu_s = counter(
            "muster_gpu_seconds_total", "GPU-seconds of admitted jobs.", ("queue", "namespace", "resource")
        )
        self.queue_jobs = gauge("muster_queue_jobs", "Jobs by queue and phase.", ("queue", "phase"))
        self.job_collectives = gauge(
            "muster_job_collectives_per_step",
            "Collectives that rank 0 of a running job calls in a step.",
            ("namespace", "job"),
        )
        self.job_collective_bytes = gauge(
            "muster_job_collective_bytes_per_step",
            "Bytes of the collectives that rank 0 of a running job calls in a step.",
            ("namespace", "job"),
        )
        self.leading = gauge("muster_leading", "1 while this operator leads.")
        self.watch_version = gauge(
            "muster_watch_version", "The resourceVersion that each watch has reached.", ("resource",)
        )
        self.heartbeats = counter("muster_heartbeats_total", "Heartbeat requests by outcome.", ("outcome",))
        self.unreachable_collectors = gauge("muster_collectors_unreachable", "Collectors that do not answer.")
        self.gangs_without_pod_group = counter(
            "muster_gangs_without_pod_group_total",
            "Attempts of gangs that started without a PodGroup, because the API server serves none (--pod-groups).",
        )
        self.dropped_events = counter("muster_events_dropped_total", "Events dropped before they were recorded.")

    def count_call(self, verb: str, resource: str, code: str) -> None:
        """Count a request (`AsyncKubeClient`)."""
        self.api_calls.labels(verb, resource, code).inc()

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        return prometheus_client.generate_latest(self.registry)


_UsageKey = tuple[str, str, str]  # queue, namespace, resource


@dataclass(slots=True)
class _RunningUsage:
    since: float
    amounts: dict[_UsageKey, int]


class JobMetrics:
    """Metrics of jobs: how many wait in each queue, how long they waited, their GPU-seconds. Updates `metrics` from
    acknowledged statuses, and from all jobs on each scrape.

    Only jobs whose objects changed since the last scrape are read, so that frequent scrapes are cheap.
    """

    def __init__(
        self, metrics: OperatorMetrics, jobs: Callable[[], Iterable[spec.TrainingJob]], clock: Callable[[], float]
    ) -> None:
        self._cycle_started_at = 0.0
        self._metrics = metrics
        self._jobs = jobs
        self._clock = clock
        self._scraped_jobs: dict[str, spec.TrainingJob] = {}
        self._running: dict[str, _RunningUsage] = {}

    @property
    def cycle_started_at(self) -> float:
        """When the present scheduling cycle started; 0 before the first."""
        return self._cycle_started_at

    def on_cycle_started(self) -> None:
        """A scheduling cycle starts now."""
        self._cycle_started_at = self._clock()

    def on_status_written(
        self, before: spec.TrainingJob, status: spec.TrainingJobStatus, cycle_started_at: float
    ) -> None:
        """A status was written that was decided in the scheduling cycle that started at this time."""
        now, queue = self._clock(), before.spec.queue
        if is_admitted(status) and not is_admitted(before.status):
            submitted_at = now if status.submitted_at is None else status.submitted_at
            self._metrics.wait_s.labels(queue).observe(max(0.0, now - submitted_at))
            self._metrics.admission_s.observe(max(0.0, now - cycle_started_at))
            self._metrics.admitted.labels(queue).inc()
        self._start_usage(before, status, now)

    def refresh(self) -> None:
        """Bring gauges and running counters up to date."""
        now, depth = self._clock(), Counter[tuple[str, str]]()
        before, self._scraped_jobs = self._scraped_jobs, {}
        for job in self._jobs():
            uid, status = job.metadata.uid, job.status
            self._scraped_jobs[uid] = job
            depth[job.spec.queue, status.phase] += 1
            if before.get(uid) is not job:
                self._start_usage(job, status, now)
        for uid in tuple(self._running):
            self._accrue_usage(uid, now)
            if uid not in self._scraped_jobs:
                del self._running[uid]
        self._clear()
        for labels, number in depth.items():
            self._metrics.queue_jobs.labels(*labels).set(number)
        for job in self._scraped_jobs.values():
            self._set_collectives(job)

    def reset(self) -> None:
        """Another operator leads and counts from now on. The counters keep their values."""
        self._scraped_jobs.clear()
        self._running.clear()
        self._clear()

    def _clear(self) -> None:
        for gauge in (self._metrics.queue_jobs, self._metrics.job_collectives, self._metrics.job_collective_bytes):
            gauge.clear()

    def _set_collectives(self, job: spec.TrainingJob) -> None:
        status, labels = job.status, (job.metadata.namespace or "default", job.metadata.name)
        if status.phase != "Running" or status.progress is None or status.progress.attempt != status.attempt:
            return
        if status.progress.collectives_per_step is not None:
            self._metrics.job_collectives.labels(*labels).set(status.progress.collectives_per_step)
        if status.progress.collective_bytes_per_step is not None:
            self._metrics.job_collective_bytes.labels(*labels).set(status.progress.collective_bytes_per_step)

    def _start_usage(self, job: spec.TrainingJob, status: spec.TrainingJobStatus, now: float) -> None:
        """Start counting the usage in this status."""
        uid = job.metadata.uid
        self._accrue_usage(uid, now)
        self._running.pop(uid, None)
        if not is_admitted(status) or is_finished(status):
            return
        requests = {role.name: pod_request(role.template.spec) for role in job.spec.roles}
        amounts: dict[_UsageKey, int] = {}
        for part in from_status(status.placement):
            for resource, amount in requests.get(part.role, ()):
                if "gpu" in resource:
                    cell = (job.spec.queue, job.metadata.namespace or "default", resource)
                    amounts[cell] = amounts.get(cell, 0) + amount * part.replicas
        if amounts:
            self._running[uid] = _RunningUsage(now, amounts)

    def _accrue_usage(self, uid: str, now: float) -> None:
        running = self._running.get(uid)
        if running is not None:
            for cell, amount in running.amounts.items():
                self._metrics.gpu_s.labels(*cell).inc(amount * max(0.0, now - running.since))
            running.since = now
