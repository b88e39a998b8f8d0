"""Which pods are those of an object of another kind.

Its controller creates them from the template that was patched at the admission, so that they have its label. A pod
without it started without an admission: it is unmanaged usage.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.kinds.suspended.table import ATTEMPT_LABEL, KindRow
from muster.kube.objects import V1PodMeta
from muster_operator.cache.cached_pod import JobKey, PodOwner


def object_pod_owner(rows: Sequence[KindRow], meta: V1PodMeta) -> PodOwner | None:
    """The object that a pod belongs to, if it is of one of the kinds, and the attempt in which the pod was created: the
    one that controls it, or, for kinds whose controllers create pods through other objects, the one that it names. Its
    index follows from the placement (`muster.kinds.suspended.numbering`)."""
    attempt = meta.labels.get(ATTEMPT_LABEL, "")
    if not (attempt.isascii() and attempt.isdigit()) or len(attempt) > 9:
        return None
    uid, _, rest = meta.annotations.object.partition("/")
    role, _, name = rest.partition("/")
    if name and any(row.nested for row in rows):
        return PodOwner(JobKey(uid, meta.namespace, name, other_kind=True), role, 0, int(attempt))
    owner = next((one for one in meta.owner_references if one.controller), None)
    if owner is None:
        return None
    for row in rows:
        if owner.kind == row.kind and owner.api_version.partition("/")[0] == row.group and not row.nested:
            return PodOwner(
                JobKey(owner.uid, meta.namespace, owner.name, other_kind=True), row.pod_sets[0].name, 0, int(attempt)
            )
    return None
