"""Builds the items of the read API from observed objects and the last scheduling cycle; keeps recent preemptions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from muster.api import spec
from muster.tables import node_rows, queue_rows, waiting_by_queue
from muster.usage.report import usage_series
from muster.usage.segments import segments_of
from muster.usage.totals import HOUR_MS
from muster.visibility.jobs import job_key, job_meta
from muster.visibility.state import ReadState
from muster.visibility.types import (
    ItemMeta,
    JobReference,
    NodeSummary,
    PodReference,
    Preemption,
    QueueResources,
    QueueSummary,
    UsagePoint,
    UsageSummary,
)
from muster.visibility.usage import UsageQuery
from muster.workload.conditions import EVICTED, PODS_READY, find_condition, is_finished
from muster.workload.placement import nodes_of

MayRead = Callable[[str], bool]
"""Whether the client may read the jobs of a namespace."""
_PREEMPTION_REASONS = ("Preempted", "Reclaimed")
_MAX_KEPT = 1000


def queue_summaries(state: ReadState) -> list[tuple[tuple[str, ...], QueueSummary]]:
    """All queues, each with the names of the queues from its root to itself, by which they are ordered."""
    observed = state.observed
    errors = observed.decode_errors
    flavors = errors.flavor_names(observed.flavors)
    waiting = waiting_by_queue((one.queue, one.status) for one in observed.workloads if not one.is_group)
    rows = queue_rows(observed.queues, state.snapshot, waiting, errors.queues, flavors)
    found: list[tuple[tuple[str, ...], QueueSummary]] = []
    path: list[str] = []
    for row in rows:
        del path[row["depth"] :]
        path.append(row["name"])
        found.append((tuple(path), _queue_summary(row)))
    return found


def _queue_summary(row: dict[str, Any]) -> QueueSummary:
    fields = {name: value for name, value in row.items() if name not in ("name", "waiting", "resources")}
    resources = [QueueResources(**entry) for entry in row["resources"]]
    return QueueSummary(metadata=ItemMeta(name=row["name"]), pending=row["waiting"], resources=resources, **fields)


def node_summaries(state: ReadState, may_read: MayRead) -> Iterable[NodeSummary]:
    """All nodes by name."""
    namespaces = {job.metadata.uid: job_key(job)[0] for job in state.jobs}
    pods: dict[str, list[PodReference]] = {}
    counts: dict[str, int] = {}
    for uid, views in state.observed.pods.items():
        namespace = namespaces.get(uid)
        for pod in views if namespace is not None else ():
            if pod.phase not in ("Succeeded", "Failed"):
                counts[pod.node] = counts.get(pod.node, 0) + 1
                if namespace is not None and may_read(namespace):
                    pods.setdefault(pod.node, []).append(PodReference(namespace=namespace, name=pod.name))
    jobs: dict[str, list[tuple[str, str]]] = {}
    for job in state.jobs:
        for node in nodes_of(job.status.placement) if job.status.placement and not is_finished(job.status) else ():
            jobs.setdefault(node, []).append(job_key(job))
    levels = {flavor.metadata.name: flavor.spec.topology for flavor in state.observed.flavors}
    nodes = sorted(state.observed.nodes, key=lambda node: node.name)
    for row in node_rows(nodes, state.snapshot, {}):
        name = row["name"]
        fields = {key: value for key, value in row.items() if key not in ("name", "pods")}
        named = sorted(pods.get(name, ()), key=lambda pod: (pod.namespace, pod.name))
        labels = row["labels"]
        topology = {
            level.name: labels[level.node_label]
            for level in levels.get(row["flavor"], ())
            if level.node_label in labels
        }
        placed = jobs.get(name, [])
        yield NodeSummary(
            metadata=ItemMeta(name=name),
            pod_count=counts.get(name, 0),
            pods=named,
            job_count=len(placed),
            jobs=[JobReference(namespace=one, name=job) for one, job in placed if may_read(one)],
            topology=topology,
            **fields,
        )


def preemption_of(job: spec.TrainingJob) -> Preemption | None:
    """The preemption that a job's status tells of: its eviction for another job, or that it shrank for one. None if
    there is none, and once the job has started again."""
    status = job.status
    evicted = find_condition(status, EVICTED)
    if evicted is not None and evicted.status == "True":
        if evicted.reason not in _PREEMPTION_REASONS:
            return None
        return _preemption(job, evicted.reason, evicted.message, evicted.last_transition_time)
    if status.eviction is None or status.resized_at is None:
        return None
    ready = find_condition(status, PODS_READY)
    message = "" if ready is None else ready.message
    return _preemption(job, status.eviction.reason, message, status.resized_at, resized=True)


def usage_summaries(state: ReadState, query: UsageQuery, may_read: MayRead) -> list[UsageSummary]:
    """Usage of the query's period, by name, flavor and resource."""
    now = state.observed.now
    jobs = (segments_of(one, now, one.key) for one in state.observed.workloads)
    live = [one for one in jobs if one is not None]
    return [
        UsageSummary(
            metadata=ItemMeta(name=one.name),
            by=query.by,
            flavor=one.flavor,
            resource=one.resource,
            hours=_resource_hours(one.total, one.resource),
            points=[
                UsagePoint(at=hour * 3600.0, hours=_resource_hours(amount, one.resource))
                for hour, amount in one.amounts.items()
            ],
        )
        for one in usage_series(state.recorded_usage, live, query.period(now), query.by, may_read)
    ]


def usage_list_fields(state: ReadState, query: UsageQuery) -> dict[str, Any]:
    """What a list of usage has beside its items."""
    period = query.period(state.observed.now)
    return {"since": period.first * 3600.0, "until": period.last * 3600.0, "step": period.step}


def _resource_hours(amount: int, resource: str) -> float:
    """Of units of `muster.model` times milliseconds."""
    return amount / HOUR_MS / (1000 if resource == "cpu" else 1)


def _preemption(job: spec.TrainingJob, reason: str, message: str, at: float, *, resized: bool = False) -> Preemption:
    queue = job.spec.queue
    return Preemption(metadata=job_meta(job), queue=queue, reason=reason, message=message, at=at, resized=resized)


class PreemptionLog:
    """The newest preemptions that this process has seen, at most 1,000. A new process sees those of jobs that have not
    started again since."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int], Preemption] = OrderedDict()  # by uid and second

    def observe(self, job: spec.TrainingJob) -> None:
        """Call it with every status of a job."""
        found = preemption_of(job)
        if found is None or (key := (found.metadata.uid, int(found.at))) in self._seen:
            return
        self._seen[key] = found
        if len(self._seen) > _MAX_KEPT:
            self._seen.popitem(last=False)

    def newest_first(self) -> tuple[Preemption, ...]:
        return tuple(sorted(self._seen.values(), key=preemption_key))


def preemption_key(preemption: Preemption) -> tuple[float, str]:
    """Sorts the newest first."""
    return -preemption.at, preemption.metadata.uid
