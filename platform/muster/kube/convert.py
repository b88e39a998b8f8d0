"""What objects of the API server are to the engine and to users (pure).

The operator's caches and the command line read nodes, queues, flavors and jobs here, so that `muster nodes`, `muster
queues` and `muster replay` show what the operator plans with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar, cast

import msgspec
from pydantic import ValidationError

from muster.api import spec
from muster.api.quantity import clamp_quantity
from muster.api.yaml_input.undecodable import invalid_reason, valid_part
from muster.cluster import NodeView
from muster.errors import ClusterError
from muster.kube.objects import V1DeviceClass, V1Node, V1Pod
from muster.model import NodeTaint, Resources

T = TypeVar("T", bound=spec.StrictModel)
D = TypeVar("D", bound=spec.Queue | spec.Flavor)

WRONG_VERSION = "WrongVersion"
"""The error reason for an object that this version cannot read."""
_MAX_SHOWN = 200  # characters of an answer in an error
_Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
_IMPLICIT_RESOURCE_PREFIX = "deviceclass.resource.kubernetes.io/"
_TAINT_PREFIX = "node.kubernetes.io/"
_REDUNDANT_TAINTS = frozenset(_TAINT_PREFIX + name for name in ("unschedulable", "not-ready", "unreachable"))
_PRESSURE_TAINTS = frozenset(
    _TAINT_PREFIX + name for name in ("memory-pressure", "disk-pressure", "pid-pressure", "network-unavailable")
)


def device_classes_by_resource(classes: Iterable[V1DeviceClass]) -> dict[str, str]:
    """Names of device classes by the extended resources that each provides: the name in its spec, and the implicit
    one."""
    found: dict[str, str] = {}
    for one in sorted(classes, key=lambda one: one.metadata.name):
        for resource in (one.spec.extended_resource_name, _IMPLICIT_RESOURCE_PREFIX + one.metadata.name):
            if resource:
                found.setdefault(resource, one.metadata.name)
    return found


def parse_time(text: str) -> float:
    """RFC 3339 to Unix seconds."""
    return datetime.fromisoformat(text).timestamp()


def parse_resources(quantities: Mapping[str, str | int | float]) -> Resources:
    """Quantities by resource name. A quantity that cannot be read counts as 0: one bad device must not hide a node."""
    return Resources.of({name: clamp_quantity(text, name) for name, text in quantities.items()})


def node_view(node: V1Node) -> NodeView:
    """The node without unmanaged usage. `not_ready_since` is set only where the Ready condition is Unknown.

    Taints of the control plane are left out because they are transient: pressure counts as cordoned, and cordoned or
    not ready have fields of their own. The planner would treat a taint as a permanent reason.
    """
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    unknown_since = ready.last_transition_time if ready is not None and ready.status == "Unknown" else None
    return NodeView(
        name=node.metadata.name,
        allocatable=(allocatable := parse_resources(node.status.allocatable)),
        unhealthy_devices=_unhealthy_devices(parse_resources(node.status.capacity), allocatable),
        labels=node.metadata.labels,
        taints=tuple(
            NodeTaint(taint.key, taint.value, cast(_Effect, taint.effect))
            for taint in node.spec.taints
            if taint.key not in _REDUNDANT_TAINTS and taint.key not in _PRESSURE_TAINTS
        ),
        ready=ready is not None and ready.status == "True",
        cordoned=node.spec.unschedulable or any(taint.key in _PRESSURE_TAINTS for taint in node.spec.taints),
        not_ready_since=None if unknown_since is None else parse_time(unknown_since),
    )


def _unhealthy_devices(capacity: Resources, allocatable: Resources) -> Resources:
    """Devices of a node that cannot be allocated. Of other resources the kubelet keeps a part for the system."""
    return Resources.of({name: max(0, amount - allocatable.get(name)) for name, amount in capacity if "/" in name})


def read_pod(document: Mapping[str, Any]) -> V1Pod:
    """The pod of a decoded answer. Raises ValueError."""
    return msgspec.json.decode(msgspec.json.encode(document), type=V1Pod)  # `convert` cannot make a `Raw`


def has_ended(pod: V1Pod) -> bool:
    """Whether no container of the pod runs or will run."""
    return pod.status.phase in ("Succeeded", "Failed")


def read_queue_or_flavor(model: type[D], document: Mapping[str, Any]) -> tuple[D | None, str | None]:
    """The object, and why it is invalid (None: it is valid).

    Of an invalid queue the valid fields are returned: what runs in it stays charged to it. An invalid flavor is None,
    because its nodes are unknown. A status that cannot be read counts as never written.
    """
    error = invalid_reason(document, model.__name__)
    if error is not None:
        return (cast(D, valid_part(document)) if model is spec.Queue else None), error
    try:
        return cast(D, model.model_validate(document)), None
    except ValidationError:
        return cast(D, model.model_validate({**document, "status": {}})), None


def read_object(model: type[T], document: Mapping[str, Any]) -> T:
    """One object with all its fields. Raises `ClusterError` WrongVersion if this version of Muster cannot read it."""
    plain = without_managed_fields(document)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        name, why = plain["metadata"].get("name"), invalid_reason(plain, model.__name__) or error
        message = f"{model.__name__} {name!r} cannot be read by this version of Muster: {why}"
        hint = "fix the object, or install the cluster's version of Muster"
        raise ClusterError(f"{message}; {hint}", reason=WRONG_VERSION) from error


def without_managed_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The object without `managedFields`, which the API server keeps for itself. Raises `ClusterError` InvalidAnswer
    without metadata: a proxy answered in place of the API server."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        start = str(document)[:_MAX_SHOWN]
        raise ClusterError(f"the answer is not a Kubernetes object: {start}", reason="InvalidAnswer")
    meta = {name: value for name, value in metadata.items() if name != "managedFields"}
    return {**document, "metadata": meta}
