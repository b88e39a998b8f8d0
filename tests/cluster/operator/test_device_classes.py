"""GPUs that no node lists and a DeviceClass provides: kube-scheduler would take them, Muster cannot count them."""

from __future__ import annotations

from tests.cluster.operator.pools import Pool

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


def test_a_job_whose_gpus_only_a_device_class_provides_has_a_reason_of_its_own(pool: Pool) -> None:
    pool.set_up(nodes=1, gpus=4)
    resource = f"{pool.namespace}.example.com/gpu"
    name = f"gpus.{pool.namespace}.example.com"
    pool.api.create(CLASSES, {"metadata": {"name": name}, "spec": {"extendedResourceName": resource}})
    try:
        container = {"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}
        pool.submit("dra", pods=1, gpus=0, pod={"containers": [container]})
        text = pool.wait_for_reason("dra", "ResourceProvidedByDRA")
        assert text.startswith(f"no node lists {resource}; DeviceClass {name} provides it")
    finally:
        pool.api.delete(f"{CLASSES}/{name}")
    pool.wait_for_reason("dra", "LargerThanCluster")
