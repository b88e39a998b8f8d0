"""The podSecurity of queues, and pods of Muster's components in a namespace that enforces `restricted`."""

from __future__ import annotations

from tests.api.pod_security_templates import HARDENED, OF_POD
from tests.cluster.operator.pools import Pool

from muster.api.pod_security import NO_VIOLATIONS, pod_security_violations
from muster.torchx.appdef import to_training_job
from muster.torchx.kubernetes import with_cluster_settings
from muster.torchx.settings import resolve_settings
from muster_components.train import fsdp

ENFORCED = {"pod-security.kubernetes.io/enforce": "restricted"}


def test_a_job_whose_template_its_queue_forbids_waits_with_the_field_until_either_is_changed(pool: Pool) -> None:
    pool.set_up(nodes=1)
    pool.edit_queue("all", podSecurity="restricted")
    pool.submit("plain", pods=1)
    message = pool.wait_for_reason("plain", "PodRejected")
    assert "spec.containers[0].securityContext.allowPrivilegeEscalation must be false" in message
    assert f"podSecurity of queue {pool.queue('red')} is restricted" in message
    container = {"name": "main", "image": "none", "securityContext": HARDENED}
    pool.submit("hardened", pods=1, gpus=0, pod={"containers": [container], "securityContext": OF_POD})
    pool.wait_for_phase("hardened", "Running")
    pool.edit_queue("red", podSecurity="baseline")
    pool.wait_for_phase("plain", "Running")
    pool.edit_queue("red", podSecurity=None)
    pool.submit("later", pods=1)
    pool.wait_for_reason("later", "PodRejected")
    assert pool.phase("plain") == "Running"  # a level evicts nothing


def test_pods_of_musters_components_run_where_the_api_server_enforces_restricted(pool: Pool) -> None:
    pool.set_up(nodes=1)
    pool.api.patch(f"/api/v1/namespaces/{pool.namespace}", {"metadata": {"labels": ENFORCED}})
    app = fsdp(model="gpt:10m", data="/data", j="2x1", cpu=1, gpu=1, image="registry.example.com/muster-trainer:1",
               trace_steps="20:25")  # fmt: skip
    options = {"queue": pool.queue("red")}
    job = with_cluster_settings(
        to_training_job(app, "trained", options, namespace=pool.namespace), app, resolve_settings(options, app.metadata)
    )
    pool.wait_until_seen()
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    pool.api.create(f"/apis/muster.dev/v1alpha1/namespaces/{pool.namespace}/trainingjobs", document)
    pool.wait_for_phase("trained", "Running")
    pods = pool.pods("trained")
    assert [len(pod["spec"]["initContainers"]) for pod in pods] == [1, 1], "each has a collector"
    for pod in pods:
        assert pod_security_violations({"spec": pod["spec"]}) is NO_VIOLATIONS
