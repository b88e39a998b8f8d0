"""What pods of a gang hold that have ended, or that cannot end: capacity is free as soon as no pod uses it."""

from __future__ import annotations

from typing import Any

from tests.cluster.operator.pools import Pool

KEPT = "example.com/kept"


def set_finalizers(pool: Pool, pod: dict[str, Any], *finalizers: str) -> None:
    pool.api.patch(
        f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}",
        {"metadata": {"finalizers": list(finalizers) or None}},
    )


def pod_of(pool: Pool, job: str, index: int) -> dict[str, Any]:
    return next(pod for pod in pool.pods(job) if pod["metadata"]["labels"]["muster.dev/index"] == str(index))


def test_an_urgent_job_uses_the_capacity_of_ended_pods_and_a_restart_asks_again(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.set_quota("all", 12)  # capacity is scarce, quota is not
    pool.submit("gang", pods=2, gpus=4, failurePolicy={"maxRestarts": 3})
    pool.wait_for_phase("gang", "Running")
    first, second = pool.nodes_of("gang")
    pool.annotate("gang", 0, exit_code=0)
    pool.submit("urgent", pods=1, gpus=4, priority=10)
    pool.wait_for_phase("urgent", "Running")
    assert pool.nodes_of("urgent") == [first]
    assert (pool.phase("gang"), pool.attempt("gang")) == ("Running", 0)
    pool.annotate("gang", 1, exit_code=5)
    text = pool.wait_for_reason("gang", "InsufficientResources", "nominated")
    assert "capacity on 1 node is nominated for 1 of 2 pods; no capacity for the other" in text
    assert (pool.phase("urgent"), pool.status("gang")["restarts"]) == ("Running", 1)
    pool.end("urgent")
    pool.wait_for_attempt("gang", 1)
    assert sorted(pool.nodes_of("gang")) == sorted([first, second])


def test_a_finalizer_of_a_pod_that_was_never_bound_holds_nothing(pool: Pool) -> None:
    pool.set_up(nodes=1, gpus=4)
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"muster.dev/role": "worker"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    pool.submit("apart", pods=2, gpus=2, pod={"affinity": affinity})

    def unbound() -> list[dict[str, Any]]:
        pods = pool.pods("apart")
        return [pod for pod in pods if not pod["spec"].get("nodeName")] if len(pods) == 2 else []

    pool.wait("one pod is bound, and one cannot be", lambda: len(unbound()) == 1)
    (kept,) = unbound()
    set_finalizers(pool, kept, KEPT)
    pool.api.delete(f"/api/v1/namespaces/{pool.namespace}/pods/{kept['metadata']['name']}")
    pool.wait("the gang starts again beside it", lambda: pool.attempt("apart") >= 1)
    pool.edit("apart", suspend=True)
    pool.submit("next", pods=1, gpus=4)
    pool.wait_for_phase("next", "Running")
    assert kept["metadata"]["name"] in {pod["metadata"]["name"] for pod in pool.pods("apart")}
    set_finalizers(pool, kept)


def test_who_holds_capacity_is_named_until_the_last_pod_has_ended(pool: Pool) -> None:
    pool.set_up(nodes=1, gpus=4)
    pool.set_quota("all", 12)
    pool.submit("holder", pods=1, gpus=4, failurePolicy={"maxRestarts": 0})
    pool.wait_for_phase("holder", "Running")
    (pod,) = pool.pods("holder")
    pool.plane.stop_kubelet(pool.node(0))
    pool.edit("holder", cancel=True)
    pool.wait("it stops", lambda: pool.condition("holder", "Terminating").get("status") == "True")
    pool.submit("waits", pods=1, gpus=4)
    name = f"pod {pod['metadata']['name']} on {pool.node(0)}"
    held = f"job {pool.namespace}/holder holds 4 GPUs until {name} has ended"
    pool.wait_for_reason("waits", "InsufficientResources", held)
    pool.wait(
        "the pod is named, once its grace period is over",
        lambda: pool.condition("holder", "Terminating").get("message") == f"{name} has not ended",
    )
    pool.plane.resume_kubelet(pool.node(0))
    pool.wait_for_phase("waits", "Running")
    pool.wait("it has ended", lambda: pool.condition("holder", "Terminating").get("status") == "False")
