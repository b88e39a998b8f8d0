"""What the pods of a template ask for, as the planner sees it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster import model
from muster.api.spec.pods import RESOURCE_CLAIMS_NOT_ALLOWED, PodSpec, pod_request
from muster.errors import InvalidSpec
from muster.kinds.suspended.table import ATTEMPT_LABEL, GATE
from muster.model import MatchExpression, NodeToleration, Resources
from muster.workload.requests import node_affinity, tolerations

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MAPS = ("labels", "annotations")
_OF_CONTROLLERS = ("/muster.dev/", "/batch.kubernetes.io/", "/controller-uid=", "/job-name=")
_REQUEST_FIELDS = ("containers", "initContainers", "resources", "overhead", "terminationGracePeriodSeconds")


@dataclass(frozen=True, slots=True)
class PodShape:
    """`affinity`: the required node affinity that the user wrote; `pinned`: the template has node affinity of an
    earlier admission; `other_gates`: scheduling gates of others; `gated`: it has ours; `written`: which parts of its
    metadata exist; `profile`: what admission plugins and webhooks may add resources for, such as labels, and containers
    without requests."""

    request: Resources
    grace_s: float
    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[MatchExpression, ...], ...] = ()
    tolerations: tuple[NodeToleration, ...] = ()
    priority_class: str = ""
    pinned: bool = False
    gated: bool = False
    other_gates: tuple[str, ...] = ()
    written: frozenset[str] = frozenset()
    profile: tuple[str, ...] = ()

    def role(self, name: str, count: int, request: Resources) -> model.Role:
        """A role of that many such pods with this request."""
        return model.Role(
            name=name,
            replicas=count,
            min_replicas=count,
            request=request,
            node_selector=self.node_selector,
            affinity=self.affinity,
            tolerations=self.tolerations,
        )


def pod_shape(template: Mapping[str, Any]) -> PodShape:
    """The shape of a PodTemplateSpec. Raises InvalidSpec, pydantic's ValidationError and what else an arbitrary
    document may cause."""
    meta, pod = template.get("metadata"), template.get("spec") or {}
    labels = (meta or {}).get("labels") or {}
    if pod.get("resourceClaims"):
        raise InvalidSpec(RESOURCE_CLAIMS_NOT_ALLOWED)
    if pod.get("nodeName"):
        raise InvalidSpec("nodeName must not be set: Muster chooses the nodes")
    read = PodSpec.model_validate({name: pod[name] for name in _REQUEST_FIELDS if name in pod})
    affinity = pod.get("affinity") or {}
    pinned = ATTEMPT_LABEL in labels and _is_pinned(affinity)
    gates = tuple(str(one["name"]) for one in pod.get("schedulingGates") or ())
    return PodShape(
        request=pod_request(read),
        grace_s=float(read.termination_grace_period_seconds),
        node_selector=tuple(sorted((pod.get("nodeSelector") or {}).items())),
        affinity=() if pinned else node_affinity(affinity),
        tolerations=tolerations(pod.get("tolerations") or []),
        priority_class=str(pod.get("priorityClassName") or ""),
        pinned=pinned,
        gated=GATE in gates,
        other_gates=tuple(name for name in gates if name != GATE),
        written=frozenset(
            () if meta is None else ("metadata", *(name for name in _MAPS if meta.get(name) is not None))
        ),
        profile=_profile(meta or {}, pod),
    )


def _profile(meta: Mapping[str, Any], pod: Mapping[str, Any]) -> tuple[str, ...]:
    named = ((f"{one}/{key}=", value) for one in _MAPS for key, value in (meta.get(one) or {}).items())
    own = (f"{key}{value}" for key, value in named if not any(part in key for part in _OF_CONTROLLERS))
    named_by_pod = (str(pod.get(name) or "") for name in ("runtimeClassName", "serviceAccountName"))
    return (*named_by_pod, _containers_hash(pod), *sorted(own))


def _containers_hash(pod: Mapping[str, Any]) -> str:
    """A LimitRange adds to each container what that one does not request, so that their sum does not tell."""
    containers = [
        [(one.get("resources"), one.get("restartPolicy")) for one in pod.get(name) or ()]
        for name in ("initContainers", "containers")
    ]
    return hashlib.sha256(json.dumps([containers, pod.get("resources")], sort_keys=True).encode()).hexdigest()


def pin_term(node: str) -> dict[str, Any]:
    """A term of node affinity that one node satisfies: `matchFields` takes one value."""
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}


def _is_pinned(affinity: Mapping[str, Any]) -> bool:
    """Whether every term of the required node affinity is one of `pin_term`."""
    required = (affinity.get("nodeAffinity") or {}).get(REQUIRED) or {}
    terms = list(required.get("nodeSelectorTerms") or ())
    return bool(terms) and all(_is_pin(term) for term in terms)


def _is_pin(term: Mapping[str, Any]) -> bool:
    fields = list(term.get("matchFields") or ())
    return not term.get("matchExpressions") and [one.get("key") for one in fields] == ["metadata.name"]
