"""Counters, gauges and histograms in the text form of Prometheus. A few lines, so no library."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

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
Labels = tuple[str, ...]


class Metric:
    """A counter or gauge by labels. A counter only ever grows."""

    def __init__(self, kind: Literal["counter", "gauge"], name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._kind = kind
        self._text = text
        self._labels = tuple(labels)
        self._values: dict[Labels, float] = {}

    def add(self, amount: float = 1.0, labels: Labels = ()) -> None:
        """Count."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def replace(self, values: dict[Labels, float]) -> None:
        """Replace all values (of a gauge)."""
        self._values = values

    def value(self, labels: Labels = ()) -> float:
        """What was counted so far."""
        return self._values.get(labels, 0.0)

    def lines(self) -> Iterable[str]:
        """The exposition."""
        yield f"# HELP {self.name} {self._text}"
        yield f"# TYPE {self.name} {self._kind}"
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_format_labels(self._labels, labels)} {_format_number(value)}"


class Histogram:
    """How often values fell below each bound, by labels."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float] = DURATION_BUCKETS_S, labels: Sequence[str] = ()
    ) -> None:
        self.name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._labels = tuple(labels)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, labels: Labels = ()) -> None:
        """One value."""
        counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
        counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + value

    def lines(self) -> Iterable[str]:
        """The exposition."""
        yield f"# HELP {self.name} {self._text}"
        yield f"# TYPE {self.name} histogram"
        names = (*self._labels, "le")
        for labels, counts in sorted(self._counts.items()):
            total = 0
            for bound, count in zip((*map(_format_number, self._bounds), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_format_labels(names, (*labels, bound))} {total}"
            yield f"{self.name}_sum{_format_labels(self._labels, labels)} {_format_number(self._sums[labels])}"
            yield f"{self.name}_count{_format_labels(self._labels, labels)} {total}"


class OperatorMetrics:
    """What the operator tells about itself. `before_scrape` brings gauges up to date."""

    def __init__(self) -> None:
        self.before_scrape: Callable[[], None] = lambda: None
        self.api_calls = Metric(
            "counter", "muster_api_calls_total", "Requests to the API server.", ("verb", "resource", "code")
        )
        self.cycles = Metric("counter", "muster_scheduling_cycles_total", "Scheduling cycles: observe, decide, write.")
        self.component_failures = Metric(
            "counter",
            "muster_component_failures_total",
            "Failures after which a component was restarted.",
            ("component",),
        )
        self.conflicts = Metric(
            "counter", "muster_conflicts_total", "Status writes rejected because the job changed meanwhile."
        )
        self.scheduling_s = Histogram("muster_scheduling_duration_seconds", "Time to decide in one scheduling cycle.")
        self.write_s = Histogram(
            "muster_write_duration_seconds", "Time to write the decisions of one scheduling cycle."
        )
        self.wait_s = Histogram("muster_wait_seconds", "Time from submission to admission.", labels=("queue",))
        self.admission_s = Histogram(
            "muster_admission_seconds",
            "Time from the start of a scheduling cycle to the acknowledged admission of a job.",
        )
        self.admitted = Metric("counter", "muster_admissions_total", "Jobs admitted.", ("queue",))
        self.gpu_s = Metric(
            "counter", "muster_gpu_seconds_total", "GPU-seconds of admitted jobs.", ("queue", "namespace", "resource")
        )
        self.queue_jobs = Metric("gauge", "muster_queue_jobs", "Jobs by queue and phase.", ("queue", "phase"))
        self.leading = Metric("gauge", "muster_leading", "1 while this operator leads.")
        self.watch_version = Metric(
            "gauge", "muster_watch_version", "The resourceVersion that each watch has reached.", ("resource",)
        )
        self.heartbeats = Metric("counter", "muster_heartbeats_total", "Heartbeat requests by outcome.", ("outcome",))
        self.unreachable_collectors = Metric("gauge", "muster_collectors_unreachable", "Collectors that do not answer.")
        self.dropped_events = Metric(
            "counter", "muster_events_dropped_total", "Events dropped before they were recorded."
        )

    def count_call(self, verb: str, resource: str, code: str) -> None:
        """For `kube.api`."""
        self.api_calls.add(1.0, (verb, resource, code))

    def text(self) -> str:
        """The whole exposition."""
        self.before_scrape()
        every = [one for one in vars(self).values() if isinstance(one, Metric | Histogram)]
        return "\n".join(line for metric in every for line in metric.lines()) + "\n"


def _format_labels(names: Sequence[str], values: Labels) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
