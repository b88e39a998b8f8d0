"""One pod of a gang: the user's template kept whole, and what makes it this pod.

Added: owner, labels, a name for the host, the promised environment, what the flavor tolerates, and the pin to its
node. The pin stands in every term of the required node affinity, so that kube-scheduler looks at one node and still
checks volumes, ports and devices; `nodeName` would skip all that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from muster import spec
from muster.cluster import CreatePod
from muster.errors import InvalidSpec
from muster_operator import labels
from muster_operator.pod_builder.collector import CollectorSidecarConfig, add_collector, has_collector
from muster_operator.pod_builder.environment import pod_environment
from muster_operator.pod_builder.names import host_name, service_name
from muster_operator.pod_builder.owner_references import owner_reference
from muster_operator.pod_builder.run_folder import JOB_FOLDER, RUN_DIR, RUN_DIR_VARIABLE, RUN_VOLUME

_REQUIRED_AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class PodConfig:
    """What the installation decides of every pod."""

    priority_class_name: str = ""
    collector: CollectorSidecarConfig = CollectorSidecarConfig()


def pod_manifest(
    job: spec.TrainingJob,
    template: Mapping[str, Any],
    pod: CreatePod,
    tolerations: Sequence[Mapping[str, Any]],
    config: PodConfig,
) -> dict[str, Any]:
    """The pod as it is to be created. `template` is the role's as the user wrote it; `tolerations` are the flavor's.

    Raises InvalidSpec where the template stands in the way of the collector, and where no pod can be made of it.
    """
    with _errors_as_invalid_spec():
        meta = template.get("metadata") or {}
        wanted = dict(template.get("spec") or {})
        alone = sum(role.replicas for role in job.spec.roles) == 1
        _add_environment(wanted, job, pod, single_pod=alone)
        if has_collector(job.spec, pod.role, pod.index, config.collector):
            wanted = add_collector(wanted, job, pod, config.collector)
        if not wanted.get("overhead"):  # an empty one is not the same to the API server: it refuses that
            wanted.pop("overhead", None)
        wanted["restartPolicy"] = "Never"
        wanted["hostname"] = host_name(pod.role, pod.index)
        if not alone:
            wanted["subdomain"] = service_name(job.metadata.name, job.metadata.uid)
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
                "name": pod.name,
                "namespace": job.metadata.namespace,
                "labels": {**(meta.get("labels") or {}), **pod_labels(job, pod)},
                "annotations": {k: v for k, v in (meta.get("annotations") or {}).items() if k != labels.ADMITTED},
                "ownerReferences": [owner_reference(job)],
            },
            "spec": wanted,
        }


@contextmanager
def _errors_as_invalid_spec() -> Iterator[None]:
    """Whatever a template says, its own job alone has to wait for that."""
    try:
        yield
    except InvalidSpec:
        raise
    except Exception as error:
        raise InvalidSpec(f"no pod can be made of the template: {type(error).__name__}: {error}") from error


def pod_labels(job: spec.TrainingJob, pod: CreatePod) -> dict[str, str]:
    """Which pod of which attempt of which job it is."""
    return {
        labels.JOB: job.metadata.name,
        labels.JOB_UID: job.metadata.uid,
        labels.ROLE: pod.role,
        labels.INDEX: str(pod.index),
        labels.ATTEMPT: str(pod.attempt),
    }


def pin_to_node(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The affinity with the node in every required term. Terms without a line match nothing, hence are left out."""
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


def _add_environment(pod_spec: dict[str, Any], job: spec.TrainingJob, pod: CreatePod, *, single_pod: bool) -> None:
    """The variables in every container, and the run folder unless the template brings its own."""
    on_host_network = bool(pod_spec.get("hostNetwork"))
    variables = pod_environment(job, pod, RUN_DIR, single_pod=single_pod, on_host_network=on_host_network)
    containers = [*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ())]
    own_folder = any(_has_variable(container, RUN_DIR_VARIABLE) for container in containers)
    brought = any(volume.get("name") == RUN_VOLUME for volume in pod_spec.get("volumes") or ())
    mount: dict[str, Any] | None = {"name": RUN_VOLUME, "mountPath": RUN_DIR}
    if own_folder:
        del variables[RUN_DIR_VARIABLE]
        mount = None
    elif brought:  # other jobs may use it too
        mount = {"name": RUN_VOLUME, "mountPath": RUN_DIR, "subPathExpr": JOB_FOLDER}
    for kind in ("containers", "initContainers"):
        if pod_spec.get(kind):
            pod_spec[kind] = [_with_environment(one, variables, mount) for one in pod_spec[kind]]
    if not own_folder and not brought:
        pod_spec["volumes"] = [*(pod_spec.get("volumes") or ()), {"name": RUN_VOLUME, "emptyDir": {}}]


def _with_environment(
    container: Mapping[str, Any], variables: Mapping[str, str], mount: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The promised variables come first, so that the container's own may refer to them, and cannot be overridden.

    `mount` brings the run folder, unless the container mounts that volume itself: then the folder is there.
    """
    mounts = container.get("volumeMounts") or ()
    theirs = next((one for one in mounts if one.get("name") == RUN_VOLUME), None)
    if mount is not None and theirs is not None:
        variables = {**variables, RUN_DIR_VARIABLE: str(theirs.get("mountPath"))}
    ours: Iterable[dict[str, str]] = ({"name": name, "value": value} for name, value in variables.items())
    own = (one for one in container.get("env") or () if one.get("name") not in variables)
    changed = {**container, "env": [*ours, *own]}
    changed.setdefault(
        "terminationMessagePolicy", "FallbackToLogsOnError"
    )  # where `status.lastFailure.logTail` is from
    if mount is not None and theirs is None:
        changed["volumeMounts"] = [*mounts, dict(mount)]
    return changed


def _has_variable(container: Mapping[str, Any], variable: str) -> bool:
    return any(one.get("name") == variable for one in container.get("env") or ())
