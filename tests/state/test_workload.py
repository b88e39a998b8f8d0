"""A kind of job other than TrainingJob needs an adapter, and no change of the snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.engine.objects import queue

from muster.api import spec
from muster.cluster import NO_DECODE_ERRORS, PodView
from muster.model import Gang, Nomination, Resources, Role, RolePlacement
from muster.state.jobs import JobContext, JobProjection, project_job
from muster.state.projection import MaxGracePeriods
from muster.workload import Admission, Workload

NOW = 1000.0
ROLES = (Role("workers", 2, 2, Resources.of({"cpu": 1000})),)
PLACED = (RolePlacement("workers", "any", (("n0", 2),)),)
CONTEXT = JobContext(
    {"n0": "any"}, {"default": queue()}, {}, {("default", "d"): True}, {}, NO_DECODE_ERRORS, MaxGracePeriods(())
)


@dataclass(frozen=True, slots=True)
class SuspendedJob:
    """Like a batch/v1 Job that is created suspended: it has no status of ours."""

    uid: str = "u"
    namespace: str = "d"
    priority_class: str | None = None
    wants_capacity: bool = True
    admitted: Admission | None = None
    admitted_at: float | None = None
    started_at: float | None = None
    stopping_since: float | None = None
    requeue_after: float | None = None
    blamed_nodes: Sequence[spec.BlamedNode] = ()

    @property
    def roles_key(self) -> object:
        return self

    def roles(self) -> tuple[Role, ...]:
        return ROLES

    def priority(self, priority_classes: Mapping[str, int]) -> int | None:
        return 0 if self.priority_class is None else priority_classes.get(self.priority_class)

    def gang(self, now: float, priority_classes: Mapping[str, int], roles: tuple[Role, ...]) -> Gang:
        return Gang(self.uid, f"{self.namespace}/job", "default", self.priority(priority_classes) or 0, now, roles)

    def admission(self, now: float, pods: Sequence[PodView]) -> Admission | None:
        return self.admitted

    def nomination(self, now: float, gang: Gang) -> Nomination | None:
        return None


def projected(workload: Workload, *pods: PodView) -> JobProjection:
    return project_job(workload, pods, NOW, CONTEXT, workload.gang(NOW, {}, workload.roles()))


def test_a_job_of_another_kind_is_pending_running_or_terminating_as_a_training_job_is() -> None:
    pending = projected(SuspendedJob())
    assert pending.pending is not None
    assert pending.pending.roles == ROLES
    assert projected(SuspendedJob(wants_capacity=False)) == JobProjection()
    running = projected(SuspendedJob(admitted=Admission(PLACED, attempt=0), admitted_at=NOW - 5)).running
    assert running is not None
    assert (running.placement, running.state, running.admitted_at) == (PLACED, "admitted", NOW - 5)
    leaving = projected(SuspendedJob(), PodView("p", "u", "workers", 0, 0, "n0", "Running")).running
    assert leaving is not None
    assert (leaving.state, sum(part.replicas for part in leaving.placement)) == ("terminating", 1)


def test_a_job_of_another_kind_is_rejected_for_its_queue_namespace_or_priority_class() -> None:
    rejected = projected(SuspendedJob(priority_class="missing")).rejected
    assert rejected is not None
    assert rejected.reason == "PriorityClassNotFound"
    context = JobContext({}, {}, {}, {}, {}, NO_DECODE_ERRORS, MaxGracePeriods(()))
    job = SuspendedJob()
    missing = project_job(job, (), NOW, context, job.gang(NOW, {}, ROLES)).rejected
    assert missing is not None
    assert missing.reason == "QueueNotFound"
