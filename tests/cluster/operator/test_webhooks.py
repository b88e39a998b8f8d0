"""A webhook that does not answer delays only the jobs whose pods it is called for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.controlplane.api import Refused
from tests.cluster.operator.pools import Pool

HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@contextmanager
def silent_webhook(pool: Pool, of_job: str, operation: str) -> Iterator[None]:
    """One that must be asked about pods of this job, and listens nowhere."""
    name = f"{pool.namespace}-{operation.lower()}"
    rule = {"operations": [operation], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    hook = {
        "name": "silent.example.com",
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 1,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:9/silent"},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": pool.namespace}},
        "objectSelector": {"matchLabels": {"muster.dev/job": of_job}},
        "rules": [rule],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    pool.api.create(HOOKS, {**kind, "metadata": {"name": name}, "webhooks": [hook]})
    try:
        yield
    finally:
        pool.api.delete(f"{HOOKS}/{name}")


def is_asked(pool: Pool, of_job: str) -> bool:
    """Whether the API server knows the webhook by now."""
    container = {"name": "c", "image": "none"}
    meta = {"name": "probe", "namespace": pool.namespace, "labels": {"muster.dev/job": of_job}}
    probe: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
    try:
        pool.api.create(f"/api/v1/namespaces/{pool.namespace}/pods?dryRun=All", probe)
    except Refused as refused:
        return refused.code == 500
    return False


def test_other_jobs_start_while_a_webhook_fails_for_one_job_which_starts_once_it_is_removed(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.submit("bad", pods=1, suspend=True)
    pool.wait_for_phase("bad", "Suspended")  # its pods were tried
    with silent_webhook(pool, "bad", "CREATE"):
        pool.wait("the webhook is asked", lambda: is_asked(pool, "bad"))
        pool.edit("bad", suspend=False)
        pool.wait_for_phase("bad", "Admitted")
        pool.submit("good", pods=1, gpus=2)  # another template: that of "bad" counts as refused here
        pool.wait_for_phase("good", "Running")
        pool.wait("an Event tells why", lambda: "PodRejected" in pool.events("bad"))
        assert pool.phase("bad") == "Admitted"
    pool.wait_for_phase("bad", "Running")


def test_other_jobs_start_while_a_pod_cannot_be_deleted(pool: Pool) -> None:
    pool.set_up(nodes=2, gpus=4)
    pool.submit("bad", pods=1)
    pool.wait_for_phase("bad", "Running")
    with silent_webhook(pool, "bad", "DELETE"):
        pool.wait("the webhook is asked", lambda: _is_kept(pool, "bad"))
        pool.edit("bad", suspend=True)
        pool.wait("an Event tells why", lambda: "FailedDelete" in pool.events("bad"))
        pool.submit("good", pods=1, gpus=2)  # another template: that of "bad" counts as refused here
        pool.wait_for_phase("good", "Running")
    pool.wait("its pod is gone", lambda: not pool.pods("bad"))


def _is_kept(pool: Pool, of_job: str) -> bool:
    (pod,) = pool.pods(of_job)
    path = f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}"
    try:
        pool.api.delete(path, dryRun=["All"])
    except Refused as refused:
        return refused.code == 500
    return False
