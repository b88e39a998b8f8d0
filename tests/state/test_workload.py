"""The planner's input of a workload of another kind than TrainingJob, which needs no change of the state."""

from __future__ import annotations

from tests.engine.objects import queue
from tests.kinds.suspended import SuspendedObject

from muster.api.spec import ObjectMeta, QueueingStatus
from muster.cluster import PodView
from muster.model import Resources, RolePlacement
from muster.state.jobs import JobContext, JobProjection, project_job
from muster.state.projection import MaxGracePeriods
from muster.workload import transitions
from muster.workload.gates import GateState
from muster.workload.planning import gang_of
from muster.workload.protocol import Workload

NOW = 1000.0
PLACED = (RolePlacement("pods", "any", (("n0", 2),)),)
GATES = GateState({"default": queue()}, {("default", "d"): True}, {})
CONTEXT = JobContext({"n0": "any"}, MaxGracePeriods(()), GATES)
NOTHING_KNOWN = JobContext({}, MaxGracePeriods(()), GateState({}, {}, {}))


def made(**fields: object) -> SuspendedObject:
    values: dict[str, object] = {"metadata": ObjectMeta(name="a", namespace="d", uid="u"), **fields}
    return SuspendedObject(**values)  # type: ignore[arg-type]


def projected(workload: Workload, *pods: PodView, context: JobContext = CONTEXT) -> JobProjection:
    return project_job(workload, pods, NOW, context, gang_of(workload, NOW, {}, workload.roles(), 60.0))


def test_a_workload_of_another_kind_is_pending_running_or_terminating_as_a_training_job_is() -> None:
    one = made()
    pending = projected(one)
    assert pending.pending is not None
    assert pending.pending.roles == one.roles()
    assert projected(made(is_suspended=True)) == JobProjection()
    running = projected(one.with_status(transitions.admit(QueueingStatus(), PLACED, NOW - 5))).running
    assert running is not None
    assert (running.placement, running.state, running.admitted_at) == (PLACED, "admitted", NOW - 5)
    made_up = projected(one, PodView("p", "u", "pods", 0, 0, "n0", "Running"))
    assert (made_up.running, dict(made_up.uncharged)) == (None, {"n0": Resources.of({"nvidia.com/gpu": 1, "pods": 1})})
    requeued = one.with_status(QueueingStatus(attempt=1))
    leaving = projected(requeued, PodView("p", "u", "pods", 0, 0, "n0", "Running")).running
    assert leaving is not None
    assert (leaving.state, sum(part.replicas for part in leaving.placement)) == ("terminating", 1)


def test_a_workload_of_another_kind_is_rejected_for_its_queue_namespace_or_priority_class() -> None:
    rejected = projected(made(priority_class="missing")).rejected
    assert rejected is not None
    assert rejected.reason == "PriorityClassNotFound"
    missing = projected(made(), context=NOTHING_KNOWN).rejected
    assert missing is not None
    assert missing.reason == "QueueNotFound"
