"""Quota and nodes: an admitted job is within both at that write, and no node is over its allocatable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.cluster.chaos.checker.model import ClusterModel, demand, total
from tests.cluster.chaos.checker.objects import Job, Pod
from tests.cluster.chaos.checker.quota import Cell
from tests.cluster.chaos.checker.violation import Finding

UNMANAGED_WITHIN_S = 10.0  # an unmanaged pod that was bound so recently may have been unknown
GPU = "nvidia.com/gpu"


class CapacityChecks:
    """Remembers when pods were bound."""

    def __init__(self) -> None:
        self._bound_at: dict[str, float] = {}  # by pod uid

    def check_pod(self, model: ClusterModel, old: Pod | None, new: Pod | None, at: float) -> Iterator[Finding]:
        """A pod is bound: all pods of its node must fit."""
        if new is None or (old is not None and old.uid != new.uid):
            if old is not None:
                self._bound_at.pop(old.uid, None)
            old = None
        if new is None or not new.node or (old is not None and old.node):
            return
        self._bound_at[new.uid] = at
        node = model.nodes.get(new.node)
        if node is None:
            return  # deleted at that moment; kube-scheduler could not know
        pods = model.bound_to(new.node)
        for name, amount in sorted(total(pods).items()):
            allocatable = node.allocatable.get(name, 0)
            if amount > allocatable:
                message = (
                    f"{len(pods)} pods use {amount / 1000:g} of {allocatable / 1000:g} {name}; the last is {new.key}"
                )
                objects = (("Node", node.key), *(("Pod", pod.key) for pod in pods))
                yield "no node over its allocatable", node.key, message, objects

    def check_job(self, model: ClusterModel, old: Job | None, job: Job, at: float) -> Iterator[Finding]:
        """A job is admitted, or placed again: within quota, and on nodes with enough capacity."""
        if not job.runs or job.deleted:
            return
        if old is not None and old.runs and old.placement == job.placement:
            return
        yield from self._check_quota(model, old, job, at)
        yield from self._check_nodes(model, job, at)

    def _check_quota(self, model: ClusterModel, old: Job | None, job: Job, at: float) -> Iterator[Finding]:
        requested, had = demand(job), demand(old) if old is not None and old.runs else Counter()
        if all(amount <= had[cell] for cell, amount in requested.items()):
            return  # it shrinks, or moves, and uses no more quota than before
        trees = model.recent_trees(at)
        for charges in model.charges(at, without=job.uid):
            reasons = [tree.refuses(job.queue, requested, charges) for tree in trees]
            if all(reasons):
                yield _beyond_quota(model, job, requested, at, reasons[0])
                return

    def _check_nodes(self, model: ClusterModel, job: Job, at: float) -> Iterator[Finding]:
        nodes = {node for node in job.placement.values() if node in model.nodes}
        used: dict[str, Counter[str]] = {node: Counter() for node in nodes}
        users: dict[str, list[tuple[str, str]]] = {node: [] for node in nodes}
        for other in (*model.jobs.values(), *model.objects.values()):
            if not other.admitted and other.uid not in model.pods_by_job:
                continue
            for (role, node), pods in model.pods_by_node(other).items():
                if node in nodes:
                    users[node].append(("TrainingJob", other.key))
                    for name, amount in other.requests.get(role, {}).items():
                        used[node][name] += amount * pods
        for node in nodes:
            for pod in model.bound_to(node):
                if (
                    pod.job not in model.jobs
                    and pod.object not in model.objects
                    and self._bound_at.get(pod.uid, at) <= at - UNMANAGED_WITHIN_S
                ):
                    users[node].append(("Pod", pod.key))
                    used[node].update(pod.requests)
        requested: dict[str, set[str]] = {node: set() for node in nodes}
        for (role, _), node in job.placement.items():
            if node in nodes:
                requested[node] |= {name for name, amount in job.requests.get(role, {}).items() if amount}
        for node in sorted(nodes):
            allocatable = model.nodes[node].allocatable
            for name, amount in sorted(used[node].items()):
                if name in requested[node] and amount > allocatable.get(name, 0):
                    message = f"{node} is assigned {amount / 1000:g} of {allocatable.get(name, 0) / 1000:g} {name}"
                    objects = (("TrainingJob", job.key), ("Node", node), *dict.fromkeys(users[node]))
                    yield "no node is assigned beyond its capacity", node, message, objects


def _beyond_quota(model: ClusterModel, job: Job, requested: Counter[Cell], at: float, reason: str) -> Finding:
    removed = [other for other, _ in model.removed.values()]
    others = [other for other in (*model.jobs.values(), *model.objects.values(), *removed) if other.uid != job.uid]
    charges = {other.key: charge for other in others if (charge := _describe_charge(model, other, requested, at))}
    jobs, queues = [job.key, *charges], sorted(model.queues)
    objects = (*(("TrainingJob", key) for key in jobs), *(("Queue", name) for name in queues))
    message = f"admitted, but {reason}; charged are {', '.join(charges.values())}"
    return "admitted within quota", job.key, message, objects


def _describe_charge(model: ClusterModel, job: Job, requested: Counter[Cell], at: float) -> str:
    """What a job is charged of the cells that another requests; "" for nothing."""
    charge = model.usage_of(job) + model.nominated_usage(job, at)
    parts = [f"{charge[cell] / 1000:g}" for cell in sorted(requested) if cell[1] == GPU and charge[cell]]
    return f"{job.key} ({job.queue}, {job.phase}): {'+'.join(parts)}" if parts else ""
