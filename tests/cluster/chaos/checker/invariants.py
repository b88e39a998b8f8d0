"""Checks every event in the order in which etcd committed it, and periodically what should have happened by now.

Because objects of all kinds are in one order, most guarantees are checked exactly, after every single write. The
remaining tolerances, and why:

- Quota: an admission was decided before it was written, so it is correct if it was correct by any quota in force during
  the last QUOTA_WITHIN_S. Usage is taken as it is at the write, since only the operator adds to it; but capacity that a
  terminating job still uses is charged once: one cycle may admit some jobs and nominate that capacity for others.
- Capacity of a node: unmanaged pods that were bound less than UNMANAGED_WITHIN_S ago may have been unknown.
- What users and the cluster do (delete a job, evict a pod, remove a node) is not the operator's responsibility.
- Deadlines (`deadlines.py`): counted only while an operator holds the Lease and renews it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.cluster.chaos.checker.avoidance import AvoidanceChecks
from tests.cluster.chaos.checker.borrowing import BorrowingChecks
from tests.cluster.chaos.checker.capacity import CapacityChecks
from tests.cluster.chaos.checker.deadlines import Deadlines
from tests.cluster.chaos.checker.evictions import check_eviction, check_stopped_pod
from tests.cluster.chaos.checker.gang import check_created_pod, check_placement
from tests.cluster.chaos.checker.leaks import LeakChecks
from tests.cluster.chaos.checker.leases import LeaseChecks
from tests.cluster.chaos.checker.loops import LoopChecks
from tests.cluster.chaos.checker.model import ClusterModel, Event
from tests.cluster.chaos.checker.objects import Job, Json, Lease, Node, Pod
from tests.cluster.chaos.checker.other_kinds import check_left_alone, check_released_pod
from tests.cluster.chaos.checker.violation import Finding, ObjectVersion, Violation


class InvariantChecker:
    """Calls `report` with every violation, once for each rule and object."""

    def __init__(self, report: Callable[[Violation], None]) -> None:
        self.model = ClusterModel()
        self.revision = 0
        self._report = report
        self._reported: set[tuple[str, str]] = set()
        self._documents: dict[tuple[str, str], Json] = {}  # of Jobs and JobSets, as they were
        self._capacity = CapacityChecks()
        self._avoidance = AvoidanceChecks()
        self._borrowing = BorrowingChecks()
        self._deadlines = Deadlines()
        self._leaks = LeakChecks()
        self._leases = LeaseChecks()
        self._loops = LoopChecks()

    def apply(self, event: Event) -> None:
        """Check the next event, in the order of revisions."""
        self.revision = event.revision
        before, after = self.model.change(event)
        for finding in self._findings(event, before, after):
            self._add(finding, event.at)

    def tick(self, now: float) -> None:
        """Check deadlines; everything that was committed until `now` has been applied."""
        for finding in self._deadlines.overdue(self.model, now):
            self._add(finding, now)
        for finding in self._borrowing.overdue(self.model, self._deadlines.leading_since(now), now):
            self._add(finding, now)

    def end(self, now: float) -> None:
        """Check what is left at the end of the run."""
        for finding in self._leaks.leaked(self.model):
            self._add(finding, now)

    def _findings(self, event: Event, before: object, after: object) -> Iterator[Finding]:
        model, at = self.model, event.at
        self._leaks.count(event)
        if event.kind == "Pod":
            old, new = before if isinstance(before, Pod) else None, after if isinstance(after, Pod) else None
            self._deadlines.on_pod(old, new, at)
            self._leases.on_pod(new, at)
            yield from check_stopped_pod(model, old, new, at)
            yield from check_created_pod(model, old, new)
            yield from check_released_pod(model, old, new)
            yield from self._capacity.check_pod(model, old, new, at)
            yield from self._avoidance.check_pod(model, old, new, at)
        elif event.kind == "TrainingJob":
            old_job, job = before if isinstance(before, Job) else None, after if isinstance(after, Job) else None
            self._deadlines.on_job(old_job, job, at)
            if job is not None:
                yield from check_placement(model, job)
                yield from check_eviction(model, old_job, job, at)
                yield from self._loops.check(old_job, job, at)
                model.remember_flavors(job)
                yield from self._capacity.check_job(model, old_job, job, at)
                yield from self._avoidance.check_job(model, old_job, job, at)
                yield from self._borrowing.check_job(model, old_job, job, at)
        elif event.kind == "Workload" and isinstance(after, Job):
            old_object = before if isinstance(before, Job) else None
            yield from self._loops.check(old_object, after, at)
            model.remember_flavors(after)
            yield from self._capacity.check_job(model, old_object, after, at)
        elif event.kind in ("Job", "JobSet"):
            old_document = self._documents.pop((event.kind, event.key), None)
            yield from check_left_alone(event.kind, event.key, old_document, event.document)
            if event.document is not None:
                self._documents[event.kind, event.key] = event.document
        elif event.kind == "Node":
            self._deadlines.on_node(event.key, at)
            old_node, node = before if isinstance(before, Node) else None, after if isinstance(after, Node) else None
            self._avoidance.on_node(old_node, node, at)
        elif event.kind == "Lease" and isinstance(after, Lease):
            old_lease = before if isinstance(before, Lease) else None
            self._deadlines.on_lease(old_lease, after, at)
            yield from self._leases.check(old_lease, after, at)

    def _add(self, finding: Finding, at: float) -> None:
        rule, key, message, references = finding
        if (rule, key) in self._reported:
            return
        self._reported.add((rule, key))
        objects = []
        for kind, object_key in references:
            revision, document = self.model.documents.get((kind, object_key), (self.revision, None))
            objects.append(ObjectVersion(kind, object_key, revision, document))
        self._report(Violation(rule, key, message, self.revision, at, tuple(objects)))
