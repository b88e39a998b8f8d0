"""A job in any state."""

from __future__ import annotations

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.model import RolePlacement
from muster.workload import conditions, transitions

PLACE = (RolePlacement("main", "local", (("n1", 1), ("n2", 1))),)


def job(status: TrainingJobStatus) -> TrainingJob:
    template = {"spec": {"containers": [{"command": ["true"]}]}}
    document = {
        "metadata": {"name": "a-1"},
        "spec": {"queue": "research", "roles": [{"name": "main", "template": template}]},
    }
    return TrainingJob.model_validate(document).model_copy(update={"status": status})


def running() -> TrainingJobStatus:
    admitted = transitions.admit(TrainingJobStatus(), PLACE, 1.0)
    return conditions.set_condition(admitted, conditions.PODS_READY, True, "Ready", "", 2.0)


def ended(status: TrainingJobStatus) -> TrainingJobStatus:
    """Its last process has ended."""
    return conditions.with_status_fields(status, {"finished_at": 9.0})
