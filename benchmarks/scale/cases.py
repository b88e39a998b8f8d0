"""The cases, by name. Each has its own control plane."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from benchmarks.scale.bench_cluster import SHAPE, BenchCluster, all_gpus
from benchmarks.scale.kueue import kueue
from benchmarks.scale.measure import Meter, Row, until_bound_and_ready
from benchmarks.scale.muster import add_queue
from benchmarks.scale.observation import Watch
from benchmarks.scale.work import NAMESPACE, Jobs
from tests.cluster.controlplane.nodes import GPU

Case = Callable[[BenchCluster], Awaitable[Row]]
_WATCHED_S = 25.0
_REASON_WITHIN_S = 120.0
_MANY_PODS_S = 900.0  # for 10,000 pods: a scheduler that writes much needs minutes on two cores
_RACK, _WANTED = 20, 16  # nodes of a rack; pods of a gang that wants one


async def fill(cluster: BenchCluster) -> Row:
    """As many jobs of one GPU as there are GPUs."""
    cluster.scheduler.one_queue()
    return await until_bound_and_ready(cluster, "fill", [Jobs("fill", len(cluster.nodes) * SHAPE.gpus, 1, 1)])


async def gang512(cluster: BenchCluster) -> Row:
    """One gang of 512 pods with one GPU each."""
    cluster.scheduler.one_queue()
    return await until_bound_and_ready(cluster, "gang512", [Jobs("gang", 1, 512, 1)])


async def gang500x8(cluster: BenchCluster) -> Row:
    """One gang that takes the whole cluster."""
    cluster.scheduler.one_queue()
    return await until_bound_and_ready(cluster, "gang500x8", [Jobs("gang", 1, len(cluster.nodes), 8)])


async def jobs50x10(cluster: BenchCluster) -> Row:
    """50 gangs of 10 nodes."""
    cluster.scheduler.one_queue()
    return await until_bound_and_ready(cluster, "jobs50x10", [Jobs("gang", len(cluster.nodes) // 10, 10, 8)])


async def jobs500x20(cluster: BenchCluster) -> Row:
    """500 gangs of 20 pods that request one CPU."""
    cluster.scheduler.one_queue()
    jobs = [Jobs("gang", len(cluster.nodes), 20, 0)]
    return await until_bound_and_ready(cluster, "jobs500x20", jobs, _MANY_PODS_S)


async def first_decision(cluster: BenchCluster) -> Row:
    """On the full cluster: seconds until a gang of ten nodes has the reason why it cannot start."""
    await fill(cluster)
    jobs = [Jobs("late", 1, 10, 8)]
    async with Watch(cluster.client, NAMESPACE) as seen, cluster.scheduler.watch_reason("late-0") as reason:
        meter = Meter(cluster, "first-decision", jobs)
        await meter.create()
        await reason.first_seen(_REASON_WITHIN_S)
        decision_s = reason.seen_at - meter.began
        await asyncio.sleep(12.0)
        meter.ready()
        notes = {
            "decision_s": round(decision_s, 3),
            "message": str(reason),
            "watched_s": 12,
            "pods_bound": len(seen.bound),
        }
        return await meter.row(seen, notes=notes)


async def wait(cluster: BenchCluster) -> Row:
    """A gang of one node more than there are: what it costs while it waits."""
    cluster.scheduler.one_queue()
    jobs = [Jobs("more", 1, len(cluster.nodes) + 1, 8)]
    async with Watch(cluster.client, NAMESPACE) as seen, cluster.scheduler.watch_reason("more-0") as reason:
        meter = Meter(cluster, "wait", jobs)
        await meter.create()
        await asyncio.sleep(_WATCHED_S)
        meter.ready()
        notes = {"message": str(reason), "watched_s": _WATCHED_S, "pods_bound": len(seen.bound)}
        return await meter.row(seen, notes=notes)


async def reclaim(cluster: BenchCluster) -> Row:
    """Everything is lent to jobs of one GPU; a gang of the other queue takes back its half of the nodes."""
    half = {GPU: str(len(cluster.nodes) * SHAPE.gpus // 2)}
    add_queue(cluster.plane, "all", None, all_gpus(len(cluster.nodes)))
    for name in ("lender", "borrower"):
        add_queue(cluster.plane, name, "all", half)
    lent = Jobs("lent", len(cluster.nodes) * SHAPE.gpus, 1, 1, queue="borrower")
    filled = await until_bound_and_ready(cluster, "reclaim", [lent])
    jobs = [Jobs("back", 1, len(cluster.nodes) // 2, 8, queue="lender")]
    async with Watch(cluster.client, NAMESPACE) as seen:
        meter = Meter(cluster, "reclaim", jobs)
        await meter.create()
        gangs = set(jobs[0].names())

        def count(of: dict[str, float]) -> int:
            return sum(seen.gang_of[pod] in gangs for pod in of)

        await meter.until(seen, "the claimant is bound", lambda: count(seen.bound) >= meter.pods, 300.0)
        meter.bound()
        await meter.until(seen, "the claimant is Ready", lambda: count(seen.ready) >= meter.pods, 300.0)
        meter.ready()
        return await meter.row(
            seen,
            create_to_bound_s=max(at for pod, at in seen.bound.items() if seen.gang_of[pod] in gangs) - meter.began,
            create_to_ready_s=max(at for pod, at in seen.ready.items() if seen.gang_of[pod] in gangs) - meter.began,
            notes={"pods_stopped": len(seen.deleted), "filled_s": filled.create_to_bound_s},
        )


async def racks(cluster: BenchCluster) -> Row:
    """Racks of 20 nodes of which some are taken by a pod here and there: gangs of 16 nodes that want one rack each."""
    cluster.scheduler.one_queue()
    taken, racks_left = _fragment(cluster, random.Random(7))
    jobs = [Jobs("rack", racks_left, _WANTED, 8, more={"topology": {"required": "rack"}})]
    row = await until_bound_and_ready(cluster, "racks", jobs)
    return replace(row, notes={"racks": racks_left, "nodes_taken": taken})


def _fragment(cluster: BenchCluster, chance: random.Random) -> tuple[int, int]:
    """Put an unmanaged pod on 2 to 6 nodes of every rack: nodes used, and racks with 16 free nodes."""
    taken = good = 0
    for first in range(0, len(cluster.nodes), _RACK):
        rack = cluster.nodes[first : first + _RACK]
        busy = chance.sample(rack, chance.randint(2, 6))
        taken += len(busy)
        good += len(rack) - len(busy) >= _WANTED
        for node in busy:
            container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}}}
            cluster.plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {
                "metadata": {"name": f"unmanaged-{node}"},
                "spec": {"nodeName": node, "containers": [container]},
            })  # fmt: skip
    return taken, good


MUSTERS_OWN = ("reclaim", "racks", "kueue")  # they use Muster's queues and topology
CASES: dict[str, Case] = {
    "fill": fill,
    "gang512": gang512,
    "gang500x8": gang500x8,
    "jobs50x10": jobs50x10,
    "first-decision": first_decision,
    "reclaim": reclaim,
    "jobs500x20": jobs500x20,
    "wait": wait,
    "racks": racks,
    "kueue": kueue,
}
