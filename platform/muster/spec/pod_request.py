"""The effective resource request of a pod, computed as in Kubernetes.

The larger of the sum of all containers and the peak while init containers run in sequence, plus overhead and one pod.
An init container with restartPolicy Always (a native sidecar) keeps running, so it counts together with everything that
starts after it. A limit without a request is also the request. Pod-level requests (`resources` of the pod, Kubernetes
1.34 and later) replace those of the containers. See PodRequests in k8s.io/component-helpers/resource, and the API
server's defaults for pods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.model import Resources
from muster.quantity import HUGE_PAGES_PREFIX, parse_quantity
from muster.spec.pods import Container, ContainerResources, PodSpec

ParseAmount = Callable[[str, str], int]
"""Converts a quantity of a resource (value, resource) to an integer."""


def pod_request(pod: PodSpec, parse: ParseAmount = parse_quantity) -> Resources:
    """The request of one pod, `pods: 1` included. Raises as `parse` does."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.init_containers:
        request = _container_request(container, parse)
        if container.restart_policy == "Always":
            running = _add(running, request)
            peak = _max(peak, running)
        else:
            peak = _max(peak, _add(running, request))
    for container in pod.containers:
        running = _add(running, _container_request(container, parse))
    total = _with_pod_level_resources(_max(peak, running), pod.resources, parse)
    total = _add(total, {name: parse(value, name) for name, value in pod.overhead.items()})
    return Resources.of({**total, "pods": 1})


def _with_pod_level_resources(
    of_containers: dict[str, int], pod: ContainerResources | None, parse: ParseAmount
) -> dict[str, int]:
    """The request of the containers, replaced by the pod-level request. A pod-level limit is the request if neither the
    pod nor a container requests that resource; for huge pages, which cannot be overcommitted, also if a container does.

    The API server refuses a pod-level request that is less than the sum of the containers; here the larger one counts.
    """
    if pod is None:
        return of_containers
    requested = dict(pod.requests)
    for name, value in pod.limits.items():
        if name not in of_containers or name.startswith(HUGE_PAGES_PREFIX):
            requested.setdefault(name, value)
    return _max(of_containers, {name: parse(value, name) for name, value in requested.items()})


def _container_request(container: Container, parse: ParseAmount) -> dict[str, int]:
    requested = {**container.resources.limits, **container.resources.requests}
    return {name: parse(value, name) for name, value in requested.items()}


def _add(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {**a, **b}}


def _max(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {**a, **b}}
