"""What pods ask for and nodes have, from the texts of the API server to whole numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import cast

from muster import spec
from muster.model import Resources
from muster.quantity import nearest_quantity
from muster.snapshot import pod_request
from muster_operator.sight.shapes import PodSpec


def amounts(texts: Mapping[str, str | int | float]) -> Resources:
    """Quantities by resource name. What cannot be read counts as nothing: one odd device must not hide a node."""
    return Resources.of({name: _amount(text, name) for name, text in texts.items()})


def asks_for(pod: PodSpec) -> Resources:
    """What a pod takes of its node, its slot included; requests of the whole pod stand above those of containers.

    Anybody's pod has an answer: one that asks for more than anything can be takes all there can be.
    """
    request = pod_request(cast(spec.PodSpec, pod), _amount).capped()  # it reads only what the two have in common
    if pod.resources is None or not (pod.resources.requests or pod.resources.limits):
        return request
    whole = amounts({**pod.resources.limits, **pod.resources.requests}).plus(amounts(pod.overhead))
    return Resources.of({**dict(request.items), **dict(whole.items)}).capped()


@lru_cache(maxsize=4096)
def _amount(text: str | float, name: str) -> int:
    return nearest_quantity(text, name)
