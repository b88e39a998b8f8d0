"""The workload of `cohorts.py` with real pods: jobs come as they do there, and their pods run as long."""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from dataclasses import replace
from typing import Any

from benchmarks import cohorts
from benchmarks.scale.bench_cluster import BenchCluster
from benchmarks.scale.client import Request
from benchmarks.scale.measure import Meter, Row
from benchmarks.scale.muster import add_queue, request
from benchmarks.scale.observation import Seen, Watch
from benchmarks.scale.work import NAMESPACE, Jobs

_LIMIT_S = 1500.0


async def kueue(cluster: BenchCluster) -> Row:
    """Until the last pod has ended; how long jobs waited for a node, by kind."""
    _add_queues(cluster)
    arrivals = cohorts.arrivals()
    groups = {
        kind.name: Jobs(
            kind.name,
            0,
            1,
            0,
            more={"priority": kind.priority},
            does={"kwok.muster.dev/run-seconds": str(kind.runtime_s)},
            cpus=kind.cpus,
        )
        for kind in cohorts.KINDS
    }
    timed = [(one.at_s, _request(groups[one.kind.name], one)) for one in arrivals]
    async with Watch(cluster.client, NAMESPACE) as seen:
        meter = Meter(cluster, "kueue", [])
        meter.pods = len(arrivals)
        creating = asyncio.create_task(cluster.client.create_timed(timed))
        ended = {one.name for one in arrivals}
        await meter.until(seen, "all ended", lambda: _ended(seen, creating) >= len(ended), _LIMIT_S)
        meter.ready()
        waits = _waits(seen, arrivals, meter.began)
        again = _ran_again(cluster)
        return await meter.row(
            seen,
            created_s=await creating,
            create_to_bound_s=max(seen.bound.values()) - meter.began,
            notes={
                "makespan_s": round(max(seen.ended.values()) - meter.began, 1),
                "mean_to_bound_s": waits,
                "ran_again": again,
            },
        )


def _ran_again(cluster: BenchCluster) -> dict[str, int]:
    """Jobs that started more than once: because they lost a pod, failed, or were preempted."""
    why: Counter[str] = Counter()
    for job in cluster.plane.api.items(f"/apis/muster.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"):
        status = job.get("status", {})
        if status.get("attempt"):
            why["lost" if status.get("nodeLosses") else "failed" if status.get("restarts") else "preempted"] += 1
    return dict(why)


def _ended(seen: Seen, creating: asyncio.Task[float]) -> int:
    """Jobs of which a pod has ended well."""
    if creating.done():
        creating.result()  # raises
    return len(seen.succeeded)


def _waits(seen: Seen, arrivals: list[cohorts.Arrival], began: float) -> dict[str, float]:
    """From when a job was to be created to its first pod bound, mean by kind."""
    bound: dict[str, float] = {}
    for pod, at in seen.bound.items():
        job = seen.gang_of[pod]
        bound[job] = min(bound.get(job, at), at)
    waits: dict[str, list[float]] = {}
    for one in arrivals:
        if one.name in bound:
            waits.setdefault(one.kind.name, []).append(bound[one.name] - began - one.at_s)
    return {kind: round(statistics.mean(some), 1) for kind, some in waits.items()}


def _request(jobs: Jobs, one: cohorts.Arrival) -> Request:
    return request(replace(jobs, queue=one.queue), one.name)


def _add_queues(cluster: BenchCluster) -> None:
    def cpus(count: int) -> dict[str, Any]:
        return {"cpu": str(count)}

    owned = cohorts.OWNED_CPUS * cohorts.QUEUES
    for number in range(cohorts.COHORTS):
        add_queue(cluster.plane, f"cohort{number}", None, cpus(owned), limit=cpus(owned))
    for name, cohort in cohorts.queues():
        most = cohorts.OWNED_CPUS + cohorts.BORROWED_CPUS
        add_queue(cluster.plane, name, cohort, cpus(cohorts.OWNED_CPUS), limit=cpus(most))
