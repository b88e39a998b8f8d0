"""What is patched: an object that starts or stops, and its gated pods.

Nothing that is written into a template has to be restored: a label and a gate are constants, and node affinity is
written only where the user has none, so that the next admission replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from muster.api.spec import Flavor, QueueingStatus
from muster.kinds.suspended.pod_shape import REQUIRED, pin_term
from muster.kinds.suspended.read import ObjectState, PodSet, value_at
from muster.kinds.suspended.table import ATTEMPT_LABEL, GATE, KindRow
from muster.workload.placement import nodes_of


def start_patch(
    row: KindRow, state: ObjectState, status: QueueingStatus, flavors: Mapping[str, Flavor]
) -> dict[str, Any]:
    """Resume the object at the placement of its status: with a term of node affinity per node, where one pod set has no
    node affinity of its own and its flavor no tolerations; else its pods are gated, and get their nodes one by one."""
    patch = value_at(row.suspend, False)
    pinned = is_pinned_in_template(row, state, status, flavors)
    for one in state.pod_sets:
        pod = _pinned(one, status) if pinned else _gated(one)
        template = {"metadata": {"labels": {ATTEMPT_LABEL: str(status.attempt)}}, "spec": pod}
        _merge(patch, value_at(one.row.template, template))
    return patch


def stop_patch(row: KindRow) -> dict[str, Any]:
    """Suspend the object."""
    return value_at(row.suspend, True)


def is_pinned_in_template(
    row: KindRow, state: ObjectState, status: QueueingStatus, flavors: Mapping[str, Flavor]
) -> bool:
    """Whether the template gets node affinity. Tolerations of a flavor would have to be taken out again."""
    if not row.sets_node_affinity or len(state.pod_sets) != 1 or state.pod_sets[0].shape.affinity:
        return False
    used = (flavors.get(part.flavor) for part in status.placement)
    return not any(flavor is not None and flavor.spec.tolerations for flavor in used)


def _pinned(one: PodSet, status: QueueingStatus) -> dict[str, Any]:
    places = [part for part in status.placement if part.role == one.row.name]
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


def _merge(target: dict[str, Any], other: Mapping[str, Any]) -> None:
    for name, value in other.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = value
