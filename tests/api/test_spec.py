"""Objects as users write them: defaults, and what one object shows wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from muster.api.spec import MAX_JOB_NAME, Flavor, Queue, TrainingJob, TrainingJobStatus, max_job_name_length


def job(role: dict[str, Any] | None = None, **spec: Any) -> TrainingJob:
    plain = {"name": "trainer", "template": {"spec": {"containers": [{}]}}}
    return TrainingJob.model_validate({"metadata": {"name": "j"}, "spec": {"roles": [plain | (role or {})], **spec}})


def wrong(act: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        act(*arguments, **named)
    (error, *_) = caught.value.errors()
    return f"{'.'.join(map(str, error['loc']))}: {error['msg']}"


def test_the_smallest_job_has_these_defaults() -> None:
    made = job()
    assert (made.spec.queue, made.spec.priority, made.spec.start_timeout_seconds) == ("default", 0, 600)
    assert (made.spec.failure_policy.max_restarts, made.spec.suspend, made.spec.cancel) == (3, False, False)
    role = made.spec.roles[0]
    assert (role.replicas, role.min_replicas, role.essential) == (1, None, True)
    assert role.template.spec.termination_grace_period_seconds == 30
    assert made.status.phase == "Pending"


def test_objects_go_out_as_they_came_in() -> None:
    made = job(queue="research", topology={"required": "rack"}, trace={"startStep": 20, "steps": 5})
    text = made.model_dump_json(by_alias=True, exclude_none=True)
    assert json.loads(text)["spec"]["trace"] == {"startStep": 20, "steps": 5, "ranks": []}
    assert TrainingJob.model_validate_json(text) == made


def test_seconds_may_be_a_duration() -> None:
    read = job(maxRuntimeSeconds="1h30m", stallTimeoutSeconds="90").spec
    assert (read.max_runtime_seconds, read.stall_timeout_seconds) == (5400, 90)


def test_times_are_rfc_3339_outside_and_unix_seconds_inside() -> None:
    status = TrainingJobStatus.model_validate({"admittedAt": "2026-11-21T10:00:00.250000Z"})
    assert status.admitted_at == 1_795_255_200.25
    assert status.model_dump(mode="json", by_alias=True)["admittedAt"] == "2026-11-21T10:00:00.250000Z"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"roles": []}, "spec.roles: List should have at least 1 item"),
        (
            {"priority": 1, "priorityClassName": "high"},
            "priorityClassName: must not be set together with priority; got priority 1",
        ),
        ({"maxRuntimeSeconds": 0}, "spec.maxRuntimeSeconds: Input should be greater than or equal to 1"),
        ({"maxRuntimeSeconds": 10**9}, "spec.maxRuntimeSeconds: Input should be less than or equal to"),
        ({"priority": 2**31}, "spec.priority: Input should be less than or equal to 2147483647"),
        ({"queue": "../x"}, "spec.queue: String should match pattern"),
        ({"trace": {"startStep": 0, "steps": 1}}, "spec.trace.startStep: Input should be greater than or equal to 1"),
        ({"trace": {"startStep": 1, "steps": 5, "every": 5}}, "every: must be above steps (5); got 5"),
        ({"failurePolicy": {"rules": [{"onExitCodes": [256], "action": "FailJob"}]}}, "onExitCodes.0"),
        ({"failurePolicy": {"rules": [{"action": "FailJob"}]}}, "must have onExitCodes or onPodConditions"),
        ({"maxRuntimeSeconds": "soon"}, "spec.maxRuntimeSeconds: Value error, must be a duration such as 2h"),
        ({"beginTime": "2026-12-01T18:00:00"}, "must be a time with its zone such as 2026-12-01T18:00:00Z"),
        ({"nonsense": 1}, "spec.nonsense: Extra inputs are not permitted"),
    ],
)
def test_a_job_that_shows_it_wrong_is_refused(spec: dict[str, Any], message: str) -> None:
    assert message in wrong(job, **spec)


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ({"replicas": 2, "minReplicas": 3}, "minReplicas: must be at most replicas (2); got 3"),
        ({"essential": False}, "roles: at least one role must be essential"),
        ({"name": "Trainer"}, "spec.roles.0.name: String should match pattern"),
        ({"replicas": 100_001}, "spec.roles.0.replicas: Input should be less than or equal to 100000"),
        ({"template": {"spec": {"containers": []}}}, "containers: List should have at least 1 item"),
        ({"template": {"spec": {"containers": [{}], "schedulerName": "x"}}}, "schedulerName: Input should be None"),
        ({"template": {"spec": {"containers": [{}], "priorityClassName": "x"}}}, "priorityClassName: Input should be"),
        (
            {"template": {"spec": {"containers": [{}], "tolerations": [{"key": "a", "operator": "In"}]}}},
            "tolerations.0.operator: Input should be 'Equal' or 'Exists'",
        ),
        (
            {"template": {"spec": {"containers": [{}], "tolerations": [{"key": "a", "effect": "No"}]}}},
            "tolerations.0.effect: Input should be '', 'NoSchedule', 'PreferNoSchedule' or 'NoExecute'",
        ),
        (
            {"replicas": 100_000, "template": {"spec": {"containers": [{"resources": {"limits": {"memory": "1Ei"}}}]}}},
            "replicas: memory of all pods together must be less than 2^62; got 100000 pods of 1Ei",
        ),
        (
            {"template": {"spec": {"containers": [{"resources": {"requests": {"memory": "4E"}}}] * 3}}},
            "replicas: memory of all pods together must be less than 2^62; got 1 pod of 12E",
        ),
        (
            {
                "replicas": 100,
                "template": {
                    "spec": {
                        "containers": [{}],
                        "initContainers": [{"resources": {"limits": {"memory": "50P"}}}],
                        "overhead": {"memory": "1E"},
                    }
                },
            },
            "replicas: memory of all pods together must be less than 2^62; got 100 pods of 1050P",
        ),
    ],
)
def test_a_role_that_shows_it_wrong_is_refused(role: dict[str, Any], message: str) -> None:
    assert message in wrong(job, role)


def test_two_roles_of_one_name_are_refused() -> None:
    role = {"name": "a", "template": {"spec": {"containers": [{}]}}}
    assert "name must be unique; got 'a' more than once; give every role its own" in wrong(job, roles=[role, role])


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 53, "a.b", "a/b", "ä"])
def test_a_name_that_cannot_begin_the_names_of_pods_is_refused(name: str) -> None:
    body = {"metadata": {"name": name}, "spec": job().spec.model_dump(by_alias=True)}
    assert wrong(TrainingJob.model_validate, body).startswith("metadata")


def test_a_queue_guaranteed_more_than_its_limit_is_refused() -> None:
    resources = [{"flavor": "h200", "guaranteed": {"memory": "2Gi"}, "limit": {"memory": "1Gi"}}]
    message = wrong(Queue.model_validate, {"metadata": {"name": "q"}, "spec": {"resources": resources}})
    assert "guaranteed: memory must be at most its limit (1Gi); got 2Gi" in message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"operator": "Exists"}, "0.key: Field required"),
        ({"key": "a", "operator": "Inn"}, "0.operator: Input should be 'In', 'NotIn', 'Exists' or 'DoesNotExist'"),
        ({"key": "a", "operator": "In"}, "values must be set with operator In"),
        ({"key": "a", "operator": "Exists", "values": ["b"]}, "values must be empty with operator Exists"),
        ({"key": "a", "operator": "In", "values": [1]}, "0.values.0: Input should be a valid string"),
    ],
)
def test_a_selector_that_selects_nothing_sensible_is_refused(line: dict[str, Any], message: str) -> None:
    body = {"metadata": {"name": "q"}, "spec": {"namespaceSelector": {"matchExpressions": [line]}}}
    assert message in wrong(Queue.model_validate, body)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([("rack", "a"), ("rack", "b")], "topology: Value error, name must be unique; got 'rack' more than once"),
        (
            [("rack", "a"), ("block", "a")],
            "topology: the nodeLabel of each level must be unique; got 'a' more than once",
        ),
        ([("rack", "")], "nodeLabel"),
    ],
)
def test_a_flavor_whose_levels_are_not_distinct_is_refused(levels: list[tuple[str, str]], message: str) -> None:
    topology = [{"name": name, "nodeLabel": label} for name, label in levels]
    body = {"metadata": {"name": "f"}, "spec": {"topology": topology}}
    assert message in wrong(Flavor.model_validate, body)


@pytest.mark.parametrize(("replicas", "longest"), [(1, 47), (10, 47), (11, 46), (100_000, 43)])
def test_a_job_may_be_called_so_that_its_pods_names_are_names_of_hosts(replicas: int, longest: int) -> None:
    role = {"name": "trainer", "replicas": replicas, "template": {"spec": {"containers": [{}]}}}
    assert max_job_name_length([("trainer", replicas)]) == longest
    assert len(f"{'a' * longest}-trainer-{replicas - 1}-12345") == 63
    for length, right in ((longest, True), (longest + 1, False)):
        body = {"metadata": {"name": "a" * length}, "spec": {"roles": [role]}}
        if right:
            TrainingJob.model_validate(body)
        else:
            assert f"must have at most {longest} characters" in wrong(TrainingJob.model_validate, body)


def test_a_short_role_leaves_a_job_the_longest_name_there_is() -> None:
    assert max_job_name_length([("a", 1)]) == MAX_JOB_NAME
