"""What one pod asks for, by the rules of Kubernetes.

The containers' sum, or the peak while init containers run one after the other, whichever is larger, plus overhead and
a pod slot. An init container with restartPolicy Always (a native sidecar) keeps running and so counts beside everything
that starts after it. A limit without a request is also the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.model import NodeRequirement, Resources, Toleration
from muster.quantity import parse_quantity, parse_resources
from muster.spec import Container, PodSpec

_NOWHERE = (NodeRequirement("kubernetes.io/hostname", "In", ()),)


def pod_request(spec: PodSpec) -> Resources:
    """The request of one pod, `pods: 1` included."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.init_containers:
        request = _container_request(container)
        if container.restart_policy == "Always":
            running = _sum(running, request)
            peak = _max(peak, running)
        else:
            peak = _max(peak, _sum(running, request))
    for container in spec.containers:
        running = _sum(running, _container_request(container))
    total = _sum(_max(peak, running), dict(parse_resources(spec.overhead)))
    return Resources.of({**total, "pods": 1})


def tolerations(raw: list[dict[str, Any]]) -> tuple[Toleration, ...]:
    """Tolerations as the planner sees them; `tolerationSeconds` does not matter for placing."""
    return tuple(
        Toleration(
            key=str(entry.get("key") or ""),
            operator="Exists" if entry.get("operator") == "Exists" else "Equal",
            value=str(entry.get("value") or ""),
            effect=str(entry.get("effect") or ""),
        )
        for entry in raw
    )


def node_affinity(affinity: Mapping[str, Any]) -> tuple[tuple[NodeRequirement, ...], ...]:
    """The required node affinity as an OR of ANDs; empty when every node will do.

    As in Kubernetes an empty term matches no node. Where all are empty none does, and one term that cannot be met says
    so: an OR of nothing would be no rule at all.
    """
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return ()
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        lines = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
        if lines:
            terms.append(tuple(NodeRequirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in lines))
    return tuple(terms) or (_NOWHERE,)


def _container_request(container: Container) -> dict[str, int]:
    asked = {**container.resources.limits, **container.resources.requests}
    return {name: parse_quantity(value, name) for name, value in asked.items()}


def _sum(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}}


def _max(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}
