"""Create jobs, watch their pods, and measure time and writes."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scale.bench_cluster import BenchCluster
from benchmarks.scale.observation import Seen, Watch
from benchmarks.scale.programs import difference
from benchmarks.scale.work import NAMESPACE, Jobs

_QUIET_S, _NEVER_QUIET_S = 2.0, 60.0
_POLL_S = 0.05
_REPORT_S = 10.0


class TooSlow(Exception):
    """Something did not happen in time; the message says how far it came."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. `pods` are those that were to be bound; None: does not apply. Times are from the first create.

    "Operator" is the scheduler that was measured, whichever it is. `operator_cpu_s` is until the last pod was Ready,
    `writes_per_pod` and `writes` until the operator had nothing left to write; both without kube-scheduler and the
    controllers, where those are not what is measured. `partial_gangs` had some pods bound at the end, but not all, or
    had not all within `start_s` of the first.
    """

    case: str
    pods: int
    scheduler: str = "muster"
    create_to_bound_s: float | None = None
    create_to_ready_s: float | None = None
    operator_cpu_s: float = 0.0
    operator_rss_mib: float = 0.0
    writes_per_pod: float | None = None
    partial_gangs: int = 0
    first_bound_s: float | None = None
    created_s: float | None = None
    to_quiet_s: float | None = None
    bind_spread_s: float = 0.0
    writes_to_bound_per_pod: float | None = None
    writes: Mapping[str, float] = field(default_factory=dict)
    writes_agree: bool | None = None  # the operator's count with the API server's; None: it keeps none
    served: Mapping[str, float] = field(default_factory=dict)  # writes of all clients, as the API server counted them
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    cpu_to_bound_s: float | None = None  # of all programs together: what others on the machine do counts less in it
    load_before: float = 0.0
    watches: int = 1
    qps: int = 0  # calls a second and in one burst that each program of the scheduler might make
    burst: int = 0
    notes: Mapping[str, Any] = field(default_factory=dict)


class Meter:
    """Begins with the first create."""

    def __init__(self, cluster: BenchCluster, case: str, jobs: Sequence[Jobs]) -> None:
        self.cluster = cluster
        self.case = case
        self.jobs = jobs
        self.sizes = {name: group.pods for group in jobs for name in group.names()}
        self.pods = sum(self.sizes.values())
        self.load = os.getloadavg()[0]
        self._served = cluster.served()
        self._writes = cluster.scheduler.writes()
        self._cpu = cluster.cpu_s()
        self.began = time.monotonic()
        self._at_bound: float | None = None
        self._cpu_at_bound: float | None = None
        self._at_ready: Mapping[str, float] = {}

    async def create(self) -> float:
        """Create the jobs; seconds until the last was acknowledged."""
        requests = [request for group in self.jobs for request in self.cluster.scheduler.requests(group)]
        self.began = time.monotonic()
        await self.cluster.client.create_all(requests)
        return time.monotonic() - self.began

    async def until(self, seen: Seen, what: str, holds: Callable[[], bool], limit_s: float) -> None:
        """Wait until it holds. Raises TooSlow, and the error that ended the watch."""
        until, report_at = time.monotonic() + limit_s, time.monotonic() + _REPORT_S
        while not holds():
            if seen.error is not None:
                raise seen.error
            if time.monotonic() > report_at:
                report_at += _REPORT_S
                print(f"{self.case}: {self._far(seen)}", file=sys.stderr, flush=True)
            self.cluster.scheduler.check()
            if time.monotonic() > until:
                raise TooSlow(f"{self.case}: not within {limit_s:g} s: {what}; {self._far(seen)}")
            await asyncio.sleep(_POLL_S)

    def bound(self) -> None:
        """The last pod is bound now."""
        self._at_bound = sum(self._written().values())
        self._cpu_at_bound = sum(self.used().values())

    def ready(self) -> None:
        """The case is over, but for what the operator still writes."""
        self._at_ready = self.used()

    def used(self) -> dict[str, float]:
        """CPU so far, by program."""
        return {name: round(value - self._cpu[name], 2) for name, value in self.cluster.cpu_s().items()}

    async def quiet(self) -> float | None:
        """Wait until the operator has written nothing for two seconds; seconds until its last write.

        None: it did not stop to write for a minute.
        """
        last, since = self._written(), time.monotonic()
        until = since + _NEVER_QUIET_S
        while time.monotonic() - since < _QUIET_S:
            await asyncio.sleep(self.cluster.scheduler.count_interval_s)
            now = self._written()
            if now != last:
                last, since = now, time.monotonic()
            if since > until:
                return None
        return since - self.began

    async def row(self, seen: Seen, *, start_s: float = 60.0, **more: Any) -> Row:
        """Everything together, once the operator is quiet."""
        used = self._at_ready or self.used()
        quiet_s = await self.quiet()
        own, all_ = self._written(), difference(self.cluster.served(), self._served)
        partial = set(seen.partial(lambda gang: self.sizes.get(gang, 0)))
        pods = self.pods
        values: dict[str, Any] = {
            "scheduler": self.cluster.scheduler.name,
            "operator_cpu_s": sum(used[name] for name in self.cluster.scheduler.own),
            "operator_rss_mib": self.cluster.peak_rss_mib(),
            "writes_per_pod": sum(own.values()) / pods,
            "writes_to_bound_per_pod": None if self._at_bound is None else self._at_bound / pods,
            "cpu_to_bound_s": self._cpu_at_bound,
            "partial_gangs": len(partial) + (seen.spread_s() > start_s),
            "bind_spread_s": seen.spread_s(),
            "to_quiet_s": quiet_s,
            "writes": own,
            "writes_agree": self.cluster.scheduler.agrees(own, all_),
            "served": all_,
            "cpu_s": dict(used),
            "load_before": self.load,
            "watches": seen.watches,
            "qps": self.cluster.rate.qps,
            "burst": self.cluster.rate.burst,
        }
        return Row(case=self.case, pods=pods, **_rounded(values | more))

    def _far(self, seen: Seen) -> str:
        since = time.monotonic() - self.began
        return f"{len(seen.bound)} bound, {len(seen.ready)} Ready of {self.pods} after {since:.0f} s"

    def _written(self) -> dict[str, float]:
        return difference(self.cluster.scheduler.writes(), self._writes)


async def until_bound_and_ready(cluster: BenchCluster, case: str, jobs: Sequence[Jobs], limit_s: float = 400.0) -> Row:
    """Create all jobs at once and wait for all of their pods."""
    async with Watch(cluster.client, NAMESPACE) as seen:
        meter = Meter(cluster, case, jobs)
        creating = asyncio.create_task(meter.create())
        await meter.until(seen, "all bound", lambda: len(seen.bound) >= meter.pods or _failed(creating), limit_s)
        created_s = await creating
        meter.bound()
        await meter.until(seen, "all Ready", lambda: len(seen.ready) >= meter.pods, limit_s)
        meter.ready()
        times = {
            "create_to_bound_s": max(seen.bound.values()) - meter.began,
            "create_to_ready_s": max(seen.ready.values()) - meter.began,
            "first_bound_s": min(seen.bound.values()) - meter.began,
            "created_s": created_s,
        }
        return await meter.row(seen, **times)


def _failed(task: asyncio.Task[float]) -> bool:
    if task.done():
        task.result()  # raises
    return False


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()}
