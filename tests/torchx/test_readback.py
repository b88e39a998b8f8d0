"""A job's state in the words of TorchX."""

from __future__ import annotations

import pytest
from tests.torchx.jobs import ended, job, running
from torchx.specs import AppState

from muster.lifecycle import conditions, transitions
from muster.torchx.describe import app_state

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
