"""Flavors, the tree of queues, and unmanaged pods."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.cluster.chaos.driver.settings import KINDS, Size
from tests.cluster.controlplane.nodes import HOST, RACK

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
MODEL = "gpu.model"  # node label
BRIEF_TAINT = "example.com/brief"  # key; some jobs tolerate it for a second
BORROWING_DELAY_S = 20  # then the reservation of the first gang that has to borrow binds all

# Parts of the whole: (parent, guaranteed, limit, lend)
TREE: dict[str, tuple[str | None, float, float | None, float | None]] = {
    "company": (None, 1.0, None, None),
    "research": ("company", 0.4, 0.75, None),
    "product": ("company", 0.4, None, 0.3),
    "product-a": ("product", 0.25, None, 0.15),
    "product-b": ("product", 0.1, 0.5, None),
    "scavenger": ("company", 0.0, 0.6, None),
}


def flavors() -> list[Json]:
    """The two kinds of node."""
    levels = [{"name": "rack", "nodeLabel": RACK}, {"name": "host", "nodeLabel": HOST}]
    return [
        {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "Flavor",
            "metadata": {"name": name},
            "spec": {"nodeLabels": {MODEL: name}, "topology": levels},
        }
        for name in KINDS
    ]


def queues(size: Size) -> list[Json]:
    """The tree, parents first."""
    return [_queue(size, name) for name in TREE]


def edited(size: Size, name: str, rng: Random) -> list[Json]:
    """The `resources` of a queue with other amounts than it should have."""
    factor = rng.uniform(0.4, 1.2)
    return _resources(size, name, factor)


def _queue(size: Size, name: str) -> Json:
    parent = TREE[name][0]
    root: Json = {"namespaceSelector": {}, "borrowingReservationDelaySeconds": BORROWING_DELAY_S}
    place = root if parent is None else {"parent": parent}
    spec = {**place, "resources": _resources(size, name, 1.0)}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def _resources(size: Size, name: str, factor: float) -> list[Json]:
    _, *parts = TREE[name]
    resources = []
    for flavor in KINDS:
        whole = size.gpus_of(flavor) * factor
        entry: Json = {"flavor": flavor}
        for kind, part in zip(("guaranteed", "limit", "lend"), parts, strict=True):
            if part is not None:
                entry[kind] = {GPU: str(int(whole * part))}
        resources.append(entry)
    return resources


def unmanaged_pod(name: str, rng: Random) -> Json:
    """A pod that no job owns: kube-scheduler chooses its node."""
    gpus, run_s = rng.choice((0, 1, 2, 4)), rng.uniform(3.0, 20.0)
    limits = {"cpu": "1"} | ({GPU: str(gpus)} if gpus else {})
    return {
        "metadata": {
            "name": name,
            "annotations": {"kwok.muster.dev/run-seconds": f"{run_s:.1f}", "kwok.muster.dev/exit-code": "0"},
        },
        "spec": {
            "containers": [{"name": "main", "image": "foreign", "resources": {"limits": limits}}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
        },
    }


REFUSED_ADMISSION = "has(object.status.phase) && object.status.phase == 'Admitted'"
REFUSED_STATUSES = (
    "has(object.status.eviction)",
    "has(object.status.nomination)",
    REFUSED_ADMISSION,
    "has(object.status.conditions) && object.status.conditions.exists(c, c.type == 'Evicted' && c.status == 'True')",
    "true",
)
"""Which statuses of a job a policy refuses, in CEL: evictions for other jobs, nominations, admissions, all evictions,
everything."""
POLICY_RESOURCES = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")


def status_policy(name: str, jobs: str, refused: str) -> dict[str, Json]:
    """A policy, and its binding, that refuses these statuses of jobs whose name matches a pattern."""
    version, kind = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"
    rule = {"apiGroups": ["muster.dev"], "apiVersions": ["*"], "operations": ["UPDATE"]}
    allowed = f"!object.metadata.name.matches('{jobs}') || !({refused})"
    policy = {
        "matchConstraints": {"resourceRules": [{**rule, "resources": ["trainingjobs/status"]}]},
        "validations": [{"expression": allowed, "message": "refused by the driver"}],
    }
    specs = (policy, {"policyName": name, "validationActions": ["Deny"]})
    return {
        resource: {"apiVersion": version, "kind": kind + suffix, "metadata": {"name": name}, "spec": spec}
        for resource, suffix, spec in zip(POLICY_RESOURCES, ("", "Binding"), specs, strict=True)
    }
