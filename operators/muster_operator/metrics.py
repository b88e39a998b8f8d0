"""The operator's metrics: names, labels and help texts."""

from __future__ import annotations

from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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
        counter = partial(Counter, registry=self.registry)
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
        self.leading = gauge("muster_leading", "1 while this operator leads.")
        self.watch_version = gauge(
            "muster_watch_version", "The resourceVersion that each watch has reached.", ("resource",)
        )
        self.heartbeats = counter("muster_heartbeats_total", "Heartbeat requests by outcome.", ("outcome",))
        self.unreachable_collectors = gauge("muster_collectors_unreachable", "Collectors that do not answer.")
        self.dropped_events = counter("muster_events_dropped_total", "Events dropped before they were recorded.")

    def count_call(self, verb: str, resource: str, code: str) -> None:
        """For `kube.api`."""
        self.api_calls.labels(verb, resource, code).inc()

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        return prometheus_client.generate_latest(self.registry)
