"""Quota and room: whoever is admitted is within both at that write, and no node is over its allocatable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.cluster.chaos.judge.objects import Job, Pod
from tests.cluster.chaos.judge.quota import Cell
from tests.cluster.chaos.judge.world import World, demand, total

Finding = tuple[str, str, str, tuple[tuple[str, str], ...]]
FOREIGN_MEMORY_S = 10.0
GPU = "nvidia.com/gpu"


class Room:
    """Remembers when pods were bound."""

    def __init__(self) -> None:
        self._bound_at: dict[str, float] = {}  # by pod uid

    def pod(self, world: World, old: Pod | None, new: Pod | None, at: float) -> Iterator[Finding]:
        """A pod is bound: all that are bound to its node have to fit."""
        if new is None or (old is not None and old.uid != new.uid):
            if old is not None:
                self._bound_at.pop(old.uid, None)
            old = None
        if new is None or not new.node or (old is not None and old.node):
            return
        self._bound_at[new.uid] = at
        node = world.nodes.get(new.node)
        if node is None:
            return  # deleted at that moment; whoever bound it could not know
        there = world.bound_to(new.node)
        for name, amount in sorted(total(there).items()):
            room = node.allocatable.get(name, 0)
            if amount > room:
                message = f"{len(there)} pods take {amount / 1000:g} of {room / 1000:g} {name}; the last is {new.key}"
                shown = (("Node", node.key), *(("Pod", pod.key) for pod in there))
                yield "no node over its allocatable", node.key, message, shown

    def job(self, world: World, was: Job | None, job: Job, at: float) -> Iterator[Finding]:
        """A job is admitted, or placed anew: within quota, and on nodes that have the room."""
        if not job.runs or job.deleted:
            return
        if was is not None and was.runs and was.places == job.places:
            return
        yield from self._quota(world, was, job, at)
        yield from self._nodes(world, job, at)

    def _quota(self, world: World, was: Job | None, job: Job, at: float) -> Iterator[Finding]:
        before = was if was is not None and was.runs else world.kept(job, at)
        asked, had = demand(job), Counter() if before is None else demand(before)
        if all(amount <= had[cell] for cell, amount in asked.items()):
            return  # it shrinks, or moves: nothing is taken from anybody
        trees = world.recent_trees(at)
        for charges in world.charges(at, but=job.uid):
            reasons = [tree.refuses(job.queue, asked, charges) for tree in trees]
            if all(reasons):
                yield _beyond_quota(world, job, asked, at, reasons[0])
                return

    def _nodes(self, world: World, job: Job, at: float) -> Iterator[Finding]:
        places = {node for node in job.places.values() if node in world.nodes}
        taken: dict[str, Counter[str]] = {node: Counter() for node in places}
        tenants: dict[str, list[tuple[str, str]]] = {node: [] for node in places}
        for other in world.jobs.values():
            if not other.admitted and other.uid not in world.of_job:
                continue
            for (role, node), pods in world.room_of(other).items():
                if node in places:
                    tenants[node].append(("TrainingJob", other.key))
                    for name, amount in other.asks.get(role, {}).items():
                        taken[node][name] += amount * pods
        for node in places:
            for pod in world.bound_to(node):
                if pod.job not in world.jobs and self._bound_at.get(pod.uid, at) <= at - FOREIGN_MEMORY_S:
                    tenants[node].append(("Pod", pod.key))
                    taken[node].update(pod.asks)
        asked: dict[str, set[str]] = {node: set() for node in places}
        for (role, _), node in job.places.items():
            if node in places:
                asked[node] |= {name for name, amount in job.asks.get(role, {}).items() if amount}
        for node in sorted(places):
            room = world.nodes[node].allocatable
            for name, amount in sorted(taken[node].items()):
                if name in asked[node] and amount > room.get(name, 0):
                    message = f"{node} is booked for {amount / 1000:g} of {room.get(name, 0) / 1000:g} {name}"
                    shown = (("TrainingJob", job.key), ("Node", node), *dict.fromkeys(tenants[node]))
                    yield "no node is booked twice", node, message, shown


def _beyond_quota(world: World, job: Job, asked: Counter[Cell], at: float, why: str) -> Finding:
    others = [other for other in world.jobs.values() if other.uid != job.uid]
    bills = {other.key: bill for other in others if (bill := _bill(world, other, asked, at))}
    shown = [job.key, *bills]
    exhibits = (*(("TrainingJob", key) for key in shown), *(("Queue", name) for name in sorted(world.queues)))
    return "admitted within quota", job.key, f"admitted, but {why}; charged are {', '.join(bills.values())}", exhibits


def _bill(world: World, job: Job, asked: Counter[Cell], at: float) -> str:
    """What a job is charged of what somebody else asks for; "" for nothing."""
    charge = world.taken_by(job) + world.hold_of(job, at)
    parts = [f"{charge[cell] / 1000:g}" for cell in sorted(asked) if cell[1] == GPU and charge[cell]]
    return f"{job.key} ({job.queue}, {job.phase}): {'+'.join(parts)}" if parts else ""
