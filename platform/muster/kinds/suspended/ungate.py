"""How a gated pod is released to one node.

Of a gated pod the API server lets the required terms of node affinity keep their number, and requirements may only be
appended; tolerations may only be added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.kinds.suspended.pod_shape import REQUIRED, pin_term
from muster.kinds.suspended.table import GATE


def ungate_patch(
    affinity: Mapping[str, Any] | None,
    tolerations: Sequence[Mapping[str, Any]],
    gates: Sequence[str],
    node: str,
    more_tolerations: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """A merge patch of a pod with this affinity, these tolerations and gates: pinned to `node`, with more tolerations,
    and without Muster's gate. An empty term matches no node, and nothing may be added to it: it stays."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    terms = [_pinned(term, node) for term in required.get("nodeSelectorTerms") or ()] or [pin_term(node)]
    added = [one for one in more_tolerations if one not in tolerations]
    pod: dict[str, Any] = {
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}},
        "schedulingGates": [{"name": name} for name in gates if name != GATE] or None,
    }
    if added:
        pod["tolerations"] = [*tolerations, *added]
    return {"spec": pod}


def _pinned(term: Mapping[str, Any], node: str) -> dict[str, Any]:
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return dict(term)
    (pin,) = pin_term(node)["matchFields"]
    return {**term, "matchFields": [*(term.get("matchFields") or ()), pin]}
