"""A violation is reported when a pod of another kind runs beyond its admission, and when one is held without label."""

from __future__ import annotations

from typing import Any

import pytest
from tests.chaos_checker.history import GPU, History

RELEASED = "no pod of another kind is released beyond its admission"
LEFT_ALONE = "nothing is suspended that has no label"
GATE = {"schedulingGates": [{"name": "muster.dev/admission"}]}
Json = dict[str, Any]


def container(gpus: int = 1) -> Json:
    return {"containers": [{"name": "c", "resources": {"limits": {GPU: str(gpus)}}}]}


def job(history: History, name: str = "a", *, queue: str = "root", suspend: bool = False, **labels: str) -> None:
    meta = {"name": name, "namespace": "team", "uid": f"u-{name}", "labels": labels or {"muster.dev/queue": queue}}
    spec = {"suspend": suspend, "template": {"spec": container()}}
    history.put("Job", f"team/{name}", {"metadata": meta, "spec": spec})


def workload(history: History, *nodes: str, name: str = "a", attempt: int = 0, queue: str = "root") -> None:
    """Its Workload: admitted on these nodes, or waiting without any."""
    admitted = {"type": "Admitted", "status": "True" if nodes else "False", "reason": "x"}
    shares = [{"node": node, "indexes": str(index)} for index, node in enumerate(nodes)]
    placement = [{"role": "pods", "flavor": "any", "nodes": shares}] if nodes else []
    status = {"conditions": [admitted], "placement": placement, "attempt": attempt, "podsWanted": len(nodes)}
    reference = {"kind": "Job", "name": name, "uid": f"u-{name}"}
    meta = {"name": f"job-{name}", "namespace": "team", "uid": f"w-{name}"}
    spec = {"objectRef": reference, "queue": queue}
    history.put("Workload", f"team/job-{name}", {"metadata": meta, "spec": spec, "status": status})


def pod(history: History, name: str, node: str = "", *, of: str = "a", attempt: int = 0, gated: bool = False) -> None:
    owner = {"kind": "Job", "apiVersion": "batch/v1", "uid": f"u-{of}", "controller": True}
    labels = {"muster.dev/attempt": str(attempt)}
    meta = {"name": name, "namespace": "team", "uid": f"u-{name}", "labels": labels, "ownerReferences": [owner]}
    spec = {**container(), **(GATE if gated else {}), **({"nodeName": node} if node else {})}
    history.put("Pod", f"team/{name}", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def test_pods_within_their_admission_are_no_violation() -> None:
    history = History()
    job(history)
    workload(history, "n0", "n1")
    for name, node in (("p", "n0"), ("q", "n1")):
        pod(history, name, gated=True)
        pod(history, name)
        pod(history, name, node)
    pod(history, "more", gated=True)
    assert history.rules == []


@pytest.mark.parametrize("nodes", [(), ("n0",)])
def test_a_pod_that_is_released_before_its_admission_or_in_another_attempt(nodes: tuple[str, ...]) -> None:
    history = History()
    job(history)
    workload(history, *nodes, attempt=1)
    pod(history, "p", gated=True)
    pod(history, "p")
    assert history.rules == [RELEASED]


def test_more_pods_than_were_admitted_and_one_on_another_node() -> None:
    history = History()
    job(history)
    workload(history, "n0")
    pod(history, "p", "n0")
    assert history.rules == []
    pod(history, "q")
    assert history.rules == [RELEASED]
    history = History()
    job(history)
    workload(history, "n0")
    pod(history, "p", "n1")
    assert history.rules == [RELEASED]


def test_an_object_of_another_kind_and_a_job_share_quota_and_nodes() -> None:
    history = History(nodes=1, gpus=2)
    history.running("first", "n0", queue="root")
    job(history)
    workload(history, "n0")
    assert history.rules == []
    job(history, "b")
    workload(history, "n0", name="b")
    assert set(history.rules) == {"admitted within quota", "no node is assigned beyond its capacity"}


def test_an_object_without_the_label_is_suspended() -> None:
    history = History()
    job(history, other="x")
    job(history, other="x", suspend=True)
    assert history.rules == [LEFT_ALONE]
    history = History()
    job(history)
    job(history, suspend=True)
    assert history.rules == []
