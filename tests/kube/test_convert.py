"""Nodes, queues, flavors and jobs as the API server sends them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.api.spec import Flavor, Queue, TrainingJob
from muster.cluster import NodeView
from muster.errors import ClusterError
from muster.kube.convert import has_ended, node_view, read_object, read_pod, read_queue_or_flavor
from muster.kube.objects import V1Node
from muster.model import NodeTaint, Resources


def view(document: dict[str, Any]) -> NodeView:
    """The node of a document, as the command line reads it."""
    return node_view(msgspec.convert(document, V1Node))


def test_a_node_is_read_with_its_taints_and_an_invalid_quantity_counts_as_zero() -> None:
    document = {
        "metadata": {"name": "n0", "labels": {"a": "b"}},
        "spec": {"unschedulable": True, "taints": [{"key": "muster.dev/drain", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "500m", "pods": "110", "example.com/odd": "many"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    amounts = Resources.of({"cpu": 500, "pods": 110})
    taints = (NodeTaint("muster.dev/drain"),)
    assert view(document) == NodeView("n0", amounts, {"a": "b"}, taints, ready=True, cordoned=True)
    assert view({"metadata": {"name": "n1"}}).ready is False


@pytest.mark.parametrize(
    ("taint", "cordoned"),
    [("memory-pressure", True), ("network-unavailable", True), ("not-ready", False), ("unschedulable", False)],
)
def test_taints_of_the_control_plane_are_no_permanent_taints(taint: str, cordoned: bool) -> None:
    taints = [{"key": f"node.kubernetes.io/{taint}", "effect": "NoSchedule"}]
    seen = view({"metadata": {"name": "n0"}, "spec": {"taints": taints}})
    assert (seen.taints, seen.cordoned) == ((), cordoned)


@pytest.mark.parametrize(("status", "since"), [("Unknown", 1767225600.0), ("False", None), ("True", None)])
def test_a_node_is_lost_since_its_ready_condition_is_unknown(status: str, since: float | None) -> None:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert view({"metadata": {"name": "n0"}, "status": {"conditions": [condition]}}).not_ready_since == since


def test_of_an_invalid_queue_the_valid_fields_count_and_of_an_invalid_flavor_nothing() -> None:
    queue, error = read_queue_or_flavor(Queue, {"metadata": {"name": "q"}, "spec": {"parent": "all", "weight": -1}})
    assert queue is not None
    assert (queue.spec.parent, queue.spec.weight) == ("all", 1.0)
    assert error == "spec.weight: must be greater than 0; got -1"
    flavor, error = read_queue_or_flavor(Flavor, {"metadata": {"name": "f"}, "spec": {"nodeLabels": []}})
    assert flavor is None
    assert error is not None
    assert error.startswith("spec.nodeLabels: ")


@pytest.mark.parametrize("model", [Queue, Flavor])
def test_an_invalid_status_counts_as_never_written(model: type[Queue]) -> None:
    item, error = read_queue_or_flavor(model, {"metadata": {"name": "a"}, "spec": {}, "status": 7})
    assert error is None
    assert item is not None
    assert item.status == type(item.status)()


def test_an_object_of_a_newer_version_is_refused_with_its_name_and_field() -> None:
    with pytest.raises(ClusterError, match=r"TrainingJob 'a' cannot be read by this version of Muster: spec") as error:
        read_object(TrainingJob, {"kind": "TrainingJob", "metadata": {"name": "a"}, "spec": {"newField": 1}})
    assert error.value.reason == "WrongVersion"


def test_devices_that_a_node_has_and_cannot_allocate_are_unhealthy_and_what_the_kubelet_reserves_is_not() -> None:
    status = {
        "allocatable": {"cpu": "30", "memory": "100Gi", "pods": "110", "nvidia.com/gpu": "7"},
        "capacity": {"cpu": "32", "memory": "128Gi", "pods": "110", "nvidia.com/gpu": "8", "rdma/hca": "1"},
    }
    found = view({"metadata": {"name": "n0"}, "status": status}).unhealthy_devices
    assert found == Resources.of({"nvidia.com/gpu": 1, "rdma/hca": 1})


def test_a_pod_is_read_with_fields_that_are_kept_as_they_are_written() -> None:
    tolerations = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
    pod = read_pod({"metadata": {}, "spec": {"tolerations": tolerations}, "status": {"phase": "Failed"}})
    assert (has_ended(pod), msgspec.json.decode(pod.spec.tolerations)) == (True, tolerations)
