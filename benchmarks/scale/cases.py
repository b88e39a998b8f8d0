"""The cases, by name. Each has its own control plane."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from benchmarks.scale.kueue import kueue
from benchmarks.scale.measure import Meter, Row, until_bound_and_ready
from benchmarks.scale.muster import add_queue
from benchmarks.scale.observation import Watch
from benchmarks.scale.work import NAMESPACE, Jobs
from benchmarks.scale.world import SHAPE, World, all_gpus
from tests.cluster.controlplane.nodes import GPU

Case = Callable[[World], Awaitable[Row]]
_WATCHED_S = 25.0
_REASON_WITHIN_S = 120.0
_MANY_PODS_S = 900.0  # for 10,000 pods: a scheduler that writes much needs minutes on two cores
_RACK, _WANTED = 20, 16  # nodes of a rack; pods of a gang that wants one


async def fill(world: World) -> Row:
    """As many jobs of one GPU as there are GPUs."""
    world.scheduler.one_queue()
    return await until_bound_and_ready(world, "fill", [Jobs("fill", len(world.nodes) * SHAPE.gpus, 1, 1)])


async def gang512(world: World) -> Row:
    """One gang of 512 pods with one GPU each."""
    world.scheduler.one_queue()
    return await until_bound_and_ready(world, "gang512", [Jobs("gang", 1, 512, 1)])


async def gang500x8(world: World) -> Row:
    """One gang that takes the whole cluster."""
    world.scheduler.one_queue()
    return await until_bound_and_ready(world, "gang500x8", [Jobs("gang", 1, len(world.nodes), 8)])


async def jobs50x10(world: World) -> Row:
    """50 gangs of 10 nodes."""
    world.scheduler.one_queue()
    return await until_bound_and_ready(world, "jobs50x10", [Jobs("gang", len(world.nodes) // 10, 10, 8)])


async def jobs500x20(world: World) -> Row:
    """500 gangs of 20 pods that ask for one CPU."""
    world.scheduler.one_queue()
    jobs = [Jobs("gang", len(world.nodes), 20, 0)]
    return await until_bound_and_ready(world, "jobs500x20", jobs, _MANY_PODS_S)


async def verdict(world: World) -> Row:
    """On the full cluster: seconds until a gang of ten nodes has the reason why it cannot start."""
    await fill(world)
    jobs = [Jobs("late", 1, 10, 8)]
    async with Watch(world.client, NAMESPACE) as seen, world.scheduler.watch_reason("late-0") as reason:
        meter = Meter(world, "verdict", jobs)
        await meter.create()
        await reason.first_seen(_REASON_WITHIN_S)
        verdict_s = reason.seen_at - meter.began
        await asyncio.sleep(12.0)
        meter.ready()
        notes = {"verdict_s": round(verdict_s, 3), "said": str(reason), "watched_s": 12, "pods_bound": len(seen.bound)}
        return await meter.row(seen, notes=notes)


async def wait(world: World) -> Row:
    """A gang of one node more than there are: what it costs while it waits."""
    world.scheduler.one_queue()
    jobs = [Jobs("more", 1, len(world.nodes) + 1, 8)]
    async with Watch(world.client, NAMESPACE) as seen, world.scheduler.watch_reason("more-0") as reason:
        meter = Meter(world, "wait", jobs)
        await meter.create()
        await asyncio.sleep(_WATCHED_S)
        meter.ready()
        notes = {"said": str(reason), "watched_s": _WATCHED_S, "pods_bound": len(seen.bound)}
        return await meter.row(seen, notes=notes)


async def reclaim(world: World) -> Row:
    """Everything is lent to jobs of one GPU; a gang of the other queue takes back its half of the nodes."""
    half = {GPU: str(len(world.nodes) * SHAPE.gpus // 2)}
    add_queue(world.plane, "all", None, all_gpus(len(world.nodes)))
    for name in ("lender", "borrower"):
        add_queue(world.plane, name, "all", half)
    lent = Jobs("lent", len(world.nodes) * SHAPE.gpus, 1, 1, queue="borrower")
    filled = await until_bound_and_ready(world, "reclaim", [lent])
    jobs = [Jobs("back", 1, len(world.nodes) // 2, 8, queue="lender")]
    async with Watch(world.client, NAMESPACE) as seen:
        meter = Meter(world, "reclaim", jobs)
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
            notes={"pods_stopped": len(seen.gone), "filled_s": filled.create_to_bound_s},
        )


async def racks(world: World) -> Row:
    """Racks of 20 nodes of which some are taken by a pod here and there: gangs of 16 nodes that want one rack each."""
    world.scheduler.one_queue()
    taken, racks_left = _fragment(world, random.Random(7))
    jobs = [Jobs("rack", racks_left, _WANTED, 8, more={"topology": {"required": "rack"}})]
    row = await until_bound_and_ready(world, "racks", jobs)
    return replace(row, notes={"racks": racks_left, "nodes_taken": taken})


def _fragment(world: World, chance: random.Random) -> tuple[int, int]:
    """Put a foreign pod on 2 to 6 nodes of every rack: how many nodes that took, and in how many racks 16 are left."""
    taken = good = 0
    for first in range(0, len(world.nodes), _RACK):
        rack = world.nodes[first : first + _RACK]
        busy = chance.sample(rack, chance.randint(2, 6))
        taken += len(busy)
        good += len(rack) - len(busy) >= _WANTED
        for node in busy:
            container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}}}
            world.plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {
                "metadata": {"name": f"foreign-{node}"},
                "spec": {"nodeName": node, "containers": [container]},
            })  # fmt: skip
    return taken, good


MUSTERS_OWN = ("reclaim", "racks", "kueue")  # they use Muster's queues and topology
CASES: dict[str, Case] = {
    "fill": fill,
    "gang512": gang512,
    "gang500x8": gang500x8,
    "jobs50x10": jobs50x10,
    "verdict": verdict,
    "reclaim": reclaim,
    "jobs500x20": jobs500x20,
    "wait": wait,
    "racks": racks,
    "kueue": kueue,
}
