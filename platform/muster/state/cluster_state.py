"""What is known of a cluster between two scheduling cycles, and what changed since the last one.

There is one `JobEntry` per job. `ClusterState.update` compares an observed state with the one before, once per cycle;
the lifecycle and the snapshot read the same `Changes`. Objects that did not change keep their identity, so thousands of
jobs are compared by reference. Losing the state costs time only: all of it but usage follows from what is observed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from muster import model
from muster.api import spec
from muster.api.spec import QueueingStatus
from muster.cluster import NodeView
from muster.model import Gang, Role, Snapshot, Wait
from muster.state.fair_share import Charge, FairShare
from muster.state.jobs import NEVER, JobContext, JobProjection
from muster.state.orphans import OrphanProjection
from muster.state.projection import MaxGracePeriods, NodeProjection, QueueProjection
from muster.workload.observed import ObservedState
from muster.workload.protocol import Workload
from muster.workload.related import RelatedWorkloads

RolesByKey: TypeAlias = dict[int, tuple[object, tuple[Role, ...]]]
"""Roles by the identity of `Workload.roles_key`, with the key."""


@dataclass(slots=True)
class JobEntry:
    """What is known of one job. `wait` is what was last written of why it waits, at `wait_written_at`."""

    workload: Workload  # as observed last
    gang: Gang | None = None  # of the last snapshot, as the projection
    projection: JobProjection = JobProjection()
    reconcile_at: float = NEVER  # when its lifecycle may change by time alone
    charge: Charge = field(default_factory=dict)  # what its queue is charged for it now
    wait: Wait | None = None
    wait_written_at: float | None = None

    def clear_wait(self) -> None:
        """The job does not wait now, or writing why may have failed."""
        self.wait = self.wait_written_at = None


@dataclass(frozen=True, slots=True)
class Changes:
    """Uids of jobs that a cycle has to process. `jobs` are new or were written, in the order observed."""

    jobs: tuple[str, ...] = ()
    reconcile: tuple[str, ...] = ()  # jobs whose lifecycle is to be reconciled; those of `jobs` first
    project: frozenset[str] = frozenset()  # not in `jobs`: the planner may see them differently


class ClusterState:
    """Jobs, nodes and queues as of the last cycle, their timers, and fair-share usage.

    `jobs` is by uid. The sets and dicts below it are indexes, so that a cycle does not walk all jobs: they have the
    order in which the jobs came.
    """

    def __init__(self, fair_share: FairShare | None = None, jobs: dict[str, JobEntry] | None = None) -> None:
        self.fair_share = fair_share or FairShare()
        self.jobs: dict[str, JobEntry] = jobs or {}
        self.nominated_or_evicting: set[str] = set()  # nominated, or evicted or shrunk for another job
        self.unbound: set[str] = set()  # admitted, with pods that kube-scheduler could not bind
        self.projected_early: frozenset[str] = frozenset()  # projected with a status that is not observed yet
        self.pending: dict[str, Gang] = {}
        self.running: dict[str, model.RunningGang] = {}
        self.nominations: dict[str, model.Nomination] = {}
        self.rejected: dict[str, Wait] = {}
        self.blamed: dict[str, list[spec.BlamedNode]] = {}
        self.started: dict[str, spec.QueueingStatus] = {}  # of gangs that run, or have run to their end
        self.uncharged: dict[str, Mapping[str, model.Resources]] = {}  # as in the projection
        self.related = RelatedWorkloads()
        self.orphans = OrphanProjection()
        self.timers = TimerQueue()
        self.nodes: Mapping[str, NodeView] = {}
        self.node_projection = NodeProjection()
        self.queue_projection = QueueProjection()
        self.context: JobContext | None = None
        self.roles_by_key: RolesByKey = {}
        self.last_snapshot: Snapshot | None = None
        self._node_views: tuple[NodeView, ...] | None = None
        self._queues: tuple[tuple[object, ...], ...] | None = None  # spec, name and uid of each
        self.max_grace_s = MaxGracePeriods(())
        self._job_ids: set[int] = set()  # identities of the workloads in the entries, which hold references to them
        self._of_jobs: tuple[dict[str, Any], ...] = ({}, {}, {})  # pods, heartbeats, rejections: by job uid
        self._recheck: set[str | None] = set()  # None: every job
        self._paused: frozenset[tuple[str, str]] = frozenset()  # paused jobs, and (uid, change) of refused changes

    def rebuilt(self) -> ClusterState:
        """A new state with the same usage, for use after a failure: every job is processed again. When waits were
        written still counts."""
        kept = {
            uid: JobEntry(entry.workload, charge=entry.charge, wait_written_at=entry.wait_written_at)
            for uid, entry in self.jobs.items()
        }
        return ClusterState(self.fair_share, kept)

    def recheck(self, uids: Iterable[str] | None = None) -> None:
        """Process these jobs (None: every job) in the next cycle although nothing changes. Any thread may call it."""
        self._recheck.update((None,) if uids is None else uids)

    def schedule(self, uid: str) -> None:
        """Set the job's timer to when its lifecycle or its projection may change by time alone."""
        entry = self.jobs[uid]
        self.timers.schedule(uid, min(entry.reconcile_at, entry.projection.changes_at))

    # ---- the difference between two cycles

    def update(self, observed: ObservedState) -> Changes:
        """Take the observed state over; what differs from the one before, or is due."""
        nodes_changed = self._update_nodes(observed)
        graces_changed = self._update_queues(observed)
        fresh, waiting = self._update_jobs(observed)
        pods, heartbeats, rejections = self._changed_of_jobs(observed)
        self._recheck_paused(observed)
        rechecked, recheck_all = self._take_rechecked()
        due = rechecked.union(self.timers.pop_due(observed.now), waiting)
        if nodes_changed or graces_changed or recheck_all:
            reconcile = [one.key for one in observed.workloads]
        else:
            reconcile = [*fresh, *sorted((pods | heartbeats | due) - set(fresh))]
        project = (pods | rejections | due | (self.projected_early & self.jobs.keys())) - set(fresh)
        return Changes(tuple(fresh), tuple(reconcile), frozenset(project))

    def _update_nodes(self, observed: ObservedState) -> bool:
        """Whether a node was added, removed or changed its health, so that every job has to be processed."""
        if self._node_views is observed.nodes:
            return False
        before, self.nodes = self.nodes, {view.name: view for view in observed.nodes}
        self._node_views = observed.nodes
        if before.keys() != self.nodes.keys():
            return True
        return any(
            view is not before[name] and _health(view) != _health(before[name]) for name, view in self.nodes.items()
        )

    def _update_queues(self, observed: ObservedState) -> bool:
        """Whether the longest grace period of a queue changed, so that every job has to be processed."""
        queues = tuple((queue.spec, queue.metadata.name, queue.metadata.uid) for queue in observed.queues)
        known = self._queues
        if known is not None and len(queues) == len(known) and all(map(_same_queue, queues, known)):
            return False
        self._queues = queues
        self.fair_share.update_queues(observed.queues, observed.now)
        before, self.max_grace_s = self.max_grace_s, MaxGracePeriods(observed.queues)
        return self.max_grace_s != before

    def _update_jobs(self, observed: ObservedState) -> tuple[list[str], set[str]]:
        """The uids of new and changed jobs, and of those that may wait for one of them or for one that was removed,
        which is dropped."""
        known, fresh, waiting = self._job_ids, [], set[str]()
        for workload in [one for one in observed.workloads if id(one) not in known]:
            uid = workload.key
            entry = self.jobs.get(uid)
            if entry is None:
                self.jobs[uid] = JobEntry(workload)
            else:
                known.discard(id(entry.workload))
                entry.workload = workload
            known.add(id(workload))
            fresh.append(uid)
            waiting |= self.related.put(workload)
            if has_nomination_or_eviction(workload.status):
                self.nominated_or_evicting.add(uid)
            else:
                self.nominated_or_evicting.discard(uid)
        if len(self.jobs) != len(observed.workloads):
            for uid in self.jobs.keys() - {one.key for one in observed.workloads}:
                waiting |= self.related.remove(self.jobs[uid].workload)
                self._remove_job(uid, observed.now)
        return fresh, waiting & self.jobs.keys()

    def _remove_job(self, uid: str, now: float) -> None:
        entry = self.jobs.pop(uid)
        self._job_ids.discard(id(entry.workload))
        self.fair_share.charge(uid, entry.charge, {}, now, now)
        self.timers.schedule(uid, NEVER)
        indexes = (self.pending, self.running, self.nominations, self.rejected, self.blamed, self.started)
        for index in (*indexes, self.uncharged):
            index.pop(uid, None)
        self.nominated_or_evicting.discard(uid)
        self.unbound.discard(uid)

    def _changed_of_jobs(self, observed: ObservedState) -> list[set[str]]:
        """Jobs with other pods, heartbeats and rejections, one set each."""
        changed = []
        fresh = (observed.pods, observed.heartbeats, observed.pod_rejections)
        for past, now in zip(self._of_jobs, fresh, strict=True):
            found = set[str]()
            if past != now:
                get = past.get
                found.update(uid for uid, value in now.items() if get(uid) is not value)
                found.update(past.keys() - now.keys())
            changed.append(found & self.jobs.keys())
        self._of_jobs = (dict(fresh[0]), dict(fresh[1]), dict(fresh[2]))
        return changed

    def _recheck_paused(self, observed: ObservedState) -> None:
        """Process the jobs again that begin or cease to be paused, or of which a change begins or ceases to be
        refused."""
        before, paused = self._paused, ((uid, "") for uid in observed.paused)
        self._paused = frozenset(paused).union((one.job_uid, one.change) for one in observed.refused)
        if before != self._paused:
            self._recheck.update(uid for uid, _ in before ^ self._paused)

    def _take_rechecked(self) -> tuple[set[str], bool]:
        """Jobs to process again, and whether all are. Why they wait may not have been written."""
        taken = {self._recheck.pop() for _ in range(len(self._recheck))}  # another thread may add to it now
        uids = {uid for uid in taken if uid is not None and uid in self.jobs}
        for uid in uids:
            self.jobs[uid].clear_wait()
        if None in taken:
            for entry in self.jobs.values():
                entry.wait = None  # when it was written still counts: all at once would be too many writes
        return uids, None in taken


class TimerQueue:
    """One time per uid."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def schedule(self, uid: str, at: float) -> None:
        """Set the time of `uid`, replacing the old one; infinite: no time."""
        if at == NEVER:
            self._at.pop(uid, None)
        elif self._at.get(uid) != at:
            self._at[uid] = at
            heapq.heappush(self._heap, (at, uid))

    def pop_due(self, now: float) -> list[str]:
        """Uids whose time has come, earliest first. They are removed."""
        found = []
        while (first := self.next_time()) is not None and first <= now:
            uid = heapq.heappop(self._heap)[1]
            del self._at[uid]
            found.append(uid)
        return found

    def next_time(self) -> float | None:
        """The earliest time; None if there is none."""
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None


def has_nomination_or_eviction(status: QueueingStatus | None) -> bool:
    """Whether the job is nominated, or evicted or shrunk for another job."""
    return status is not None and (status.nomination is not None or status.eviction is not None)


def _health(view: NodeView) -> tuple[object, ...]:
    return view.ready, view.not_ready_since, view.taints


def _same_queue(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return a[0] is b[0] and a[1:] == b[1:]
