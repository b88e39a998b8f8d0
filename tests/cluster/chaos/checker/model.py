"""All objects at one revision, updated event by event, and what of the cluster they use."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tests.cluster.chaos.checker import objects
from tests.cluster.chaos.checker.objects import Job, Json, Lease, Node, Pod, Queue
from tests.cluster.chaos.checker.quota import Cell, Charges, Tree

Object: TypeAlias = Job | Pod | Node | Queue | Lease
KINDS: Mapping[str, Callable[[Json], Object]] = {
    "TrainingJob": objects.job,
    "Pod": objects.pod,
    "Node": objects.node,
    "Queue": objects.queue,
    "Lease": objects.lease,
}
QUOTA_WITHIN_S = 10.0  # an admission may have been decided by a quota that was edited so recently


@dataclass(frozen=True, slots=True)
class Event:
    """An object as it is after revision `revision`, None once it is deleted. `at`: when the observer received it."""

    revision: int
    kind: str
    key: str  # namespace/name, or the name
    document: Json | None
    at: float


@dataclass(slots=True)
class ClusterModel:
    """Objects by kind and key, and indexes over them."""

    jobs: dict[str, Job] = field(default_factory=dict)  # by uid
    objects: dict[str, Job] = field(default_factory=dict)  # those of other kinds, by uid, as their Workloads say
    removed: dict[str, tuple[Job, float]] = field(default_factory=dict)  # removed jobs as they were last, and when
    pods: dict[str, Pod] = field(default_factory=dict)  # by key
    nodes: dict[str, Node] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    others: dict[tuple[str, str], Json] = field(default_factory=dict)  # Services, Secrets, ... by (kind, key)
    documents: dict[tuple[str, str], tuple[int, Json]] = field(default_factory=dict)  # (revision, as stored in etcd)
    pods_by_job: dict[str, set[str]] = field(default_factory=dict)  # pod keys by job uid
    pods_on_node: dict[str, set[str]] = field(default_factory=dict)  # pod keys by the node they are bound to
    stopped: dict[str, float] = field(default_factory=dict)  # by pod key: when one of that name had stopped
    trees: deque[tuple[float, Tree]] = field(default_factory=deque)  # (until when it was in force, tree), old ones
    flavors_seen: dict[tuple[str, str], str] = field(default_factory=dict)  # by (job uid, role)
    _uids: dict[str, str] = field(default_factory=dict)  # job uid by key

    def pods_of(self, uid: str) -> list[Pod]:
        """Every pod of a job, ended ones too."""
        return [self.pods[key] for key in sorted(self.pods_by_job.get(uid, ()))]

    def bound_to(self, node: str) -> list[Pod]:
        """Live pods that are bound to a node."""
        return [pod for key in sorted(self.pods_on_node.get(node, ())) if (pod := self.pods[key]).live]

    def job_of(self, uid: str) -> Job | None:
        """A job; a removed one as it was last."""
        return self.jobs.get(uid) or (self.removed[uid][0] if uid in self.removed else None)

    # ---- events

    def change(self, event: Event) -> tuple[Object | None, Object | None]:
        """Apply an event; the object before and after it (None for kinds that are only counted)."""
        key = (event.kind, event.key)
        if event.document is None:
            self.documents.pop(key, None)
        else:
            self.documents[key] = (event.revision, event.document)
        if event.kind == "Workload":
            return self._put_workload(event)
        read = KINDS.get(event.kind)
        if read is None:
            if event.document is None:
                self.others.pop(key, None)
            else:
                self.others[key] = event.document
            return None, None
        after = None if event.document is None else read(event.document)
        return self._put(event, after), after

    def _put_workload(self, event: Event) -> tuple[Job | None, Job | None]:
        uid = self._uids.pop(f"Workload {event.key}", "")
        before, after = self.objects.pop(uid, None), None
        if event.document is not None:
            reference = event.document["spec"]["objectRef"]
            place = f"{event.document['metadata']['namespace']}/{reference['name']}"
            _, of = self.documents.get((reference["kind"], place), (0, None))
            after = objects.workload(event.document, of) or before
        if after is not None:
            self._uids[f"Workload {event.key}"] = after.uid
            self.objects[after.uid] = after
        return before, after

    def _put(self, event: Event, after: Object | None) -> Object | None:
        if event.kind == "TrainingJob":
            return self._put_job(event, after if isinstance(after, Job) else None)
        if event.kind == "Pod":
            return self._put_pod(event, after if isinstance(after, Pod) else None)
        by_kind: dict[str, dict[str, Any]] = {"Node": self.nodes, "Queue": self.queues, "Lease": self.leases}
        stored = by_kind[event.kind]
        before: Object | None = stored.get(event.key)
        if event.kind == "Queue" and before != after:
            self.trees.append((event.at, Tree(dict(self.queues))))
        if after is None:
            stored.pop(event.key, None)
        else:
            stored[event.key] = after
        return before

    def _put_job(self, event: Event, after: Job | None) -> Job | None:
        uid = self._uids.get(event.key)
        before = None if uid is None else self.jobs.get(uid)
        if uid is not None and before is not None and (after is None or after.uid != uid):
            del self.jobs[uid]
            self.removed[uid] = (before, event.at)
        if after is None:
            self._uids.pop(event.key, None)
        else:
            self._uids[event.key] = after.uid
            self.jobs[after.uid] = after
        return before if after is None or before is None or before.uid == after.uid else None

    def _put_pod(self, event: Event, after: Pod | None) -> Pod | None:
        key = event.key
        before = self.pods.pop(key, None)
        if before is not None:
            self.pods_by_job.get(before.job or before.object, set()).discard(key)
            self.pods_on_node.get(before.node, set()).discard(key)
            if before.stopping and (after is None or after.uid != before.uid):
                self.stopped[key] = event.at
        if after is not None:
            if before is not None and before.uid == after.uid and before.ended:
                after = replace(after, had_ended=True)
            self.pods[key] = after
            if after.job or after.object:
                self.pods_by_job.setdefault(after.job or after.object, set()).add(key)
            if after.node:
                self.pods_on_node.setdefault(after.node, set()).add(key)
        return before

    # ---- usage

    def recent_trees(self, now: float) -> list[Tree]:
        """The queues now, and as they were in force during the last QUOTA_WITHIN_S, newest first."""
        while self.trees and self.trees[0][0] < now - QUOTA_WITHIN_S:
            self.trees.popleft()
        return [Tree(self.queues), *(tree for _, tree in reversed(self.trees))]

    def pods_by_node(self, job: Job) -> Counter[tuple[str, str]]:
        """Pods by (role, node) for which a job uses capacity: live pods, and while it is admitted the slots of its
        placement, without those whose pods have completed; of one that is evicted only where it restarts: not for pods
        that its eviction records as completed, nor on nodes that it blames.

        A live pod in its own slot counts once; one that is deleted before it was bound never runs. Of a job that was
        removed, only its pods count.
        """
        pods = self.pods_of(job.uid)
        live = Counter((pod.slot[0], pod.node or pod.pin) for pod in pods if pod.live)
        removed, released = job.uid not in self.jobs and job.uid not in self.objects, job.evicted and not job.retains
        if not job.admitted or job.finished or job.deleted or removed or released:
            return live
        free = set(job.completed)
        if job.evicted:
            free |= {slot for slot, node in job.placement.items() if node in job.blamed}
        else:
            free |= {pod.slot for pod in pods if pod.attempt == job.attempt and pod.phase == "Succeeded"}
        if job.uid in self.objects:  # its pods are not numbered: those that have completed count as any
            places = Counter((role, node) for (role, _), node in job.placement.items())
            places -= Counter((pod.slot[0], pod.node) for pod in pods if pod.attempt == job.attempt and pod.ended)
            return places | live
        slots = ((role, node) for (role, index), node in job.placement.items() if (role, index) not in free)
        return Counter(slots) | live

    def usage_of(self, job: Job) -> Counter[Cell]:
        """What a job is charged for its pods. Pods on a deleted node use nothing."""
        cells: Counter[Cell] = Counter()
        known = {**self._nominated_flavors(job), **job.flavors}
        for (role, node), pods in self.pods_by_node(job).items():
            flavor = known.get(role) or self.flavors_seen.get((job.uid, role), "")
            if node in self.nodes and flavor:
                _add(cells, job.requests.get(role, {}), flavor, pods)
        return cells

    def nominated_usage(self, job: Job, now: float) -> Counter[Cell]:
        """What a job is charged for its nomination."""
        cells: Counter[Cell] = Counter()
        ended = job.stopped_by_user or job.finished or job.deleted
        if job.nomination is not None and job.nomination.expires_at > now and not ended:
            for (role, flavor, _), pods in job.nomination.placement.items():
                _add(cells, job.requests.get(role, {}), flavor, pods)
        return cells

    def charges(self, now: float, without: str) -> tuple[Charges, Charges]:
        """By queue, what all jobs but one are charged: now, and once all jobs that terminate have released theirs.

        Capacity that a terminating job still uses is counted once: now for that job, later for the job that it is
        nominated for. A job terminates as a victim of the nomination, or was terminating for other reasons when the
        nomination was made; then the nomination names no victim, and its job waits for preemption. Of a removed job its
        remaining pods are charged, now.
        """
        known = {**self.jobs, **self.objects}
        terminating = {uid for job in known.values() for uid in self._remaining_victims(job, now)}
        at_once: dict[str, Counter[Cell]] = {}
        later: dict[str, Counter[Cell]] = {}
        for uid, job in known.items():
            if uid != without and (job.admitted or job.nomination is not None or self.pods_by_job.get(uid)):
                nominated, used = self.nominated_usage(job, now), self.usage_of(job)
                releases = uid in terminating or not job.runs
                kept = used if not releases else demand(job) if job.runs and job.eviction_for else Counter()
                waits = job.waits_for_preemption or self._remaining_victims(job, now)
                at_once.setdefault(job.queue, Counter()).update(used if waits else used + nominated)
                later.setdefault(job.queue, Counter()).update(kept + nominated)
        for uid, (job, _) in self.removed.items():
            if self.pods_by_job.get(uid):
                at_once.setdefault(job.queue, Counter()).update(self.usage_of(job))
        return at_once, later

    def _remaining_victims(self, job: Job, now: float) -> frozenset[str]:
        """Victims of a job's nomination that still use capacity."""
        if job.nomination is None or job.nomination.expires_at <= now:
            return frozenset()
        return frozenset(
            uid
            for uid in job.nomination.victims
            if (victim := self.jobs.get(uid) or self.objects.get(uid)) and self.usage_of(victim)
        )

    @staticmethod
    def _nominated_flavors(job: Job) -> dict[str, str]:
        return {} if job.nomination is None else {role: flavor for role, flavor, _ in job.nomination.placement}

    def remember_flavors(self, job: Job) -> None:
        """Remember them for its last pods: an evicted job has no placement any more."""
        for role, flavor in job.flavors.items():
            self.flavors_seen[job.uid, role] = flavor


def demand(job: Job) -> Counter[Cell]:
    """What the placement of a job requests of its queue."""
    cells: Counter[Cell] = Counter()
    for role, pods in Counter(role for role, _ in job.placement).items():
        _add(cells, job.requests.get(role, {}), job.flavors.get(role, ""), pods)
    return cells


def _add(cells: Counter[Cell], requests: Mapping[str, int], flavor: str, pods: int) -> None:
    for resource, amount in requests.items():
        cells[flavor, resource] += amount * pods


def total(pods: Iterable[Pod]) -> Counter[str]:
    """What pods request together."""
    amounts: Counter[str] = Counter()
    for pod in pods:
        amounts.update(pod.requests)
    return amounts
