"""Objects of one user delay no other user, also after a restart of the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.operator.pools import Json, Pool
from tests.cluster.operator.process import Operator
from tests.cluster.operator.sidecars import COLLECTORS

OthersGoOn = Callable[[str], None]
UNKNOWN_UID = "11111111-1111-1111-1111-111111111111"


@pytest.fixture
def others_go_on(pool: Pool, operator: Operator, tmp_path: Path) -> OthersGoOn:
    """Whether another user's job runs, and both the operator and one that begins anew are well."""

    def check(name: str) -> None:
        pool.submit(name, pods=1)
        pool.wait_for_phase(name, "Running")
        assert operator.get("/healthz") == (200, "ok"), operator.tail()
        anew = Operator(pool.plane.kubeconfig(), tmp_path / name, *COLLECTORS)
        try:
            anew.wait("it has listed everything", lambda: anew.get("/readyz")[0] == 200)
            assert anew.get("/healthz") == (200, "ok"), anew.tail()
            assert anew.stop() == 0, anew.tail()
        finally:
            anew.kill()

    return check


@pytest.fixture
def elsewhere(pool: Pool) -> Iterator[str]:
    """A namespace of another user."""
    name = f"{pool.namespace}-elsewhere"
    pool.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    pool.wait("it has its account", lambda: not pool.api.gone(f"/api/v1/namespaces/{name}/serviceaccounts/default"))
    yield name
    for pod in pool.api.items(f"/api/v1/namespaces/{name}/pods"):
        with gone_or_not():
            path = f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}"
            pool.api.patch(path, {"metadata": {"finalizers": None}})
    pool.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds=0)
    pool.api.delete(f"/api/v1/namespaces/{name}")


@contextmanager
def gone_or_not() -> Iterator[None]:
    """The cluster itself deletes pods whose owner does not exist, sooner or later."""
    try:
        yield
    except Refused as refused:
        if refused.code != 404:
            raise


def pod(name: str, *requests: Json, node: str = "", **meta: object) -> Json:
    """A plain pod with so many containers."""
    containers = [{"name": f"c{i}", "image": "x", "resources": {"limits": one}} for i, one in enumerate(requests)]
    bound = {"nodeName": node} if node else {}
    return {
        "metadata": {"name": name, **meta},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers, **bound},
    }


def says_it_belongs_to(job: str, uid: str, attempt: int) -> Json:
    """What makes a pod look like one of a job's."""
    reference = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": job, "uid": uid}
    labels = {"muster.dev/role": "worker", "muster.dev/index": "0", "muster.dev/attempt": str(attempt)}
    return {"labels": {**labels, "muster.dev/job": job}, "ownerReferences": [{**reference, "controller": True}]}


def create_pod(pool: Pool, namespace: str, wanted: Json) -> Json:
    return pool.api.create(f"/api/v1/namespaces/{namespace}/pods", wanted)


def test_pods_with_huge_requests_fill_only_their_own_node(pool: Pool, elsewhere: str, others_go_on: OthersGoOn) -> None:
    pool.set_up(nodes=2, gpus=4)
    create_pod(pool, elsewhere, pod("huge", {"memory": "5E"}))
    for name in ("a", "b", "c"):
        create_pod(pool, elsewhere, pod(name, {"memory": "4E"}, node=pool.node(0)))
    others_go_on("other")
    memory = {"limits": {GPU: "1", "memory": "1Gi"}}
    pool.submit("beside", pods=2, pod={"containers": [{"name": "main", "image": "none", "resources": memory}]})
    pool.wait_for_phase("beside", "Running")
    assert pool.nodes_of("beside") == [pool.node(1)] * 2


def test_two_pods_of_one_name_in_two_namespaces_that_name_one_owner(
    pool: Pool, elsewhere: str, others_go_on: OthersGoOn
) -> None:
    pool.set_up()
    meta = says_it_belongs_to("unknown", UNKNOWN_UID, 0)
    for namespace in (pool.namespace, elsewhere):
        create_pod(pool, namespace, pod("same", {"cpu": "1"}, **meta))
        pool.api.delete_if_exists(f"/api/v1/namespaces/{namespace}/pods/same", gracePeriodSeconds=0)
    others_go_on("other")


def test_a_pod_of_another_namespace_that_names_a_job_as_owner_does_not_delay_it(
    pool: Pool, elsewhere: str, others_go_on: OthersGoOn
) -> None:
    pool.set_up()
    pool.submit("victim", pods=1, suspend=True)
    pool.wait("it is seen", lambda: pool.phase("victim") == "Suspended")
    uid = (pool.get("victim") or {})["metadata"]["uid"]
    meta = says_it_belongs_to("victim", uid, 999)
    create_pod(pool, elsewhere, pod("evil", {"cpu": "1"}, finalizers=["example.com/stays"], **meta))
    pool.edit("victim", suspend=False)
    pool.wait_for_phase("victim", "Running")
    assert pool.attempt("victim") == 0
    others_go_on("other")


def test_a_pod_created_by_hand_with_a_jobs_labels_uses_capacity_of_its_node(
    pool: Pool, others_go_on: OthersGoOn
) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.submit("mine", pods=1)
    pool.wait_for_phase("mine", "Running")
    (where,) = pool.nodes_of("mine")
    other = next(node for node in (pool.node(0), pool.node(1)) if node != where)
    meta = says_it_belongs_to("mine", (pool.get("mine") or {})["metadata"]["uid"], 0)
    create_pod(pool, pool.namespace, pod("by-hand", {GPU: "4"}, node=other, **meta))
    pool.submit("whole", pods=1, gpus=4)
    pool.wait_for_reason("whole", "InsufficientResources")
    assert pool.phase("mine") == "Running"
    pool.api.delete(f"/api/v1/namespaces/{pool.namespace}/pods/by-hand", gracePeriodSeconds=0)
    pool.wait_for_phase("whole", "Running")
    others_go_on("other")


def test_a_job_whose_pod_requests_more_than_the_maximum_has_a_reason(pool: Pool, others_go_on: OthersGoOn) -> None:
    pool.set_up()
    large = [{"name": f"c{i}", "image": "x", "resources": {"requests": {"memory": "4E"}}} for i in range(3)]
    pool.submit("large", pods=1, pod={"containers": large})
    message = pool.wait_for_reason("large", "InvalidSpec")
    assert "memory of all pods together must be less than 2^62; got 1 pod of 12E" in message
    others_go_on("other")


def test_a_field_of_a_template_that_has_the_wrong_form_is_refused_by_the_api_server(pool: Pool) -> None:
    pool.set_up()
    mounted = {"name": "main", "image": "none", "volumeMounts": ["x"]}
    with pytest.raises(Refused) as caught:
        pool.submit("odd", pods=1, pod={"containers": [mounted]})
    assert (caught.value.code, "volumeMounts[0]" in str(caught.value)) == (422, True)
