"""A status that an admission policy refuses for good: no job is evicted for nothing, and nothing loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.controlplane.api import Refused
from tests.cluster.operator.pools import GROUP, Pool
from tests.cluster.operator.process import Operator

ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@contextmanager
def policy(pool: Pool, expression: str, message: str) -> Iterator[None]:
    """A ValidatingAdmissionPolicy for the statuses of jobs of the test's namespace; it is in force in the body."""
    name, kind = f"{pool.namespace}-protect", "ValidatingAdmissionPolicy"
    rule = {"apiGroups": ["muster.dev"], "apiVersions": ["*"], "operations": ["UPDATE"]}
    spec = {
        "matchConstraints": {"resourceRules": [{**rule, "resources": ["trainingjobs/status"]}]},
        "validations": [
            {"expression": expression, "message": message},
            {"expression": "object.metadata.name != 'probe'", "message": "in force"},
        ],
    }
    ours = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": pool.namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": ours}
    pool.submit("probe", pods=1, suspend=True)
    pool.wait_for_phase("probe", "Suspended")
    pool.api.create(
        f"{ADMISSION}/validatingadmissionpolicies",
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec},
    )
    pool.api.create(
        f"{ADMISSION}/validatingadmissionpolicybindings",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}Binding",
            "metadata": {"name": name},
            "spec": binding,
        },
    )
    try:
        pool.wait("the policy is in force", lambda: _is_in_force(pool))
        yield
    finally:
        pool.api.delete(f"{ADMISSION}/validatingadmissionpolicybindings/{name}")
        pool.api.delete(f"{ADMISSION}/validatingadmissionpolicies/{name}")


def _is_in_force(pool: Pool) -> bool:
    path = f"{GROUP}/namespaces/{pool.namespace}/trainingjobs/probe/status?dryRun=All"
    try:
        pool.api.patch(path, {"status": {"reason": "Probe"}})
    except Refused as refused:
        return "in force" in str(refused)
    return False


def test_a_refused_eviction_is_not_repeated_and_the_other_victim_keeps_running(pool: Pool, operator: Operator) -> None:
    pool.set_up(nodes=2, gpus=4)
    for name in ("a", "b"):
        pool.submit(name, pods=4, queue="red")
        pool.wait_for_phase(name, "Running")
    running = {pod["metadata"]["uid"] for pod in pool.pods("a")}
    protected = "object.metadata.name != 'b' || !has(object.status.eviction)"
    with policy(pool, protected, "b is protected"):

        def calls(verb: str) -> float:
            return operator.api_calls(verb, "trainingjobs/status", "422")

        refused, tried = calls("PUT"), calls("DRY-RUN")
        pool.submit("p", pods=8, queue="red", priority=10)
        text = pool.wait_for_reason("p", "QuotaExceeded", "cannot be evicted")
        assert f"{pool.namespace}/b cannot be evicted" in text
        assert "b is protected" in text
        pool.wait_for_event("b", "StatusWriteFailed")
        pool.submit("other", pods=1, gpus=0, queue="red")  # scheduling goes on
        pool.wait_for_phase("other", "Running")
        pool.wait("b's eviction was tried as a dry run", lambda: calls("DRY-RUN") >= tried + 2)
        assert calls("PUT") == refused + 1, "a refused dry run leads to no other write"
        assert {pod["metadata"]["uid"] for pod in pool.pods("a")} == running
        assert (pool.phase("a"), pool.attempt("a"), "nomination" in pool.status("p")) == ("Running", 0, False)
        events = [*pool.events("a"), *pool.events("b"), *pool.events("p")]
        assert (events.count("Nominated"), events.count("StatusWriteFailed"), events.count("Preempted")) == (1, 1, 0)
    pool.wait_for_phase("p", "Running")
    pool.wait("a waits", lambda: bool(pool.waits_for("a")))


def test_a_refused_admission_gives_the_capacity_back_and_evicts_no_job_again(pool: Pool, operator: Operator) -> None:
    pool.set_up(nodes=1, gpus=4)
    pool.submit("a", pods=4, queue="red")
    pool.wait_for_phase("a", "Running")
    refused = "object.metadata.name != 'p' || object.status.phase != 'Admitted'"
    with policy(pool, refused, "p must not run"):
        pool.submit("p", pods=4, queue="red", priority=10)
        assert "p must not run" in pool.wait_for_reason("p", "StatusWriteFailed", "admission")
        pool.wait_for_attempt("a", 1)
        dry_runs = operator.api_calls("DRY-RUN", "trainingjobs/status", "422")
        pool.wait(
            "p's admission was tried as a dry run",
            lambda: operator.api_calls("DRY-RUN", "trainingjobs/status", "422") > dry_runs,
        )
        assert (pool.phase("a"), pool.attempt("a")) == ("Running", 1)
        assert pool.events("p").count("Nominated") == 1
    pool.wait_for_phase("p", "Running")
