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


def test_the_url_is_that_of_the_report_else_of_the_dashboard_else_of_the_run_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MUSTER_DASHBOARD_URL", raising=False)
    runs = job(running())
    assert describe_response(runs).ui_url is None
    assert describe_response(runs, "/home/me/my runs").ui_url == "file:///home/me/my%20runs"
    monkeypatch.setenv("MUSTER_DASHBOARD_URL", "https://muster.example.com/")
    of_dashboard = describe_response(runs, "/home/me/runs").ui_url
    assert of_dashboard == f"https://muster.example.com/jobs/default/{runs.metadata.name}"
    reported = TrainingJobStatus.model_validate({"phase": "Succeeded", "traces": {"report": "/r/report.html"}})
    assert describe_response(job(reported), "/r").ui_url == "file:///r/report.html"
