"""A job whose GPUs no node lists and a DeviceClass provides: refused at submit with the operator's reason."""

from __future__ import annotations

import pytest
from tests.cli.objects import job as a_job
from tests.cluster_client.server import FLAVORS, NODES, QUEUES, Server, forbidden

from muster.api.spec import TrainingJob
from muster.errors import Refused

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


def job(resource: str) -> TrainingJob:
    container = {"name": "main", "image": "i", "resources": {"limits": {resource: 1}}}
    return a_job(roles=[{"name": "trainer", "template": {"spec": {"containers": [container]}}}])


@pytest.fixture
def devices(cluster: Server) -> Server:
    """A cluster with a class of devices that no node lists, and two nodes with other GPUs."""
    quota = {"resources": [{"flavor": "h200"}]}
    cluster.put(f"{QUEUES}/research", {"metadata": {"name": "research"}, "spec": {"namespaceSelector": {}, **quota}})
    cluster.put(f"{FLAVORS}/h200", {"metadata": {"name": "h200"}, "spec": {}})
    allocatable = {"pods": "110", "amd.com/gpu": "8"}
    cluster.put(f"{NODES}/n2", {"metadata": {"name": "n2"}, "status": {"allocatable": allocatable}})
    spec = {"extendedResourceName": "nvidia.com/gpu"}
    cluster.put(f"{CLASSES}/gpus", {"metadata": {"name": "gpus"}, "spec": spec})
    cluster.put(f"{CLASSES}/amd", {"metadata": {"name": "amd"}, "spec": {"extendedResourceName": "amd.com/gpu"}})
    return cluster


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "deviceclass.resource.kubernetes.io/gpus"])
def test_the_reason_of_the_refusal_names_the_device_class(devices: Server, resource: str) -> None:
    with pytest.raises(Refused) as error:
        devices.client().submit(job(resource))
    assert (error.value.reason, error.value.field) == ("ResourceProvidedByDRA", "spec.roles")
    assert str(error.value).startswith(f"spec.roles: no node lists {resource}; DeviceClass gpus provides it")


def test_a_resource_that_a_node_lists_comes_from_its_device_plugin(devices: Server) -> None:
    devices.client().submit(job("amd.com/gpu"))
    assert CLASSES not in {path for _, path in devices.requested}


def test_without_the_right_to_read_device_classes_the_reason_is_that_of_the_nodes(devices: Server) -> None:
    devices.fail("GET", CLASSES, forbidden)
    with pytest.raises(Refused) as error:
        devices.client().submit(job("nvidia.com/gpu"))
    assert error.value.reason == "LargerThanCluster"
