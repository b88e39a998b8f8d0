"""Which pods are those of a TrainingJob.

A uid label does not prove ownership, because any user who may create pods can write any uid. A pod belongs to a job
only if it is in the job's namespace and has the name that Muster would give it.
"""

from __future__ import annotations

from muster.api.spec import JOB_LABEL, ROLE_LABEL
from muster.api.spec.arrays import MAX_INDEX_DIGITS
from muster.kinds.trainingjob.arrays import ARRAY_INDEX_LABEL, index_key
from muster.kinds.trainingjob.pods import pod_name
from muster.kube.objects import V1PodMeta
from muster.kube.resources import TRAINING_JOBS
from muster_operator.cache.cached_pod import JobKey, PodOwner
from muster_operator.pod_builder.job_objects import ATTEMPT_LABEL, INDEX_LABEL, JOB_UID_LABEL


def pod_owner(meta: V1PodMeta) -> PodOwner | None:
    """The job that may own this pod: named by its owner reference, or by its labels if that was removed
    (`kubectl delete --cascade=orphan`), in its namespace, where the pod's name is the one Muster gives to the role,
    index and attempt in its labels. None otherwise."""
    slot = _pod_slot(meta)
    jobs = [one for one in meta.owner_references if _is_job(one.api_version, one.kind)]
    owner = next(((one.name, one.uid) for one in jobs if one.controller), None)
    if not jobs:
        owner = meta.labels.get(JOB_LABEL, ""), meta.labels.get(JOB_UID_LABEL, "")
    if owner is None or slot is None:
        return None
    name, uid = owner
    if (index := meta.labels.get(ARRAY_INDEX_LABEL)) is not None:
        if not index.isdecimal() or len(index) > MAX_INDEX_DIGITS:
            return None
        name, uid = f"{name}-{int(index)}", index_key(uid, int(index))
    return PodOwner(JobKey(uid, meta.namespace, name), *slot) if meta.name == pod_name(name, uid, *slot) else None


def _pod_slot(meta: V1PodMeta) -> tuple[str, int, int] | None:
    """Role, index and attempt from the labels; None where they are missing or invalid."""
    try:
        role, index, attempt = meta.labels[ROLE_LABEL], int(meta.labels[INDEX_LABEL]), int(meta.labels[ATTEMPT_LABEL])
    except (KeyError, ValueError):
        return None
    return (role, index, attempt) if index >= 0 and attempt >= 0 else None


def _is_job(api_version: str, kind: str) -> bool:
    return kind == TRAINING_JOBS.kind and api_version.partition("/")[0] == TRAINING_JOBS.group
