"""Batch Jobs that queue, and the Workloads of all kinds, in the part of a test of the cluster."""

from __future__ import annotations

from typing import Any

from tests.cluster.controlplane.nodes import GPU
from tests.cluster.operator.pools import GROUP, KWOK, Pool

Json = dict[str, Any]


def opt_in(pool: Pool) -> None:
    """Labelled objects of the namespace queue from now on."""
    pool.api.patch(f"/api/v1/namespaces/{pool.namespace}", {"metadata": {"labels": {"muster.dev/queueing": "enabled"}}})
    pool.wait_until_seen()


def pod(gpus: int = 4, **more: Any) -> Json:
    """The spec of a pod."""
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: str(gpus)}}}
    return {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 2, **more}


def does(**what: Any) -> dict[str, str]:
    """Annotations that KWOK reads."""
    return {f"{KWOK}{key.replace('_', '-')}": str(value) for key, value in what.items()}


def create_job(pool: Pool, name: str, pods: int = 2, gpus: int = 4, queue: str = "red", **more: Any) -> Json:
    """A batch Job, suspended unless `suspend` says otherwise; `does`: what its pods do; `pod`: fields of their spec."""
    annotations, extra = does(**more.pop("does", {})), more.pop("pod", {})
    template = {"metadata": {"annotations": annotations}, "spec": pod(gpus, **extra)}
    spec = {"suspend": True, "parallelism": pods, "completions": pods, "template": template, "backoffLimit": 0, **more}
    meta = {"name": name, "labels": {"muster.dev/queue": pool.queue(queue)}}
    return pool.api.create(jobs_path(pool), {"metadata": meta, "spec": spec})


def jobs_path(pool: Pool) -> str:
    """The Jobs of the namespace."""
    return f"/apis/batch/v1/namespaces/{pool.namespace}/jobs"


def workloads(pool: Pool) -> list[Json]:
    """All of the namespace."""
    return pool.api.items(f"{GROUP}/namespaces/{pool.namespace}/workloads")


def nodes_of_placement(pool: Pool, name: str) -> list[str]:
    """The nodes where the object of this name is placed."""
    placement = workload(pool, name).get("status", {}).get("placement", [])
    return sorted(share["node"] for part in placement for share in part["nodes"])


def workload(pool: Pool, name: str) -> Json:
    """The Workload of the object of this name; empty if it has none."""
    for one in workloads(pool):
        if one["spec"]["objectRef"]["name"] == name:
            return one
    return {}


def phase(pool: Pool, name: str) -> str:
    """Its phase; "" before it has one."""
    return str(workload(pool, name).get("status", {}).get("phase", ""))


def wait_for_phase(pool: Pool, name: str, wanted: str) -> None:
    """Wait until the object is in this phase."""
    pool.wait(f"{name} is {wanted}", lambda: phase(pool, name) == wanted)


def condition(pool: Pool, name: str, kind: str) -> Json:
    """A condition of its Workload; empty if it has none."""
    conditions = workload(pool, name).get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})


def waits_for(pool: Pool, name: str) -> str:
    """The reason why it is not admitted."""
    admitted = condition(pool, name, "Admitted")
    return str(admitted["reason"]) if admitted.get("status") == "False" else ""


def why(pool: Pool, name: str) -> str:
    """The sentence that says why it is not admitted."""
    return str(condition(pool, name, "Admitted").get("message", "")) if waits_for(pool, name) else ""


def pods_of(pool: Pool, uid: str) -> list[Json]:
    """The pods that the object of this uid controls."""
    return [one for one in pool.pods() if (one["metadata"].get("ownerReferences") or [{}])[0].get("uid") == uid]


def nodes_of(pool: Pool, uid: str) -> list[str]:
    """Where they are bound."""
    return sorted(str(one["spec"].get("nodeName", "")) for one in pods_of(pool, uid))
