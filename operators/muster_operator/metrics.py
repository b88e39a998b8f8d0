"""The operator's metrics: names, labels and help texts, and how those of jobs are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram

from muster.api import spec
from muster.api.quantity import parse_quantity
from muster.usage.goodput import account_until, by_main_cause
from muster.version import version
from muster.workload.conditions import is_admitted, is_finished
from muster.workload.placement import charged_placement
from muster.workload.protocol import Workload
from muster.workload.transitions import START_TIMEOUT
from muster_operator.job_transitions import job_transitions

NO_QUEUE = "(none)"
"""Label of all queues that do not exist."""

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
        self.waiting = gauge("muster_queue_waiting_jobs", "Pending jobs by queue and reason.", ("queue", "reason"))
        cells = ("queue", "flavor", "resource")
        self.used = gauge("muster_queue_used", "Charged usage of a queue, with queues below it.", cells)
        self.guaranteed = gauge("muster_queue_guaranteed", "Guarantee of a queue.", cells)
        self.evictions = counter("muster_evictions_total", "Evictions of admitted jobs.", ("queue", "reason"))
        self.restarts = counter("muster_restarts_total", "Restarts of jobs after a failure.", ("queue",))
        self.time_s = counter(
            "muster_job_time_seconds_total",
            "Time of jobs since their submission by what it was spent on, counted when that ends.",
            ("queue", "cause"),
        )
        self.ended_time_s = counter(
            "muster_ended_job_time_seconds_total",
            "Time of jobs that have ended, with that of their pods divided by their steps.",
            ("queue", "cause"),
        )
        self.job_time_s = gauge(
            "muster_running_job_seconds",
            "Time of a running job since its submission by what it was spent on, with that of its pods divided.",
            ("namespace", "job", "cause"),
        )
        self.losses = counter("muster_losses_total", "Attempts of jobs that lost a node or pod.", ("queue",))
        self.start_timeouts = counter("muster_start_timeouts_total", "Jobs not ready in time.", ("queue",))
        self.ended = counter("muster_jobs_ended_total", "Jobs that ended.", ("queue", "phase", "reason"))
        self.refused_statuses = gauge(
            "muster_refused_statuses", "Statuses of jobs that the API server refuses at present.", ("change",)
        )
        self.build_info = gauge("muster_build_info", "1, with the version of this operator.", ("version",))
        self.build_info.labels(version()).set(1)
        self.avoided_nodes = gauge("muster_avoided_nodes", "Nodes that all jobs avoid after failures there.")
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
        self.kinds = gauge(
            "muster_queued_kind_installed", "1 for a kind of queuedKinds whose CRD is installed, else 0.", ("kind",)
        )
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

    def set_refused_statuses(self, counts: Mapping[str, int]) -> None:
        """Refused statuses by change."""
        self.refused_statuses.clear()
        for change, count in counts.items():
            self.refused_statuses.labels(change).set(count)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        return prometheus_client.generate_latest(self.registry)


def _ended_causes(old: spec.QueueingStatus, new: spec.QueueingStatus) -> dict[str, float]:
    """Seconds by cause, waiting without its reason, that the account of the new status has and the old one has not."""
    before = old.time_spent.milliseconds if old.time_spent is not None else {}
    seconds: dict[str, float] = {}
    for cause, spent_ms in (new.time_spent.milliseconds if new.time_spent is not None else {}).items():
        if spent_ms > before.get(cause, 0):
            main = cause.partition("/")[0]
            seconds[main] = seconds.get(main, 0.0) + (spent_ms - before.get(cause, 0)) / 1000
    return seconds


_UsageKey = tuple[str, str, str]  # queue, namespace, resource


@dataclass(slots=True)
class _RunningUsage:
    since: float
    amounts: dict[_UsageKey, int]


class JobMetrics:
    """Metrics of jobs: how many wait in each queue, how long they waited, their GPU-seconds. Updates `metrics` from
    acknowledged statuses, and from all jobs on each scrape.

    Only jobs whose objects changed since the last scrape are read, so that frequent scrapes are cheap. Anyone may
    submit a job that names any queue: of queues that do not exist there is one label, so that the number of series is
    bounded.
    """

    def __init__(
        self,
        metrics: OperatorMetrics,
        jobs: Callable[[], Iterable[Workload]],
        queues: Callable[[], Iterable[spec.Queue]],
        clock: Callable[[], float],
    ) -> None:
        self._cycle_started_at = 0.0
        self._metrics = metrics
        self._jobs = jobs
        self._queues = queues
        self._queue_names: set[str] = set()  # as of the last scrape, or the last name that was not among them
        self._clock = clock
        self._scraped_jobs: dict[str, Workload] = {}
        self._running: dict[str, _RunningUsage] = {}

    @property
    def cycle_started_at(self) -> float:
        """When the present scheduling cycle started; 0 before the first."""
        return self._cycle_started_at

    def on_cycle_started(self) -> None:
        self._cycle_started_at = self._clock()

    def on_status_written(self, before: Workload, status: spec.QueueingStatus, cycle_started_at: float) -> None:
        """A status was written that was decided in the scheduling cycle that started at this time."""
        now, queue = self._clock(), self._queue_label(before.queue)
        if is_admitted(status) and not is_admitted(before.status):
            submitted_at = now if status.submitted_at is None else status.submitted_at
            self._metrics.wait_s.labels(queue).observe(max(0.0, now - submitted_at))
            self._metrics.admission_s.observe(max(0.0, now - cycle_started_at))
            self._metrics.admitted.labels(queue).inc()
        self._count_transitions(queue, before.status, status)
        self._start_usage(before, status, now)

    def _count_transitions(self, queue: str, old: spec.QueueingStatus, new: spec.QueueingStatus) -> None:
        metrics = self._metrics
        for transition in job_transitions(old, new):
            if transition.kind == "evicted":
                metrics.evictions.labels(queue, transition.reason).inc()
            elif transition.kind == "ended":
                metrics.ended.labels(queue, new.phase if new.phase != "Terminating" else "Cancelled", new.reason).inc()
            if transition.reason == START_TIMEOUT and transition.kind in ("evicted", "ended"):
                metrics.start_timeouts.labels(queue).inc()
        for cause, seconds in _ended_causes(old, new).items():
            metrics.time_s.labels(queue, cause).inc(seconds)
        if new.time_spent is not None and new.time_spent.cause == "" and not is_finished(old):
            for cause, spent_ms in by_main_cause(account_until(new.time_spent, new.time_spent.since)).items():
                metrics.ended_time_s.labels(queue, cause).inc(spent_ms / 1000)
        metrics.restarts.labels(queue).inc(max(0, new.restarts - old.restarts))
        metrics.losses.labels(queue).inc(max(0, new.node_losses - old.node_losses))

    def refresh(self) -> None:
        """Bring gauges and running counters up to date."""
        now, depth, waiting = self._clock(), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        queues = tuple(self._queues())
        self._queue_names = names = {queue.metadata.name for queue in queues}
        before, self._scraped_jobs = self._scraped_jobs, {}
        for job in self._jobs():
            if job.is_group:
                continue  # its indices are jobs
            uid, status = job.metadata.uid, job.status
            self._scraped_jobs[uid] = job
            queue = job.queue if job.queue in names else NO_QUEUE
            depth[queue, status.phase] += 1
            if status.phase == "Pending":
                waiting[queue, status.reason or "NotReconciled"] += 1
            if before.get(uid) is not job:
                self._start_usage(job, status, now)
        for uid in tuple(self._running):
            self._accrue_usage(uid, now)
            if uid not in self._scraped_jobs:
                del self._running[uid]
        self._clear()
        for labels, number in depth.items():
            self._metrics.queue_jobs.labels(*labels).set(number)
        for labels, number in waiting.items():
            self._metrics.waiting.labels(*labels).set(number)
        for one in queues:
            self._set_quota(one)
        for job in self._scraped_jobs.values():
            self._set_collectives(job)
            self._set_time(job, now)

    def reset(self) -> None:
        """Another operator leads and counts from now on. The counters keep their values."""
        self._scraped_jobs.clear()
        self._running.clear()
        self._clear()

    def _clear(self) -> None:
        metrics = self._metrics
        for gauge in (metrics.queue_jobs, metrics.waiting, metrics.used, metrics.guaranteed):
            gauge.clear()
        for gauge in (metrics.job_collectives, metrics.job_collective_bytes, metrics.job_time_s):
            gauge.clear()

    def _queue_label(self, queue: str) -> str:
        if queue not in self._queue_names:  # it may be new; the list is not read for every status
            self._queue_names = {one.metadata.name for one in self._queues()}
        return queue if queue in self._queue_names else NO_QUEUE

    def _set_quota(self, queue: spec.Queue) -> None:
        """Usage and guarantees, from the queue's status."""
        usage = queue.status.usage
        for flavor in () if usage is None else usage.flavors:
            for gauge, amounts in ((self._metrics.used, flavor.used), (self._metrics.guaranteed, flavor.guaranteed)):
                for resource, amount in amounts.items():
                    value = parse_quantity(amount, resource) / (1000 if resource == "cpu" else 1)
                    gauge.labels(queue.metadata.name, flavor.flavor, resource).set(value)

    def _set_collectives(self, job: Workload) -> None:
        status, labels = job.status, (job.metadata.namespace or "default", job.metadata.name)
        if (
            not isinstance(status, spec.TrainingJobStatus)
            or status.phase != "Running"
            or status.progress is None
            or status.progress.attempt != status.attempt
        ):
            return
        if status.progress.collectives_per_step is not None:
            self._metrics.job_collectives.labels(*labels).set(status.progress.collectives_per_step)
        if status.progress.collective_bytes_per_step is not None:
            self._metrics.job_collective_bytes.labels(*labels).set(status.progress.collective_bytes_per_step)

    def _set_time(self, job: Workload, now: float) -> None:
        status, labels = job.status, (job.metadata.namespace or "default", job.metadata.name)
        if isinstance(status, spec.TrainingJobStatus) and status.phase == "Running" and status.time_spent is not None:
            for cause, spent_ms in by_main_cause(account_until(status.time_spent, now)).items():
                self._metrics.job_time_s.labels(*labels, cause).set(spent_ms / 1000)

    def _start_usage(self, job: Workload, status: spec.QueueingStatus, now: float) -> None:
        """Start counting the usage in this status."""
        uid = job.metadata.uid
        self._accrue_usage(uid, now)
        self._running.pop(uid, None)
        if not is_admitted(status) or is_finished(status):
            return
        requests = {role.name: role.request for role in job.roles()}
        queue = self._queue_label(job.queue)
        amounts: dict[_UsageKey, int] = {}
        for part in charged_placement(status):
            for resource, amount in requests.get(part.role, ()):
                if "gpu" in resource:
                    cell = (queue, job.metadata.namespace or "default", resource)
                    amounts[cell] = amounts.get(cell, 0) + amount * part.replicas
        if amounts:
            self._running[uid] = _RunningUsage(now, amounts)

    def _accrue_usage(self, uid: str, now: float) -> None:
        running = self._running.get(uid)
        if running is not None:
            for cell, amount in running.amounts.items():
                self._metrics.gpu_s.labels(*cell).inc(amount * max(0.0, now - running.since))
            running.since = now
