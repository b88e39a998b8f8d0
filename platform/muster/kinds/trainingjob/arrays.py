"""The indices of an array: names, keys, and their statuses in the compact form that the object keeps.

An array is one TrainingJob of many gangs. Each index is seen as a TrainingJob of its own, named JOB-INDEX, with a
status of its own. The object keeps these statuses while they say more than that the index waits, and of ended indices
only how they ended (`spec.ArrayStatus`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from muster.api import spec
from muster.api.spec import ArrayStatus, Condition, IndexFailure, index_set
from muster.model import GangKey
from muster.workload import transitions
from muster.workload.conditions import CANCELLED, COMPLETE, FAILED, with_status_fields

ARRAY_INDEX_LABEL = "muster.dev/array-index"
"""Of pods of an index, whose other labels are those of the array."""
MAX_TEXT = 200
"""Characters of a message that are kept of an index."""
FROM_ARRAY = ("observed_generation", "submitted_at", "priority")
"""Fields that an index has from its array."""
_ORDER_S = 1e-6
"""Between the submission times of neighbouring indices, so that lower ones come first in their queue."""
_NOT_KEPT = {
    *FROM_ARRAY, "phase", "reason", "conditions", "placement", "queue_position", "estimated_start", "time_spent",
    "last_cycle", "array", "progress", "dependencies", "traces",
}  # fmt: skip


def index_key(uid: str, index: int) -> GangKey:
    """The key of an index of the array with this uid."""
    return f"{uid}/{index}"


def split_index_key(key: GangKey) -> tuple[str, int | None]:
    """The uid of the object, and the index if it is the key of one."""
    uid, slash, index = key.partition("/")
    return uid, int(index) if slash else None


def index_of(job: spec.TrainingJob) -> int | None:
    """The index that a job is; None for any other."""
    return split_index_key(job.metadata.uid)[1]


def array_name(job: spec.TrainingJob) -> str:
    """The name of its object: the array's for an index."""
    index = index_of(job)
    return job.metadata.name if index is None else job.metadata.name.removesuffix(f"-{index}")


def path_uid(job: spec.TrainingJob) -> str:
    """The uid of a job in names of files and variables; `UID-INDEX` of an index."""
    return job.metadata.uid.replace("/", "-")


def array_variables(job: spec.TrainingJob) -> dict[str, str]:
    """What tells a pod which index it is: docs/reference/run-folder.md. Empty for a job that is none."""
    index, array = index_of(job), job.spec.array
    if index is None or array is None:
        return {}
    return {"MUSTER_ARRAY": array_name(job), "MUSTER_ARRAY_INDEX": str(index),
            "MUSTER_ARRAY_COUNT": str(array.index_count)}  # fmt: skip


def index_job(job: spec.TrainingJob, index: int) -> spec.TrainingJob | None:
    """An index as a job, whether it waits, is active or has ended; None if the array does not have it."""
    array = job.spec.array
    if array is None or index not in index_set(array.indices):
        return None
    indices = job.status.array or ArrayStatus()
    status = index_status(job, index, indices.active.get(str(index)))
    for condition, ended in ((COMPLETE, indices.succeeded), (FAILED, indices.failed), (CANCELLED, indices.cancelled)):
        if index in index_set(ended):
            failure = next((one for one in indices.failures if one.index == index), IndexFailure(index=index))
            at = failure.at or job.status.finished_at or job.status.submitted_at or 0.0
            status = transitions.finish(status, condition, "Ended", failure.message, at)
            status = with_status_fields(status, {"finished_at": at, "attempt": indices.highest_attempt})
    return as_index(job, index, status, None)


def as_index(
    job: spec.TrainingJob, index: int, status: spec.TrainingJobStatus, stored: Mapping[str, Any] | None
) -> spec.TrainingJob:
    """The version is that of everything that decisions about this index are made on: the spec, and its own status."""
    meta = job.metadata
    # of text as the API server writes it: a float without a fraction is an integer there
    text = json.dumps(stored, sort_keys=True).replace(".0,", ",").replace(".0]", "]").replace(".0}", "}")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    metadata = meta.model_copy(
        update={
            "name": f"{meta.name}-{index}",
            "uid": index_key(meta.uid, index),
            "resource_version": f"{meta.generation}.{digest}{'.deleting' * (meta.deletion_timestamp is not None)}",
        }
    )
    return job.model_copy(update={"metadata": metadata, "status": status})


def index_status(job: spec.TrainingJob, index: int, stored: Mapping[str, Any] | None) -> spec.TrainingJobStatus:
    """The status of an index; `stored`: what the object keeps of it, None if it only waits."""
    array, status = job.status.array or ArrayStatus(), job.status
    submitted_at = status.submitted_at or job.metadata.creation_timestamp
    inherited: dict[str, Any] = {
        "observed_generation": job.metadata.generation,
        "submitted_at": None if submitted_at is None else submitted_at + index * _ORDER_S,
        "priority": status.priority,
    }
    if stored is None:
        return spec.TrainingJobStatus.model_construct(
            attempt=array.first_attempt, dependencies=status.dependencies, **inherited
        )
    kept = {name: value for name, value in stored.items() if name not in ("conditions", "placement")}
    placement = [
        spec.RolePlacementStatus(
            role=role,
            flavor=flavor,
            nodes=[spec.NodePods(node=node, indexes=indexes) for node, indexes in nodes],
        )
        for role, flavor, *nodes in stored.get("placement", ())
    ]
    conditions = [
        Condition(
            type=kind,
            status=value,
            reason=reason,
            message=message,
            last_transition_time=at,
            observed_generation=job.metadata.generation,
        )
        for kind, value, reason, message, at in stored.get("conditions", ())
    ]
    own = spec.TrainingJobStatus.model_validate(kept)
    dependencies = [*status.dependencies, *own.dependencies]
    fields = {"dependencies": dependencies, "placement": placement, "conditions": conditions}
    return with_status_fields(own, {**inherited, **fields})


def stored_status(status: spec.TrainingJobStatus, array: spec.TrainingJobStatus) -> dict[str, Any]:
    """The compact form: without what the array has too, and without defaults; times are Unix seconds."""
    kept = status.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True, exclude=_NOT_KEPT)
    if "lastFailure" in kept:
        kept["lastFailure"].pop("logTail", None)
    known = {one.job for one in array.dependencies}
    if own := [one.model_dump(by_alias=True) for one in status.dependencies if one.job not in known]:
        kept["dependencies"] = own
    kept = {name: round(value, 3) if isinstance(value, float) else value for name, value in kept.items()}
    if status.placement:
        kept["placement"] = [
            [part.role, part.flavor, *([share.node, share.indexes] for share in part.nodes)]
            for part in status.placement
        ]
    if status.conditions:
        kept["conditions"] = [
            [one.type, one.status, one.reason, one.message[:MAX_TEXT], round(one.last_transition_time, 3)]
            for one in status.conditions
        ]
    return kept


def summary(job: spec.TrainingJob) -> str:
    """ "37 of 100 succeeded, 3 failed, 10 running"."""
    array, indices = job.spec.array, job.status.array or ArrayStatus()
    assert array is not None
    counts = [f"{len(index_set(indices.succeeded))} of {array.index_count} succeeded"]
    for word, number in (
        ("failed", len(index_set(indices.failed))),
        ("cancelled", len(index_set(indices.cancelled))),
        ("running", running_count(indices)),
    ):
        if number:
            counts.append(f"{number} {word}")
    return ", ".join(counts)


def running_count(indices: ArrayStatus) -> int:
    """Number of indices that have nodes."""
    return sum("placement" in one for one in indices.active.values())
