"""The endpoint for training status of Kubeflow, as its clients use it."""

from __future__ import annotations

import json
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_components.launch.trainer_status import TrainerStatusServer, parse_status


class Endpoint:
    def __init__(self, folder: Path) -> None:
        self.reports: list[dict[str, Any]] = []
        self.server = TrainerStatusServer(folder, self.reports.append)
        self.server.start()
        self.variables = self.server.environment({"MUSTER_NAMESPACE": "team-a", "MUSTER_JOB": "tune"})

    def post(self, body: bytes, token: str | None = None) -> int:
        file = Path(self.variables["KUBEFLOW_TRAINER_SERVER_TOKEN"])
        headers = {"Authorization": f"Bearer {file.read_text() if token is None else token}"}
        request = urllib.request.Request(self.variables["KUBEFLOW_TRAINER_SERVER_URL"], body, headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=600) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    served = Endpoint(tmp_path)
    yield served
    served.server.stop()


def status(**fields: Any) -> bytes:
    return json.dumps({"trainerStatus": {"lastUpdatedTime": "2026-11-29T00:00:00Z", **fields}}).encode()


def metrics(**values: object) -> list[dict[str, str]]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]


def test_a_status_with_the_token_is_a_report(endpoint: Endpoint) -> None:
    known = metrics(loss=2.5, current_step=20, total_steps=80, learning_rate=0.1)
    assert endpoint.post(status(progressPercentage=25, estimatedRemainingSeconds=60, metrics=known)) == 200
    (report,) = endpoint.reports
    del report["at"]
    assert report == {"step": 20, "steps": 80, "loss": 2.5, "eta_s": 60.0}


def test_the_last_status_of_transformers_is_of_the_last_step(endpoint: Endpoint) -> None:
    endpoint.post(status(progressPercentage=0, metrics=metrics(total_steps=80)))
    endpoint.post(status(progressPercentage=100, estimatedRemainingSeconds=0, metrics=metrics(train_loss=1.5)))
    assert (endpoint.reports[1]["step"], endpoint.reports[1]["loss"]) == (80, 1.5)


@pytest.mark.parametrize("token", ["", "x" * 43, "\u00e9"])
def test_other_users_of_the_host_have_no_token_and_get_401(endpoint: Endpoint, token: str) -> None:
    assert endpoint.post(status(), token.encode("latin-1").decode("latin-1")) == 401
    assert endpoint.reports == []
    file = Path(endpoint.variables["KUBEFLOW_TRAINER_SERVER_TOKEN"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 60000,
        b'{"trainerStatus": 1}',
        status(metrics=[1]),
        status(metrics=metrics(loss="x")),
        status(metrics=metrics(total_steps="inf")),
        status(estimatedRemainingSeconds={}),
    ],
)
def test_a_body_that_is_no_status_is_rejected(endpoint: Endpoint, body: bytes) -> None:
    assert endpoint.post(body) == 422
    assert endpoint.reports == []


def test_a_body_that_is_too_large_is_not_read(endpoint: Endpoint) -> None:
    assert endpoint.post(status(metrics=metrics(name="x" * 70_000))) == 413


def test_the_variables_of_a_trainjob_are_left_alone(endpoint: Endpoint) -> None:
    assert endpoint.server.environment({"KUBEFLOW_TRAINER_SERVER_URL": "https://kubeflow/status"}) == {}


def test_a_proxy_of_the_pod_is_not_used_for_loopback(endpoint: Endpoint) -> None:
    found = endpoint.server.environment({"HTTPS_PROXY": "p", "http_proxy": "p", "NO_PROXY": "internal"})
    assert (found["no_proxy"], found["NO_PROXY"]) == ("127.0.0.1", "internal,127.0.0.1")


def test_a_loss_that_is_not_finite_is_unknown() -> None:
    assert parse_status(status(metrics=metrics(loss="nan", current_step=1)), 5.0) == {"at": 5.0, "step": 1}
