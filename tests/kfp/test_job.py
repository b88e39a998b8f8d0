"""The TrainingJob that a step submits."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.spec import TrainingJob
from muster.errors import InvalidSpec
from muster.kfp.job import SPEC_HASH, TASK, Target, build_job, parse_parameters

TASK_URI = "minio://mlpipeline/v2/artifacts/pipe/6f0c/train/9d2e/report"
STEP = {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"memory": "64Gi", "nvidia.com/gpu": "4"}}


def job(number: int = 1, target: Target | None = None, **parameters: Any) -> TrainingJob:
    given = {"command": ["train"], "image": "registry/trainer:1", **parameters}
    return build_job(parse_parameters(given), target or Target(TASK_URI, "team-a", in_cluster=True), number)


def resources(found: TrainingJob) -> dict[str, dict[str, str]]:
    container = found.spec.roles[0].template.spec.containers[0]
    return {"requests": container.resources.requests, "limits": container.resources.limits}


def test_all_tries_of_a_task_have_one_name_and_other_tasks_another() -> None:
    other = Target(TASK_URI.replace("9d2e", "9d2f"), "team-a", in_cluster=True)
    assert job().metadata.name == job().metadata.name != job(target=other).metadata.name
    assert job(2).metadata.name == f"{job().metadata.name}-2"
    assert job().metadata.annotations[TASK] == TASK_URI


def test_the_name_leaves_space_for_the_names_of_pods() -> None:
    found = job(name="A very long name of a pipeline's step, with spaces and more than the limit", replicas=1000)
    assert len(f"{found.metadata.name}-trainer-999-12345") <= 63
    assert found.metadata.name.startswith("a-very-long-name-of")


def test_the_hash_of_the_spec_differs_where_a_parameter_of_the_job_does() -> None:
    hashes = {job(**changes).metadata.annotations[SPEC_HASH] for changes in ({}, {"queue": "red"}, {"replicas": 2})}
    assert len(hashes) == 3
    assert job().metadata.annotations[SPEC_HASH] == job(on_terminate="leave").metadata.annotations[SPEC_HASH]


def test_parameters_become_fields_of_the_job() -> None:
    found = job(
        queue="red", priority=5, max_runtime="2h", trace_steps="20:25", replicas=4.0, cpu="8", memory="64Gi", gpus=8,
        env={"A": "b"}, namespace="team-b", run_volume="runs", command=["train", "--steps", 20],
    )  # fmt: skip
    spec, container = found.spec, found.spec.roles[0].template.spec.containers[0]
    assert found.metadata.namespace == "team-b"
    assert (spec.queue, spec.priority, spec.max_runtime_seconds, spec.roles[0].replicas) == ("red", 5, 7200, 4)
    assert spec.trace is not None
    assert (spec.trace.start_step, spec.trace.steps) == (20, 5)
    assert container.command == ["train", "--steps", "20"]
    assert [(one.name, one.value) for one in container.env] == [("A", "b")]
    assert resources(found) == {
        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "8"},
    }
    volumes = (found.spec.roles[0].template.spec.model_extra or {}).get("volumes") or found.model_dump(by_alias=True)[
        "spec"
    ]["roles"][0]["template"]["spec"]["volumes"]
    assert [volume["name"] for volume in volumes] == ["dshm", "muster-run"]


def test_resources_set_on_the_step_are_those_of_each_pod_unless_the_job_has_its_own() -> None:
    target = Target(TASK_URI, "team-a", in_cluster=True, resources=STEP)
    assert resources(job(target=target)) == STEP
    assert resources(job(target=target, gpus=8, cpu="2")) == {
        "requests": {"cpu": "2", "memory": "64Gi", "nvidia.com/gpu": "8"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "8"},
    }


def test_a_whole_job_keeps_its_fields() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "own", "resources": {"limits": {"memory": "1Gi"}}}]}}
    whole = {
        "metadata": {"name": "llama", "labels": {"team": "a"}},
        "spec": {"queue": "red", "priority": 3, "roles": [{"name": "main", "replicas": 2, "template": template}]},
    }
    target = Target(TASK_URI, "team-a", in_cluster=True, resources=STEP)
    found = build_job(parse_parameters({"job": whole}), target, 1)
    assert found.metadata.name.startswith("llama-")
    assert found.metadata.labels == {"team": "a"}
    assert (found.spec.queue, found.spec.priority, found.spec.roles[0].replicas) == ("red", 3, 2)
    assert resources(found) == {"requests": {"cpu": "8"}, "limits": {"memory": "1Gi", "nvidia.com/gpu": "4"}}
    assert whole["metadata"] == {"name": "llama", "labels": {"team": "a"}}


def test_a_cluster_needs_an_image_and_one_host_does_not() -> None:
    with pytest.raises(InvalidSpec, match="image: must be the image of the pods in a cluster"):
        job(image="")
    assert job(image="", target=Target(TASK_URI, "default", in_cluster=False)).spec.roles[0].replicas == 1


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"metadata": 7, "spec": {}}, "job.metadata"),
        ({"metadata": ["a"], "spec": {}}, "job.metadata"),
        ({"spec": {"ttlSecondsAfterFinished": 0}}, "job.spec.ttlSecondsAfterFinished"),
    ],
    ids=str,
)
def test_a_job_that_a_step_cannot_follow_is_refused(document: dict[str, Any], field: str) -> None:
    """Of one that is deleted at its end, the step would not know the end, and a retry would train again."""
    role = {"name": "a", "template": {"spec": {"containers": [{"name": "c", "image": "i", "command": ["true"]}]}}}
    document = {**document, "spec": {**document["spec"], "roles": [role]}}
    with pytest.raises(InvalidSpec) as refused:
        build_job(parse_parameters({"job": document}), Target(TASK_URI, "team-a", in_cluster=True), 1)
    assert refused.value.field == field


def test_a_job_that_is_nested_too_deeply_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    parameters = parse_parameters({"command": ["train"]}).model_copy(update={"job": {"spec": nested}})
    with pytest.raises(InvalidSpec, match="nested"):
        build_job(parameters, Target(TASK_URI, "team-a", in_cluster=True), 1)
