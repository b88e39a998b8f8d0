"""State and roles of a job as TorchX describes them."""

from __future__ import annotations

import pytest
from tests.torchx.jobs import ended, job, running
from torchx.specs import AppState

from muster.api.spec import EnvVar, TrainingJobStatus
from muster.torchx.status import app_state, describe_response
from muster.workload import conditions, transitions

KINDS = [
    (conditions.COMPLETE, AppState.SUCCEEDED),
    (conditions.FAILED, AppState.FAILED),
    (conditions.CANCELLED, AppState.CANCELLED),
]


@pytest.mark.parametrize(("kind", "state"), KINDS)
def test_a_finished_job_is_running_until_its_last_process_has_ended(kind: str, state: AppState) -> None:
    status = transitions.finish(running(), kind, "Because", "", 3.0)
    assert app_state(job(status)) == AppState.RUNNING
    assert app_state(job(ended(status))) == state


def test_a_description_hides_the_values_of_secrets() -> None:
    env = {"WANDB_API_KEY": "k3y", "DATA": "s3://key:s3cret@host/data", "STEPS": "5"}
    described = job(TrainingJobStatus())
    container = described.spec.roles[0].template.spec.containers[0]
    container.env.extend(EnvVar(name=name, value=value) for name, value in env.items())
    (role,) = describe_response(described).roles
    assert role.env == {"WANDB_API_KEY": "(hidden)", "DATA": "s3://(hidden)@host/data", "STEPS": "5"}
