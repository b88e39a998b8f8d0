"""What pods request of their nodes, as integers."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import msgspec

from muster.api import spec
from muster.api.quantity import clamp_quantity
from muster.api.spec.pods import pod_request
from muster.kube.objects import (
    ResourceList,
    V1Container,
    V1ContainerStatus,
    V1PodSpec,
    V1PodStatus,
    V1ResourceRequirements,
)
from muster.model import Resources
from muster_operator.cache.lru_cache import LRUCache

_CACHE = LRUCache[bytes, Resources]()
_NO_STATUS = V1PodStatus()


def effective_request(pod: V1PodSpec, status: V1PodStatus = _NO_STATUS) -> Resources:
    """What a pod uses of its node, its pod slot included, as kube-scheduler computes it: during an in-place resize the
    maximum of what it requests, what the node has allocated, and what it runs with.

    Defined for any pod: a request beyond the largest amount counts as the largest amount.
    """
    pod = _with_effective_requests(pod, status)
    key = msgspec.json.encode((pod.containers, pod.init_containers, pod.resources, pod.overhead))
    known = _CACHE.get(key)
    if known is None:
        known = pod_request(cast(spec.PodSpec, pod), _parse_quantity).capped()  # reads only fields that both types have
        _CACHE.put(key, known, len(key))
    return known


def _with_effective_requests(pod: V1PodSpec, status: V1PodStatus) -> V1PodSpec:
    """The pod with its effective requests: see determineEffectiveRequests in k8s.io/component-helpers/resource."""
    reported = {one.name: one for one in (*status.container_statuses, *status.init_container_statuses) if one.resources}
    if not reported and status.resources is None:
        return pod
    infeasible = any(one.type == "PodResizePending" and one.reason == "Infeasible" for one in status.conditions)
    changed: dict[str, object] = {}
    if status.resources is not None and pod.resources is not None:
        own = pod.resources.requests
        most = _max_requests(own, status.resources.requests, status.allocated_resources, infeasible=infeasible)
        requests = {name: most.get(name, "0") for name in own}
        changed["resources"] = V1ResourceRequirements(requests, pod.resources.limits)
    return msgspec.structs.replace(
        pod,
        containers=[_effective_container(one, reported.get(one.name), infeasible=infeasible) for one in pod.containers],
        init_containers=[
            _effective_container(one, reported.get(one.name), infeasible=infeasible)
            if one.restart_policy == "Always"
            else one
            for one in pod.init_containers
        ],
        **changed,
    )


def _effective_container(container: V1Container, status: V1ContainerStatus | None, *, infeasible: bool) -> V1Container:
    if status is None or status.resources is None:
        return container
    own = container.resources
    most = _max_requests(own.requests, status.resources.requests, status.allocated_resources, infeasible=infeasible)
    return msgspec.structs.replace(container, resources=V1ResourceRequirements(most, own.limits))


def _max_requests(
    desired: ResourceList, actual: ResourceList, allocated: ResourceList, *, infeasible: bool
) -> ResourceList:
    """The maximum of each resource; `desired` does not count where the resize is infeasible."""
    most: ResourceList = {}
    for texts in (actual, allocated) if infeasible else (desired, actual, allocated):
        for name, text in texts.items():
            if name not in most or _parse_quantity(text, name) > _parse_quantity(most[name], name):
                most[name] = text
    return most


@lru_cache(maxsize=4096)
def _parse_quantity(text: str | float, name: str) -> int:
    return clamp_quantity(text, name)
