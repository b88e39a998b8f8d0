"""Which pod of an object of another kind a log is read of: its pods are numbered by name within their pod set."""

from __future__ import annotations

from muster.api.spec import WorkloadRecord
from muster.errors import NotFound
from muster.kinds.suspended.table import ATTEMPT_LABEL, BATCH_JOB
from muster.kube.convert import read_pod
from muster.kube.objects import V1Pod, V1PodMeta
from muster.kube.resources import PODS
from muster.kube.sync_client import KubeClient


def pod_of_object(kube_client: KubeClient, record: WorkloadRecord, role: str, index: int) -> V1Pod:
    """A pod of its present admission. Raises `NotFound` ReplicaNotFound if there is none."""
    namespace, uid = record.metadata.namespace or "default", record.spec.object_ref.uid
    query = {"labelSelector": f"{ATTEMPT_LABEL}={record.status.attempt}"}
    pods = (read_pod(one) for one in kube_client.list_items(PODS.path(namespace), query))
    own = sorted((pod for pod in pods if _pod_set(pod.metadata, uid) == role), key=lambda pod: pod.metadata.name)
    if not 0 <= index < len(own):
        name = f"{namespace}/{record.spec.object_ref.name}"
        message = f"{name} has {len(own)} pods of {role!r}; got index {index}"
        raise NotFound(message, field="index", reason="ReplicaNotFound")
    return own[index]


def _pod_set(meta: V1PodMeta, uid: str) -> str | None:
    """Its pod set, if it belongs to the object of this uid."""
    owner, _, rest = meta.annotations.object.partition("/")
    if rest and owner == uid:
        return rest.partition("/")[0]
    if any(one.uid == uid and one.controller for one in meta.owner_references):
        return BATCH_JOB.pod_sets[0].name
    return None
