"""Which pods are those of an object of another kind.

Its controller creates them from the template that was patched at the admission, so that they have its label. A pod
without it started without an admission: it is unmanaged usage.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.kinds.suspended.table import ATTEMPT_LABEL, KindRow
from muster.kube.objects import V1PodMeta
from muster_operator.cache.cached_pod import JobKey, PodOwner


def object_pod_owner(rows: Iterable[KindRow], meta: V1PodMeta) -> PodOwner | None:
    """The object that controls this pod, if it is of one of the kinds, and the attempt in which the pod was created.
    Its index follows from the placement (`muster.kinds.suspended.numbering`)."""
    attempt = meta.labels.get(ATTEMPT_LABEL, "")
    owner = next((one for one in meta.owner_references if one.controller), None)
    if owner is None or not (attempt.isascii() and attempt.isdigit()) or len(attempt) > 9:
        return None
    for row in rows:
        if owner.kind == row.kind and owner.api_version.partition("/")[0] == row.group:
            return PodOwner(JobKey(owner.uid, meta.namespace, owner.name), row.pod_sets[0].name, 0, int(attempt))
    return None
