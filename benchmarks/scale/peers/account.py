"""An account of its own for the scheduler that is measured, so that the API server counts what it writes.

FlowSchemas sort its calls by verb, and the API server counts calls by FlowSchema. All of them are exempt from priority
and fairness, as those of an administrator are, with whose account Muster's operator runs here.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.scale.programs import metrics
from benchmarks.scale.work import Json
from tests.cluster.controlplane.plane import ControlPlane

NAMESPACE = NAME = "bench-peer"
_VERBS = {"create": "POST", "patch": "PATCH", "update": "PUT", "delete": "DELETE", "deletecollection": "DELETE"}
_READS = ("get", "list", "watch")
_PREFIX = "bench-peer-"


def open_account(plane: ControlPlane) -> Path:
    """The kubeconfig of a new service account that may do everything."""
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": NAME}})
    who = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": NAME}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    plane.api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {
        "metadata": {"name": NAME}, "roleRef": role, "subjects": [who],
    })  # fmt: skip
    for verbs in ((verb,) for verb in _VERBS):
        plane.api.create("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", flow_schema(verbs[0], verbs))
    plane.api.create("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", flow_schema("reads", _READS))
    return plane.kubeconfig("peer", token=plane.token_for_service_account(NAMESPACE, NAME))


def writes(plane: ControlPlane) -> dict[str, float]:
    """How many calls of the account the API server served that were no reads, by method."""
    counted: dict[str, float] = {}
    text = str(plane.api.get("/metrics")["message"])  # it is no JSON
    for labels, value in metrics(text, "apiserver_flowcontrol_dispatched_requests_total"):
        method = _VERBS.get(labels["flow_schema"].removeprefix(_PREFIX))
        if method and labels["flow_schema"].startswith(_PREFIX):
            counted[method] = counted.get(method, 0.0) + value
    return counted


def flow_schema(name: str, verbs: tuple[str, ...]) -> Json:
    """Where the account's calls with these verbs go."""
    everything = {"apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
    who = {"kind": "ServiceAccount", "serviceAccount": {"namespace": NAMESPACE, "name": NAME}}
    rule = {"subjects": [who], "resourceRules": [{"verbs": list(verbs), **everything}]}
    level = {"name": "exempt"}
    spec = {"priorityLevelConfiguration": level, "matchingPrecedence": 2, "rules": [rule]}
    return {"metadata": {"name": f"{_PREFIX}{name}"}, "spec": spec}
