"""Requests, tolerations and affinity of pods in the planner's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from muster.model import MAX_AMOUNT, MatchExpression, NodeToleration, Resources

_MATCHES_NO_NODE = (MatchExpression("kubernetes.io/hostname", "In", ()),)


def max_amount_per_pod(pods: Iterable[tuple[int, Resources]], total_limit: int = MAX_AMOUNT) -> int:
    """The largest amount counted for one pod of a gang, so that all its pods, given as (count, request of each), are at
    most `total_limit`: sums over a gang then fit 64 bits, whatever its pods request."""
    totals: dict[str, int] = {}
    pods = tuple(pods)
    for count, request in pods:
        for name, amount in request:
            totals[name] = totals.get(name, 0) + count * amount
    if all(amount <= total_limit for amount in totals.values()):
        return total_limit
    return total_limit // sum(count for count, _ in pods)


def tolerations(raw: list[dict[str, Any]]) -> tuple[NodeToleration, ...]:
    """Tolerations as the planner sees them. NoExecute with `tolerationSeconds` tolerates nothing: the pod would be
    evicted from the node in the end, and would return to it."""
    return tuple(
        NodeToleration(
            key=str(entry.get("key") or ""),
            operator="Exists" if entry.get("operator") == "Exists" else "Equal",
            value=str(entry.get("value") or ""),
            effect=str(entry.get("effect") or ""),
        )
        for entry in raw
        if entry.get("effect") != "NoExecute" or entry.get("tolerationSeconds") is None
    )


def node_affinity(affinity: Mapping[str, Any]) -> tuple[tuple[MatchExpression, ...], ...]:
    """The required node affinity as an OR of ANDs; empty if every node is accepted. As in Kubernetes an empty term
    matches no node. If all terms are empty no node matches: that is expressed by one term that no node satisfies, since
    an empty OR would accept all nodes."""
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return ()
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        lines = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
        if lines:
            terms.append(tuple(MatchExpression(e["key"], e["operator"], tuple(e.get("values") or ())) for e in lines))
    return tuple(terms) or (_MATCHES_NO_NODE,)
