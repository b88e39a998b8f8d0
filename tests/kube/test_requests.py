"""Error responses of the API server, as both clients raise them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.errors import ClusterError, Conflict, InvalidSpec, NotFound, Refused
from muster.kube.async_client import ApiError
from muster.kube.requests import retry_delay_s, user_error
from muster.kube.resources import PODS

JOBS = "/apis/muster.dev/v1alpha1/namespaces/a/trainingjobs"


def status(**fields: Any) -> bytes:
    """A Status as the API server sends it."""
    return json.dumps({"kind": "Status", "status": "Failure", **fields}).encode()


@pytest.mark.parametrize(
    ("code", "answer", "kind", "reason"),
    [
        (401, status(reason="Unauthorized"), ClusterError, "Unauthorized"),
        (403, status(reason="Forbidden", message="no"), Refused, "Forbidden"),
        (404, b"404 page not found\n", ClusterError, "NotInstalled"),
        (404, status(reason="NotFound", details={"name": "x"}), NotFound, "NotFound"),
        (404, status(reason="NoCollector", message="none", details={"name": "x"}), NotFound, "NoCollector"),
        (404, status(details={"name": "x"}), NotFound, "NotFound"),
        (409, status(reason="AlreadyExists"), Conflict, "AlreadyExists"),
        (409, status(reason="Conflict", details=None), Conflict, "Conflict"),
        (400, status(reason="BadRequest", message="unknown field"), InvalidSpec, "Invalid"),
        (422, status(reason="Invalid", details={"causes": None}), InvalidSpec, "Invalid"),
        (307, b"", ClusterError, "ApiError"),
        (500, b"\xff", ClusterError, "ApiError"),
        (502, b"[1]", ClusterError, "ApiError"),
    ],
)
def test_users_see_one_kind_of_error_for_each_code(code: int, answer: bytes, kind: type, reason: str) -> None:
    error = user_error(code, answer, "GET", JOBS)
    assert (type(error), error.reason) == (kind, reason)
    assert str(error)


def test_an_invalid_object_is_refused_with_all_causes_and_their_fields() -> None:
    causes = [
        {"field": "spec.roles[0].replicas", "message": "Invalid value: 0: should be at least 1"},
        {"field": "spec", "message": "Invalid value: roles: at least one role must be essential"},
        {"field": "<nil>"},
    ]
    error = user_error(422, status(reason="Invalid", message="long", details={"causes": causes}), "POST", JOBS)
    assert str(error) == (
        "spec.roles[0].replicas: Invalid value: 0: should be at least 1; "
        "spec: Invalid value: roles: at least one role must be essential"
    )
    assert error.field == "spec.roles[0].replicas"


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        (status(reason="Conflict", message="it changed"), "Conflict", "it changed"),
        (status(reason="Conflict", message="deep", extra=[0]).replace(b"[0]", b"[" * 5000 + b"]" * 5000),
         "Conflict", "deep"),
        (b"<html>" + b"x" * 5000, "ApiError", "<html>" + "x" * 294),
        (b"\xff", "ApiError", "\ufffd"),
    ],
)  # fmt: skip
def test_the_operator_sees_code_reason_and_message(answer: bytes, reason: str, message: str) -> None:
    error = ApiError.from_answer(409, answer)
    assert (error.code, error.reason, error.message) == (409, reason, message)


@pytest.mark.parametrize(("header", "delay_s"), [(None, 1.0), ("3", 3.0), ("0", 0.1), ("99", 10.0), ("soon", 1.0)])
def test_retry_after_is_followed_within_bounds(header: str | None, delay_s: float) -> None:
    assert retry_delay_s(header) == delay_s


@pytest.mark.parametrize("name", ["", ".", "..", "../../x", "a/b", "a%2Fb"])
def test_a_name_that_would_change_the_path_of_a_request_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match="name: must not") as error:
        PODS.path("team", name)
    assert error.value.field == "name"
    with pytest.raises(InvalidSpec, match="namespace: must not"):
        PODS.path(name, "pod")


def test_other_characters_of_names_are_escaped() -> None:
    assert PODS.path("team", "a?b#c d", "log") == "/api/v1/namespaces/team/pods/a%3Fb%23c%20d/log"
