"""From cached jobs and dry-run results to the ObservedState."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.caches import FakeDryRuns, new_cache, relist, report_dry_runs
from tests.operator.objects import job_document, job_seen, read, template

from muster.api import spec
from muster.api.spec.pods import pod_request
from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.objects import RawCustomObject
from muster_operator.cache.cached_job import DryRunResult
from muster_operator.dry_run import compare_pod


def test_a_job_is_visible_once_its_dry_runs_have_results() -> None:
    dry_runs = FakeDryRuns(None)
    cache, _ = new_cache(dry_runs)
    cache.jobs.on_upsert(job_seen())
    assert training_jobs(cache.observe().workloads) == ()
    assert dry_runs.requested == ["uid-llama"]
    dry_runs.answer = DryRunResult()
    report_dry_runs(cache)
    assert [job.metadata.name for job in training_jobs(cache.observe().workloads)] == ["llama"]


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "Admitted", "status": "True", "reason": "Admitted"}]},
        {"conditions": [{"type": "Suspended", "status": "True", "reason": "Suspended"}]},
        {"nomination": {"placement": [], "expiresAt": "2026-11-21T11:00:00Z"}},
    ],
    ids=["admitted", "suspended", "has a nomination"],
)
def test_a_job_admitted_by_an_earlier_leader_is_visible_before_its_dry_runs(
    status: dict[str, Any],
) -> None:
    dry_runs = FakeDryRuns(None)
    cache, _ = new_cache(dry_runs)
    document = job_document()
    document["status"] = status
    for condition in status.get("conditions", ()):
        condition["lastTransitionTime"] = "2026-11-21T10:00:00Z"
    cache.jobs.on_upsert(read(type(job_seen()), document))
    assert len(training_jobs(cache.observe().workloads)) == 1
    assert dry_runs.requested == ["uid-llama"]
    pod = spec.PodSpec.model_validate(template(overhead={"cpu": "250m"})["spec"])
    dry_runs.answer = DryRunResult(pod=pod)
    report_dry_runs(cache)
    (job,) = training_jobs(cache.observe().workloads)
    assert job.spec.roles[0].template.spec.overhead == {"cpu": "250m"}


def test_what_a_pod_is_admitted_with_has_the_additions_of_the_api_server_also_of_a_job_deleted_meanwhile() -> None:
    pod = spec.PodSpec.model_validate(template(overhead={"cpu": "250m"})["spec"])
    cache, _ = new_cache(FakeDryRuns(DryRunResult(pod=pod)))
    cache.jobs.on_upsert(job_seen())
    known = cache.jobs.get("uid-llama")
    assert known is not None
    assert cache.jobs.admitted_request(known, "trainer") == pod_request(pod)
    cache.jobs.on_delete(job_seen(version=2))
    assert cache.jobs.admitted_request(known, "trainer") == known.templates["trainer"].request


def test_a_job_evicted_before_its_dry_runs_is_visible_and_not_admitted() -> None:
    dry_runs = FakeDryRuns(None)
    cache, changes = new_cache(dry_runs)
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document(), "status": {"attempt": 1, "conditions": [ADMITTED]}}))
    evicted = spec.TrainingJobStatus(phase="Pending", attempt=2)
    assert changes.during(lambda: cache.jobs.on_status_written("uid-llama", evicted, 7)) > 0
    observed = cache.observe()
    (job,) = training_jobs(observed.workloads)
    assert (job.status, job.metadata.resource_version) == (evicted, "7")
    assert "dry run" in observed.pod_rejections["uid-llama"]
    dry_runs.answer = DryRunResult()
    report_dry_runs(cache)
    assert cache.observe().pod_rejections == {}


def test_a_visible_job_that_is_edited_is_not_admitted_before_its_new_dry_run() -> None:
    dry_runs = FakeDryRuns()
    cache, _ = new_cache(dry_runs)
    cache.jobs.on_upsert(job_seen())
    dry_runs.answer = None
    edited = job_document(version=2)
    edited["spec"]["cancel"] = True
    edited["spec"]["roles"][0]["template"]["metadata"] = {"annotations": {"edited": "yes"}}
    cache.jobs.on_upsert(read(RawCustomObject, edited))
    observed = cache.observe()
    (job,) = training_jobs(observed.workloads)
    assert (job.spec.cancel, job.metadata.resource_version) == (True, "2")
    assert observed.pod_rejections.keys() == {"uid-llama"}


def test_dry_run_results_of_a_visible_job_outlive_the_result_cache() -> None:
    dry_runs = FakeDryRuns(DryRunResult(pod=pod_asking("2")))
    cache, _ = new_cache(dry_runs)
    cache.jobs.on_upsert(job_seen())
    dry_runs.answer = None
    waiting = spec.TrainingJobStatus(phase="Pending", reason="InsufficientResources")
    cache.jobs.on_status_written("uid-llama", waiting, 7)
    observed = cache.observe()
    (job,) = training_jobs(observed.workloads)
    assert (job.status, observed.pod_rejections) == (waiting, {})
    assert job.spec.roles[0].template.spec.containers[0].resources.requests == {"cpu": "2"}


def test_a_finished_job_is_visible_without_a_dry_run() -> None:
    dry_runs = FakeDryRuns(None)
    cache, _ = new_cache(dry_runs)
    done = {"type": "Complete", "status": "True", "reason": "Completed", "lastTransitionTime": "2026-11-21T10:00:00Z"}
    document = job_document()
    document["status"] = {"conditions": [done]}
    cache.jobs.on_upsert(read(type(job_seen()), document))
    assert len(training_jobs(cache.observe().workloads)) == 1
    assert dry_runs.requested == []


def test_a_job_is_visible_with_its_effective_pods() -> None:
    pod = spec.PodSpec.model_validate(template(overhead={"cpu": "250m"})["spec"])
    cache, _ = new_cache(FakeDryRuns(DryRunResult(pod=pod)))
    cache.jobs.on_upsert(job_seen())
    (job,) = training_jobs(cache.observe().workloads)
    assert job.spec.roles[0].template.spec.overhead == {"cpu": "250m"}
    known = cache.jobs.get("uid-llama")
    assert known is not None
    assert known.job.spec.roles[0].template.spec.overhead == {}


def test_a_job_whose_pods_would_be_rejected_has_the_reason_until_it_is_fixed() -> None:
    dry_runs = FakeDryRuns(DryRunResult(rejection="no such account"))
    cache, _ = new_cache(dry_runs)
    cache.jobs.on_upsert(job_seen())
    assert cache.observe().pod_rejections == {"uid-llama": "no such account"}
    dry_runs.answer = DryRunResult()
    report_dry_runs(cache)
    assert cache.observe().pod_rejections == {}


def test_our_status_counts_at_once_and_its_event_is_no_change() -> None:
    cache, changes = new_cache()
    cache.jobs.on_upsert(job_seen())
    status = spec.TrainingJobStatus(phase="Admitted", attempt=2)
    cache.jobs.on_status_written("uid-llama", status, 7)
    (job,) = training_jobs(cache.observe().workloads)
    assert job.status is status
    assert job.metadata.resource_version == "7"
    assert changes.during(lambda: cache.jobs.on_upsert(job_seen(version=7))) == 0
    assert training_jobs(cache.observe().workloads)[0] is job


def test_unchanged_parts_of_a_job_keep_their_identity() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen(version=1))
    (before,) = training_jobs(cache.observe().workloads)
    cache.jobs.on_upsert(job_seen(version=2))
    (after,) = training_jobs(cache.observe().workloads)
    assert after is not before
    assert after.spec is before.spec
    assert after.status is before.status


def test_a_job_of_the_same_name_is_another_job() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen())
    document = job_document(version=9)
    document["metadata"]["uid"] = "uid-2"
    cache.jobs.on_upsert(read(type(job_seen()), document))
    assert [job.metadata.uid for job in training_jobs(cache.observe().workloads)] == ["uid-2"]


def test_an_invalid_job_hides_no_other() -> None:
    cache, _ = new_cache()
    broken = job_document("broken")
    broken["spec"]["roles"] = "none"
    cache.jobs.on_upsert(read(type(job_seen()), broken))
    cache.jobs.on_upsert(job_seen())
    assert [job.metadata.name for job in training_jobs(cache.observe().workloads)] == ["llama"]
    assert cache.jobs.invalid["team/broken"].error == "spec.roles: must be a list; got 'none'"


def test_a_pending_job_edited_into_an_invalid_one_is_not_visible_until_fixed() -> None:
    cache, changes = new_cache()
    cache.jobs.on_upsert(job_seen())
    assert changes.during(lambda: cache.jobs.on_upsert(unreadable(version=2))) > 0
    assert training_jobs(cache.observe().workloads) == ()
    cache.jobs.on_upsert(job_seen(version=3))
    assert [job.metadata.name for job in training_jobs(cache.observe().workloads)] == ["llama"]
    assert cache.jobs.invalid == {}


def test_an_admitted_job_stays_visible_as_before_an_invalid_edit() -> None:
    cache, _ = new_cache()
    admitted = {
        "type": "Admitted",
        "status": "True",
        "reason": "Admitted",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    status = {"conditions": [admitted]}
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document(), "status": status}))
    edited = job_document(version=2)
    edited["metadata"]["generation"] = 2
    cache.jobs.on_upsert(
        read(RawCustomObject, {**edited, "status": status, "spec": {**edited["spec"], "roles": "none"}})
    )
    (shown,) = training_jobs(cache.observe().workloads)
    assert (shown.spec.roles[0].replicas, shown.metadata.generation, shown.metadata.resource_version) == (2, 1, "2")
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document(version=3), "status": status}))
    assert (cache.jobs.invalid, len(training_jobs(cache.observe().workloads))) == ({}, 1)


def test_an_invalid_job_missing_from_a_list_is_forgotten() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(unreadable())
    relist(cache.jobs, [job_seen("other")], 9)
    assert cache.jobs.invalid == {}


def unreadable(version: int = 1) -> RawCustomObject:
    document = job_document(version=version)
    document["spec"]["roles"] = "none"
    return read(RawCustomObject, document)


def test_no_job_counts_as_stalled_without_heartbeats() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen(stallTimeoutSeconds=60))
    assert training_jobs(cache.observe().workloads)[0].spec.stall_timeout_seconds is None


def test_a_new_job_waits_for_a_new_dry_run_if_the_result_is_old() -> None:
    dry_runs = FakeDryRuns()
    cache, _ = new_cache(dry_runs)
    cache.jobs.on_upsert(job_seen("before"))
    dry_runs.old = True
    cache.jobs.on_upsert(job_seen("new"))
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document("runs"), "status": {"conditions": [ADMITTED]}}))
    assert ([job.metadata.name for job in training_jobs(cache.observe().workloads)], dry_runs.requested) == (
        ["before", "runs"],
        ["uid-new"],
    )
    dry_runs.old = False
    report_dry_runs(cache)
    assert len(training_jobs(cache.observe().workloads)) == 3


def test_an_admitted_job_keeps_the_dry_run_result_of_its_pods() -> None:
    dry_runs = FakeDryRuns(DryRunResult(pod=pod_asking("2")))
    cache, _ = new_cache(dry_runs)
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document("runs"), "status": {"conditions": [ADMITTED]}}))
    cache.jobs.on_upsert(job_seen("waits"))
    dry_runs.answer = DryRunResult(pod=pod_asking("1"))
    report_dry_runs(cache)
    requested = {
        job.metadata.name: job.spec.roles[0].template.spec.containers[0]
        for job in training_jobs(cache.observe().workloads)
    }
    assert {name: one.resources.requests for name, one in requested.items()} == {
        "runs": {"cpu": "2"},
        "waits": {"cpu": "1"},
    }


ADMITTED = {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": "2026-11-21T10:00:00Z"}


def pod_asking(cores: str) -> spec.PodSpec:
    return spec.PodSpec.model_validate({"containers": [{"resources": {"requests": {"cpu": cores}}}]})


def test_jobs_of_one_template_share_it() -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen("a"))
    cache.jobs.on_upsert(job_seen("b"))
    one, two = training_jobs(cache.observe().workloads)
    assert one.spec.roles[0].template is two.spec.roles[0].template


# ---- dry-run results


def answered(**of_spec: Any) -> dict[str, Any]:
    wanted = template()["spec"]
    by_default = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
    return {**wanted, "schedulerName": "default-scheduler", "tolerations": by_default, **of_spec}


def test_a_dry_run_that_adds_only_defaults_changes_nothing() -> None:
    written = spec.PodSpec.model_validate(template()["spec"])
    assert compare_pod(written, answered()) == DryRunResult()


def test_a_dry_run_that_adds_a_sidecar_gives_the_effective_request() -> None:
    written = spec.PodSpec.model_validate(template()["spec"])
    side = {"name": "mesh", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}}
    result = compare_pod(written, answered(initContainers=[side]))
    assert result.pod is not None
    assert result.pod.init_containers[0].name == "mesh"


def test_a_dry_run_that_adds_pod_level_requests_gives_the_effective_request() -> None:
    written = spec.PodSpec.model_validate(template()["spec"])
    result = compare_pod(written, answered(resources={"requests": {"cpu": "64"}}))
    assert result.pod is not None
    assert pod_request(result.pod).get("cpu") == 64_000


def test_a_dry_run_that_drops_pod_level_requests_ignores_them() -> None:
    written = spec.PodSpec.model_validate({**template()["spec"], "resources": {"requests": {"cpu": "64"}}})
    result = compare_pod(written, answered())
    assert result.pod is not None
    assert pod_request(result.pod).get("cpu") == 0


def test_a_dry_run_that_adds_a_resource_claim_rejects_the_pod() -> None:
    written = spec.PodSpec.model_validate(template()["spec"])
    result = compare_pod(written, answered(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}]))
    assert "resourceClaims" in (result.rejection or "")


def test_jobs_with_equal_specs_share_the_parsed_spec() -> None:
    cache, _ = new_cache(FakeDryRuns())
    for name in ("one", "two"):
        document = job_document()
        document["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        cache.jobs.on_upsert(read(type(job_seen()), document))
    one, two = training_jobs(cache.observe().workloads)
    assert one.metadata.name != two.metadata.name
    assert one.spec is two.spec


def test_a_visible_job_is_unobserved_until_the_next_observation() -> None:
    dry_runs = FakeDryRuns(None)
    cache, _ = new_cache(dry_runs)
    cache.jobs.on_upsert(job_seen())
    assert not cache.jobs.has_unobserved()
    dry_runs.answer = DryRunResult()
    report_dry_runs(cache)
    assert cache.jobs.has_unobserved()
    cache.observe()
    assert not cache.jobs.has_unobserved()
    cache.jobs.on_upsert(job_seen())
    assert not cache.jobs.has_unobserved()


def test_jobs_with_their_first_status_are_counted_as_decided() -> None:
    cache, _ = new_cache(FakeDryRuns())
    cache.jobs.on_upsert(job_seen())
    assert cache.jobs.decided_count == 0
    cache.jobs.on_status_written("uid-llama", spec.TrainingJobStatus(submitted_at=5.0), 999)
    assert cache.jobs.decided_count == 1


def test_a_job_deleted_before_the_next_observation_is_not_unobserved() -> None:
    cache, _ = new_cache(FakeDryRuns())
    cache.jobs.on_upsert(job_seen())
    assert cache.jobs.has_unobserved()
    relist(cache.jobs, [], 10_000)
    assert not cache.jobs.has_unobserved()
