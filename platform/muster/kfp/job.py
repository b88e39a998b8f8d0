"""The TrainingJob of a step: from its parameters, the identity of its task, and the resources set on it. No I/O."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from muster.api.job_documents import add_run_volume, add_shared_memory, with_suffix
from muster.api.spec import TrainingJob, max_job_name_length
from muster.api.yaml_input import parse_objects
from muster.api.yaml_input.field_errors import to_field_error
from muster.api.yaml_input.source_map import SourceMap
from muster.errors import InvalidSpec
from muster.kfp.parameters import TrainParameters
from muster.text import parse_duration, parse_step_range

SPEC_HASH = "kfp.muster.dev/spec-sha256"
"""Annotation: the hash of the spec that the step submitted. It stays the same when a user scales or moves the job."""
TASK = "kfp.muster.dev/task"
"""Annotation: the URI of the outputs of the step's task."""
_CHANGEABLE: Any = {
    "roles": {"__all__": {"replicas", "min_replicas"}},
    **dict.fromkeys(("queue", "priority", "priority_class_name", "flavors", "elastic_replicas"), True),
    **dict.fromkeys(("max_runtime_seconds", "suspend", "cancel", "ttl_seconds_after_finished"), True),
}
_ROLE = "trainer"
_GPU = "nvidia.com/gpu"
_HASH_DIGITS = 10
MIN_KEPT_S = 600
"""Seconds for which a job must be kept after its end."""

Resources = Mapping[str, Mapping[str, str]]
"""Requests and limits, as in a container: {"limits": {"memory": "64Gi"}}."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the job depends on beside the parameters. `task` is the URI of the task's outputs, which Kubeflow Pipelines
    forms of run, task name and an id of the task that all its retries share."""

    task: str
    namespace: str
    in_cluster: bool
    resources: Resources = field(default_factory=dict)


def parse_parameters(values: Mapping[str, Any]) -> TrainParameters:
    """The parameters of a step. Raises `InvalidSpec` that names every invalid one."""
    try:
        return TrainParameters.model_validate(dict(values))
    except ValidationError as error:
        errors = [to_field_error(detail, SourceMap(dict(values), {})) for detail in error.errors()]
        message = "; ".join(f"{item.field}: {item.message}" if item.field else item.message for item in errors)
        raise InvalidSpec(message, field=errors[0].field) from error


def build_job(parameters: TrainParameters, target: Target, number: int) -> TrainingJob:
    """The job of the step's `number`th submission, counted from 1. Raises `InvalidSpec`."""
    try:
        document: dict[str, Any] = copy.deepcopy(parameters.job) or {"spec": _spec_of_pods(parameters)}
    except RecursionError:
        raise InvalidSpec("job: must not be nested so deeply", field="job") from None
    document = document if "spec" in document else {"spec": document}
    if not isinstance(document.get("metadata") or {}, dict):
        kind = type(document["metadata"]).__name__
        raise InvalidSpec(f"job.metadata: must be a mapping; got {kind}", field="job.metadata")
    metadata, spec = dict(document.get("metadata") or {}), document["spec"]
    base = parameters.name or str(metadata.get("name") or "train")
    metadata["name"] = "job"  # until the length of a valid name is known
    metadata["namespace"] = parameters.namespace or metadata.get("namespace") or target.namespace
    document = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", **document, "metadata": metadata}
    if isinstance(spec, dict):
        _set_spec_fields(spec, parameters)
    _parse(document)  # reports invalid fields before pods are changed
    for role in spec["roles"]:
        _complete_pod(role["template"]["spec"], parameters, target)
    parsed = _parse(document).spec
    kept_s = parsed.ttl_seconds_after_finished
    if kept_s is not None and kept_s < MIN_KEPT_S:
        raise InvalidSpec(
            f"job.spec.ttlSecondsAfterFinished: must be at least {MIN_KEPT_S}, since the step and its retries read the "
            f"job after its end; got {kept_s}",
            field="job.spec.ttlSecondsAfterFinished",
        )
    longest = max_job_name_length((role.name, role.replicas) for role in parsed.roles)
    metadata["name"] = with_suffix(base, _suffix(target.task, number), longest)
    metadata["annotations"] = {**(metadata.get("annotations") or {}), SPEC_HASH: _hash(spec), TASK: target.task}
    return _parse(document)


def without_changeable_fields(job: TrainingJob) -> dict[str, Any]:
    """The spec without what users change of a job that was submitted: its size, place and order in the queue, maximum
    run time, and whether it is suspended, cancelled or deleted at its end."""
    return job.spec.model_dump(exclude=_CHANGEABLE)


def _spec_of_pods(parameters: TrainParameters) -> dict[str, Any]:
    amounts = {"cpu": parameters.cpu, "memory": parameters.memory, _GPU: str(parameters.gpus or "")}
    requests = {name: amount for name, amount in amounts.items() if amount}
    limits = {name: amount for name, amount in requests.items() if name != "cpu"}
    container = {
        "name": _ROLE,
        "image": parameters.image or None,
        "command": parameters.command,
        "env": [{"name": name, "value": value} for name, value in parameters.env.items()],
        "resources": {"requests": requests, "limits": limits},
    }
    pod = {"containers": [{key: value for key, value in container.items() if value is not None}]}
    return {"roles": [{"name": _ROLE, "replicas": parameters.replicas, "template": {"spec": pod}}]}


def _set_spec_fields(spec: dict[str, Any], parameters: TrainParameters) -> None:
    if parameters.queue:
        spec["queue"] = parameters.queue
    if parameters.priority:
        spec["priority"] = parameters.priority
    if parameters.max_runtime:
        spec["maxRuntimeSeconds"] = parse_duration(parameters.max_runtime, "max_runtime")
    if parameters.trace_steps:
        start, steps = parse_step_range(parameters.trace_steps, "trace_steps")
        spec["trace"] = {"startStep": start, "steps": steps}


def _complete_pod(pod: dict[str, Any], parameters: TrainParameters, target: Target) -> None:
    """Add the step's resources where the container has none of that name, and in a cluster its volumes."""
    container = pod["containers"][0]
    own = container.get("resources") or {}
    given = {name for amounts in own.values() for name in amounts or {}}
    container["resources"] = {
        kind: {**{name: value for name, value in of_step.items() if name not in given}, **(own.get(kind) or {})}
        for kind, of_step in ((kind, target.resources.get(kind, {})) for kind in ("requests", "limits"))
    }
    if target.in_cluster:
        if not container.get("image"):
            raise InvalidSpec("image: must be the image of the pods in a cluster; got ''", field="image")
        add_shared_memory(pod)
        if parameters.run_volume:
            add_run_volume(pod, parameters.run_volume)


def _parse(document: dict[str, Any]) -> TrainingJob:
    job = parse_objects(json.dumps(document), "job", allow_unknown_pod_fields=True)[0].item
    if not isinstance(job, TrainingJob):
        raise InvalidSpec(f"job: must be a TrainingJob; got kind {job.kind}", field="job")
    return job


def _suffix(task: str, number: int) -> str:
    digits = hashlib.sha256(task.encode()).hexdigest()[:_HASH_DIGITS]
    return digits if number == 1 else f"{digits}-{number}"


def _hash(spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
