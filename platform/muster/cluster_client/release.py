"""What `muster release` does before an uninstall: scheduling gates and pins of Muster are taken out of templates.

Nothing else would ever let their pods run once no operator does. Objects that run are left as they are: their templates
cannot change, and pods that they create later stay gated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster.errors import ClusterError, NotFound
from muster.kinds.suspended.patches import PATCH_MANAGER
from muster.kinds.suspended.pod_shape import REQUIRED
from muster.kinds.suspended.read import ObjectState, read_object, value_at
from muster.kinds.suspended.table import BATCH_JOB, JOB_SET, TRAIN_JOB, KindRow
from muster.kinds.suspended.ungate import JsonPatch
from muster.kube.requests import JSON_PATCH, MERGE_PATCH
from muster.kube.resources import Resource
from muster.kube.sync_client import KubeClient

_ORDER = (TRAIN_JOB, JOB_SET, BATCH_JOB)
"""Owners first: their controllers write the templates of what they own, and do not take gates out of it."""


@dataclass(frozen=True, slots=True)
class Released:
    """An object that has gates or pins of Muster. `result`: released, would be released, or runs."""

    kind: str
    namespace: str
    name: str
    result: str


def release_all(kube_client: KubeClient, namespace: str | None, *, dry_run: bool) -> Iterator[Released]:
    """Release all suspended objects of a namespace, or of all; yields those, and the ones that run. Raises
    `ClusterError`, and `Refused` where the user may not list or patch them."""
    for row in _ORDER:
        resource = Resource(row.group, row.version, row.plural, row.kind, True)
        try:
            documents = list(kube_client.list_items(resource.path(namespace)))
        except (NotFound, ClusterError) as error:
            if isinstance(error, NotFound) or error.reason == "NotInstalled":
                continue
            raise
        for document in documents:
            yield from _release(kube_client, row, resource, document, dry_run=dry_run)


def _release(
    kube_client: KubeClient, row: KindRow, resource: Resource, document: Mapping[str, Any], *, dry_run: bool
) -> Iterator[Released]:
    meta = document["metadata"]
    try:
        state = read_object(row, document)
    except Exception:  # whatever an arbitrary document may cause: Muster did not admit it
        return
    patch = release_patch(row, state)
    if patch is None or state.outcome:
        return
    result = "runs: pods that it creates later stay gated"
    if state.suspend:
        result = "would be released" if dry_run else "released"
    if state.suspend and not dry_run:
        form = MERGE_PATCH
        if not isinstance(patch, dict):  # names places in lists, which must be as they were read
            version = {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}
            form, patch = JSON_PATCH, [version, *patch]
        path = resource.path(meta["namespace"], meta["name"])
        if state.has_started:  # before Kubernetes 1.36 a template may change only without it
            nothing = value_at(row.start_time, None)
            kube_client.request("PATCH", f"{path}/status", nothing, content_type=MERGE_PATCH)
        kube_client.request("PATCH", path, patch, content_type=form)
    yield Released(row.kind, meta["namespace"], meta["name"], result)


def release_patch(row: KindRow, state: ObjectState) -> dict[str, Any] | JsonPatch | None:
    """What takes Muster's gate and pins out of the templates of a suspended object; None if there are none."""
    if row.runtime_patches:
        managers = state.patch_managers or ()
        if PATCH_MANAGER not in managers:
            return None
        index = managers.index(PATCH_MANAGER)
        return [{"op": "remove", "path": f"/{row.runtime_patches.replace('.', '/')}/{index}"}]
    held = [one for one in state.pod_sets if one.shape.gated or one.shape.pinned]
    if not held:
        return None
    if any(one.row.each for one in held):
        gates = {one.pointer: [{"name": name} for name in one.shape.other_gates] for one in held}
        return [{"op": "add", "path": f"{path}/spec/schedulingGates", "value": value} for path, value in gates.items()]
    (one,) = held
    pod: dict[str, Any] = {"schedulingGates": [{"name": name} for name in one.shape.other_gates] or None}
    if one.shape.pinned:
        pod["affinity"] = {"nodeAffinity": {REQUIRED: None}}
    return value_at(one.row.template, {"spec": pod})
