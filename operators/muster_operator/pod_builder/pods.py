"""Pod manifests: the user's template unchanged, plus what identifies and places the pod.

Added are owner, labels, host name, the documented environment, the flavor's tolerations, and the pin to its node. The
pin is in every term of the required node affinity, so that kube-scheduler considers one node and still checks volumes,
ports and devices; `nodeName` would skip these checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from muster.api import spec
from muster.api.spec import JOB_LABEL, ROLE_LABEL
from muster.cluster import CreatePod
from muster.errors import InvalidSpec
from muster.kinds.trainingjob.arrays import (
    ARRAY_INDEX_LABEL,
    array_name,
    array_variables,
    index_of,
    path_uid,
    split_index_key,
)
from muster_operator.pod_builder.collector import CollectorSidecarConfig, add_collector, has_collector
from muster_operator.pod_builder.job_objects import (
    ATTEMPT_LABEL,
    INDEX_LABEL,
    JOB_UID_LABEL,
    QUEUE_ANNOTATION,
    host_name,
    job_service_name,
    owned_metadata,
    rendezvous_port,
)
from muster_operator.pod_builder.run_folder import JOB_FOLDER, RUN_DIR, RUN_DIR_VARIABLE, RUN_VOLUME

_REQUIRED_AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class PodConfig:
    """The installation's configuration of all pods."""

    priority_class_name: str = ""
    collector: CollectorSidecarConfig = CollectorSidecarConfig()


def pod_manifest(
    job: spec.TrainingJob,
    template: Mapping[str, Any],
    pod: CreatePod,
    tolerations: Sequence[Mapping[str, Any]],
    config: PodConfig,
) -> dict[str, Any]:
    """Manifest of the pod. `template` is the role's as the user wrote it; `tolerations` are the flavor's.

    Raises InvalidSpec where the template conflicts with the collector, or no pod can be made of it.
    """
    with _errors_as_invalid_spec():
        meta = template.get("metadata") or {}
        wanted = dict(template.get("spec") or {})
        is_single = sum(role.replicas for role in job.spec.roles) == 1
        _add_environment(wanted, job, pod, single_pod=is_single)
        if has_collector(job.spec, pod.role, pod.index, config.collector):
            wanted = _with_collector(wanted, job, pod, config.collector)
        if not wanted.get("overhead"):  # the API server rejects an empty one
            wanted.pop("overhead", None)
        wanted["restartPolicy"] = "Never"
        wanted["hostname"] = host_name(pod.role, pod.index, index_of(job))
        if not is_single:
            wanted["subdomain"] = job_service_name(job)
        if config.priority_class_name:
            wanted["priorityClassName"] = config.priority_class_name
        if "serviceAccountName" not in wanted:
            wanted.setdefault("automountServiceAccountToken", False)
        if tolerations:
            own = list(wanted.get("tolerations") or ())
            wanted["tolerations"] = [*own, *(one for one in tolerations if one not in own)]
        if pod.node:
            wanted["affinity"] = pin_to_node(wanted.get("affinity") or {}, pod.node)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **owned_metadata(job, pod.name, {**(meta.get("labels") or {}), **pod_labels(job, pod)}),
                "annotations": {**(meta.get("annotations") or {}), QUEUE_ANNOTATION: job.spec.queue},
            },
            "spec": wanted,
        }


@contextmanager
def _errors_as_invalid_spec() -> Iterator[None]:
    """A template that causes an exception affects its own job only."""
    try:
        yield
    except InvalidSpec:
        raise
    except Exception as error:
        raise InvalidSpec(f"cannot create a pod from the template: {type(error).__name__}: {error}") from error


def pod_labels(job: spec.TrainingJob, pod: CreatePod) -> dict[str, str]:
    """Labels that identify the pod's job, role, index and attempt; of an index of an array, the array and the index."""
    uid, index = split_index_key(job.metadata.uid)
    return {
        JOB_LABEL: array_name(job),
        JOB_UID_LABEL: uid,
        **({} if index is None else {ARRAY_INDEX_LABEL: str(index)}),
        ROLE_LABEL: pod.role,
        INDEX_LABEL: str(pod.index),
        ATTEMPT_LABEL: str(pod.attempt),
    }


def pin_to_node(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The affinity with the node in every required term. Empty terms match nothing, so they are left out."""
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    terms = (of_nodes.get(_REQUIRED_AFFINITY) or {}).get("nodeSelectorTerms") or ()
    with_pin = [
        {**term, "matchFields": [pin, *(term.get("matchFields") or ())]}
        for term in terms
        if term.get("matchExpressions") or term.get("matchFields")
    ]
    of_nodes[_REQUIRED_AFFINITY] = {"nodeSelectorTerms": with_pin or [{"matchFields": [pin]}]}
    return {**affinity, "nodeAffinity": of_nodes}


def _with_collector(
    wanted: dict[str, Any], job: spec.TrainingJob, pod: CreatePod, config: CollectorSidecarConfig
) -> dict[str, Any]:
    """The pod spec with its collector. A pod that would have one only because all have runs without it where its
    template conflicts; else raises InvalidSpec."""
    try:
        return add_collector(wanted, job, pod, config)
    except InvalidSpec:
        if has_collector(job.spec, pod.role, pod.index, replace(config, all_jobs=False)):
            raise
        return wanted


def _add_environment(pod_spec: dict[str, Any], job: spec.TrainingJob, pod: CreatePod, *, single_pod: bool) -> None:
    """Add the variables to every container, and the run folder unless the template defines it."""
    on_host_network = bool(pod_spec.get("hostNetwork"))
    variables = _pod_environment(job, pod, RUN_DIR, single_pod=single_pod, on_host_network=on_host_network)
    containers = [*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ())]
    own_folder = any(_has_variable(container, RUN_DIR_VARIABLE) for container in containers)
    has_volume = any(volume.get("name") == RUN_VOLUME for volume in pod_spec.get("volumes") or ())
    mount: dict[str, Any] | None = {"name": RUN_VOLUME, "mountPath": RUN_DIR}
    if own_folder:
        del variables[RUN_DIR_VARIABLE]
        mount = None
    elif has_volume:  # other jobs may use it too
        mount = {"name": RUN_VOLUME, "mountPath": RUN_DIR, "subPathExpr": JOB_FOLDER}
    for kind in ("containers", "initContainers"):
        if pod_spec.get(kind):
            pod_spec[kind] = [_with_environment(one, variables, mount) for one in pod_spec[kind]]
    if not own_folder and not has_volume:
        pod_spec["volumes"] = [*(pod_spec.get("volumes") or ()), {"name": RUN_VOLUME, "emptyDir": {}}]


def _with_environment(
    container: Mapping[str, Any], variables: Mapping[str, str], mount: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The container with our variables first, so that its own may refer to them but not override them.

    `mount` is the run folder's, unless the container mounts that volume itself: then the folder is at that path.
    """
    mounts = container.get("volumeMounts") or ()
    own_mount = next((one for one in mounts if one.get("name") == RUN_VOLUME), None)
    if mount is not None and own_mount is not None:
        variables = {**variables, RUN_DIR_VARIABLE: str(own_mount.get("mountPath"))}
    added: Iterable[dict[str, str]] = ({"name": name, "value": value} for name, value in variables.items())
    own = (one for one in container.get("env") or () if one.get("name") not in variables)
    changed = {**container, "env": [*added, *own]}
    changed.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")  # source of `status.lastFailure.logTail`
    if mount is not None and own_mount is None:
        changed["volumeMounts"] = [*mounts, dict(mount)]
    return changed


def _has_variable(container: Mapping[str, Any], variable: str) -> bool:
    return any(one.get("name") == variable for one in container.get("env") or ())


def _pod_environment(
    job: spec.TrainingJob, pod: CreatePod, run_dir: str, *, single_pod: bool, on_host_network: bool
) -> dict[str, str]:
    """The variables, by name, that docs/reference/run-folder.md promises to every container of a pod. `single_pod`: the
    job has one pod in all, which needs no Service for rendezvous."""
    meta = job.metadata
    host = "127.0.0.1" if single_pod else f"{host_name(pod.role, 0, index_of(job))}.{job_service_name(job)}"
    port = rendezvous_port(meta.uid, pod.role, pod.attempt, on_host_network=on_host_network)
    variables = {
        "MUSTER_JOB": meta.name,
        "MUSTER_NAMESPACE": meta.namespace or "default",
        "MUSTER_JOB_UID": path_uid(job),
        "MUSTER_ROLE": pod.role,
        "MUSTER_REPLICA": str(pod.index),
        "MUSTER_REPLICAS": str(pod.replicas),
        "MUSTER_ATTEMPT": str(pod.attempt),
        "MUSTER_RUN_DIR": run_dir,
        "MUSTER_RANK0_HOST": host,
        "MUSTER_RANK0_PORT": str(port),
        "MUSTER_GRACE_SECONDS": str(round(pod.grace_s)),
    }
    variables |= array_variables(job)
    if job.spec.checkpoint_dir is not None:
        variables["MUSTER_CHECKPOINT_DIR"] = job.spec.checkpoint_dir
    trace = job.spec.trace
    if trace is not None:
        variables["MUSTER_TRACE_STEPS"] = f"{trace.start_step}:{trace.start_step + trace.steps}"
        variables["MUSTER_TRACE_RANKS"] = ",".join(str(rank) for rank in trace.ranks)
        if trace.every is not None:
            variables["MUSTER_TRACE_EVERY"] = str(trace.every)
        if trace.when_slower is not None:
            variables["MUSTER_TRACE_WHEN_SLOWER"] = str(trace.when_slower)
    return variables
