"""What is patched: an object that starts or stops.

Nothing that is written into a template has to be restored: labels, an annotation and a gate are constants, and node
affinity is written only where the user has none, so that the next admission replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from muster.api.spec import Flavor, QueueingStatus
from muster.kinds.suspended.pod_shape import REQUIRED, pin_term
from muster.kinds.suspended.read import ObjectState, PodSet, value_at
from muster.kinds.suspended.table import ATTEMPT_LABEL, GATE, OBJECT_ANNOTATION, QUEUE_LABEL, KindRow
from muster.kinds.suspended.ungate import JsonPatch
from muster.workload.placement import nodes_of

PATCH_MANAGER = "muster.dev/operator"
"""Manager of the runtime patch that Muster writes."""
Patch: TypeAlias = dict[str, Any] | JsonPatch
"""A merge patch, or the operations of a JSON patch."""


def start_patch(
    row: KindRow,
    state: ObjectState,
    status: QueueingStatus,
    flavors: Mapping[str, Flavor],
    identity: str,
) -> Patch:
    """Resume the object at the placement of its status: with a term of node affinity per node, where one pod set has no
    node affinity of its own and its flavor no tolerations, and what its pods request is known; else its pods are gated,
    and get their nodes one by one. `identity`: UID and NAME of the object, for the annotation of nested pods."""
    if row.runtime_patches:
        return _runtime_patch(row, state, status, identity)
    if any(one.row.each for one in state.pod_sets):
        patch: JsonPatch = [{"op": "add", "path": f"/{row.suspend.replace('.', '/')}", "value": False}]
        metadata = {one.name: _metadata(one, row, state, status, identity) for one in state.pod_sets}
        return patch + [one for pods in state.pod_sets for one in _template_operations(pods, metadata[pods.name])]
    merged = value_at(row.suspend, False)
    pinned = is_pinned_in_template(row, state, status, flavors)
    for one in state.pod_sets:
        pod = _pinned(one, status) if pinned else _gated(one)
        _merge(
            merged, value_at(one.row.template, {"metadata": _metadata(one, row, state, status, identity), "spec": pod})
        )
    return merged


def stop_patch(row: KindRow) -> dict[str, Any]:
    """Suspend the object."""
    return value_at(row.suspend, True)


def is_pinned_in_template(
    row: KindRow, state: ObjectState, status: QueueingStatus, flavors: Mapping[str, Flavor]
) -> bool:
    """Whether the template gets node affinity. Tolerations of a flavor would have to be taken out again; and pods that
    are not gated start before it is seen what they request."""
    if not row.sets_node_affinity or len(state.pod_sets) != 1:
        return False
    (one,) = state.pod_sets
    if one.shape.affinity or one.known_request is None:
        return False
    used = (flavors.get(part.flavor) for part in status.placement)
    return not any(flavor is not None and flavor.spec.tolerations for flavor in used)


def _metadata(
    one: PodSet, row: KindRow, state: ObjectState, status: QueueingStatus, identity: str
) -> dict[str, dict[str, str]]:
    """The labels and annotations that Muster's pods have."""
    annotations = {QUEUE_LABEL: state.queue}
    if row.nested:
        uid, _, name = identity.partition("/")
        annotations[OBJECT_ANNOTATION] = f"{uid}/{one.name}/{name}"
    return {"labels": {ATTEMPT_LABEL: str(status.attempt)}, "annotations": annotations}


def _template_operations(one: PodSet, meta: Mapping[str, Mapping[str, str]]) -> JsonPatch:
    written = one.shape.written
    patch: JsonPatch = []
    if "metadata" not in written:
        patch.append(_add(f"{one.pointer}/metadata", meta))
    else:
        for part, values in meta.items():
            if part not in written:
                patch.append(_add(f"{one.pointer}/metadata/{part}", values))
            else:
                named = ((key.replace("/", "~1"), value) for key, value in values.items())
                patch += [_add(f"{one.pointer}/metadata/{part}/{key}", value) for key, value in named]
    gates = _gates([*one.shape.other_gates, GATE])
    return patch if one.shape.gated else [*patch, _add(f"{one.pointer}/spec/schedulingGates", gates)]


def _runtime_patch(row: KindRow, state: ObjectState, status: QueueingStatus, identity: str) -> JsonPatch:
    """The templates are those of another object: what is patched of them is one entry of the list of patches."""
    jobs = [
        {
            "name": one.name,
            "template": {
                "spec": {
                    "template": {
                        "metadata": _metadata(one, row, state, status, identity),
                        "spec": {"schedulingGates": _gates([GATE])},
                    }
                }
            },
        }
        for one in state.pod_sets
    ]
    spec = {"template": {"spec": {"replicatedJobs": jobs}}}
    entry = {"manager": PATCH_MANAGER, "trainingRuntimeSpec": spec}
    path, managers = f"/{row.runtime_patches.replace('.', '/')}", state.patch_managers
    suspend = _add(f"/{row.suspend.replace('.', '/')}", False)
    if managers is None:
        return [suspend, _add(path, [entry])]
    if PATCH_MANAGER in managers:
        return [suspend, {"op": "replace", "path": f"{path}/{managers.index(PATCH_MANAGER)}", "value": entry}]
    return [suspend, _add(f"{path}/-", entry)]


def _pinned(one: PodSet, status: QueueingStatus) -> dict[str, Any]:
    places = [part for part in status.placement if part.role == one.name]
    terms = [pin_term(node) for node in sorted(nodes_of(places))]
    pod: dict[str, Any] = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}
    if one.shape.gated:
        pod["schedulingGates"] = _gates(one.shape.other_gates) or None
    return pod


def _gated(one: PodSet) -> dict[str, Any]:
    pod: dict[str, Any] = {"schedulingGates": _gates([*one.shape.other_gates, GATE])}
    if one.shape.pinned:
        pod["affinity"] = {"nodeAffinity": {REQUIRED: None}}
    return pod


def _gates(names: Iterable[str]) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _merge(target: dict[str, Any], other: Mapping[str, Any]) -> None:
    for name, value in other.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = value
