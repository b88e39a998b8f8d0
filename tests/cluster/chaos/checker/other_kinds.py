"""Objects of other kinds: no pod of them runs beyond an admission, and what has no label is left alone. Exact, after
every write.

Their admissions are checked as those of TrainingJobs are (`capacity.py`): quota and nodes are shared. Their controllers
name and number the pods, and replace one while it terminates; so pods are counted, those that stop left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.checker.model import ClusterModel
from tests.cluster.chaos.checker.objects import Json, Pod
from tests.cluster.chaos.checker.violation import Finding

_WITHIN = "no pod of another kind is released beyond its admission"
_LEFT_ALONE = "nothing is suspended that has no label"


def check_released_pod(model: ClusterModel, old: Pod | None, new: Pod | None) -> Iterator[Finding]:
    """A pod lost its gate, or was created without one, or was bound: its object is admitted in this attempt, with so
    many pods, and there."""
    if new is None or not new.object or new.gated or not new.live or new.stopping:
        return
    known = old is not None and old.uid == new.uid
    if known and old is not None and not old.gated and old.node == new.node:
        return
    job = model.objects.get(new.object)
    if job is None:
        yield _WITHIN, new.key, "its object has no Workload", (("Pod", new.key),)
        return
    objects = (("Pod", new.key), ("Workload", job.key))
    if job.admitted and new.attempt == job.attempt:
        others = [pod for pod in model.pods_of(job.uid) if pod.live and not pod.gated and not pod.stopping]
        if len(others) > len(job.placement):
            message = f"{len(others)} pods of {job.key} run, and {len(job.placement)} were admitted"
            yield _WITHIN, job.key, message, objects
        elif new.node and new.node not in job.placement.values():
            yield _WITHIN, new.key, f"bound to {new.node}, where {job.key} has no place", objects
    elif not (known and old is not None and not old.gated):  # else it was released before, and is to be stopped
        message = f"released in attempt {new.attempt} while {job.key} is {job.phase} at attempt {job.attempt}"
        yield _WITHIN, new.key, message, objects


def check_left_alone(kind: str, key: str, old: Json | None, new: Json | None) -> Iterator[Finding]:
    """An object without the label was suspended, or got a gate."""
    if old is None or new is None or _is_managed(old) or _is_managed(new):
        return
    if new["spec"].get("suspend") and not old["spec"].get("suspend"):
        yield _LEFT_ALONE, key, f"{kind} {key} was suspended", ((kind, key),)


def _is_managed(document: Json) -> bool:
    meta = document["metadata"]
    return "muster.dev/queue" in (meta.get("labels") or {}) or bool(meta.get("ownerReferences"))
