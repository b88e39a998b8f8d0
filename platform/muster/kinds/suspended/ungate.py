"""How a gated pod is released to one node: one JSON patch, made from what the watch has shown of the pod.

Of a gated pod the API server lets the required terms of node affinity keep their number, and requirements may only be
appended; tolerations may only be added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from muster.kinds.suspended.pod_shape import REQUIRED, pin_term
from muster.kinds.suspended.table import GATE

JsonPatch: TypeAlias = list[dict[str, Any]]
"""Operations of RFC 6902."""
_AFFINITY = ("affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")


@dataclass(frozen=True, slots=True)
class GatedPod:
    """What a release depends on. `gates`: the names of its scheduling gates; `affinity_levels`: how many of `affinity`,
    `nodeAffinity` and the required terms it has, in this order; `terms`: what each required term consists of, where
    an empty one matches no node; `tolerations` None: it has no such list."""

    gates: tuple[str, ...]
    affinity_levels: int = 0
    terms: tuple[Literal["fields", "expressions", "empty"], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] | None = None


def release_patch(pod: GatedPod, node: str, version: str, tolerations: Sequence[Mapping[str, Any]]) -> JsonPatch:
    """Pin the pod to `node`, add tolerations, and take Muster's gate away; refused (Conflict) unless the pod has this
    resourceVersion."""
    patch: JsonPatch = [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}]
    patch += _pin(pod, node)
    own = pod.tolerations or ()
    added = [dict(one) for one in tolerations if one not in own]
    if added and pod.tolerations is None:
        patch.append(_add("/spec/tolerations", added))
    else:
        patch += [_add("/spec/tolerations/-", one) for one in added]
    return [*patch, {"op": "remove", "path": f"/spec/schedulingGates/{pod.gates.index(GATE)}"}]


def _pin(pod: GatedPod, node: str) -> JsonPatch:
    """Node affinity with the node in every term."""
    if pod.affinity_levels < len(_AFFINITY) - 1:
        value: Any = [pin_term(node)]
        for name in reversed(_AFFINITY[pod.affinity_levels + 1 :]):
            value = {name: value}
        return [_add("/".join(("/spec", *_AFFINITY[: pod.affinity_levels + 1])), value)]
    path, (pin,) = "/".join(("/spec", *_AFFINITY)), pin_term(node)["matchFields"]
    patch: JsonPatch = []
    for number, term in enumerate(pod.terms):
        if term == "fields":
            patch.append(_add(f"{path}/{number}/matchFields/-", pin))
        elif term == "expressions":
            patch.append(_add(f"{path}/{number}/matchFields", [pin]))
    return patch


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
