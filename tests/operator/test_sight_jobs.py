"""From cached jobs and dry-run results to the ObservedState."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.objects import job_document, job_seen, read, template
from tests.operator.seeing import Knowing, relist, sight, tell

from muster import spec
from muster.snapshot import pod_request
from muster_operator.cache.cached_job import DryRunResult
from muster_operator.cache.k8s_types import RawTrainingJob
from muster_operator.dry_run import compare_pod


def test_a_job_is_shown_once_its_templates_are_known() -> None:
    knowing = Knowing(None)
    seen, _ = sight(knowing)
    seen.jobs.on_upsert(job_seen())
    assert seen.observe().jobs == ()
    assert knowing.asked == ["uid-llama"]
    knowing.answer = DryRunResult()
    tell(seen)
    assert [job.metadata.name for job in seen.observe().jobs] == ["llama"]


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "Admitted", "status": "True", "reason": "Admitted"}]},
        {"conditions": [{"type": "Suspended", "status": "True", "reason": "Suspended"}]},
        {"nomination": {"placement": [], "expiresAt": "2026-11-21T11:00:00Z"}},
    ],
    ids=["admitted", "suspended", "holds room"],
)
def test_a_job_that_an_earlier_leader_gave_room_is_shown_before_its_templates_are_known(
    status: dict[str, Any],
) -> None:
    knowing = Knowing(None)
    seen, _ = sight(knowing)
    document = job_document()
    document["status"] = status
    for condition in status.get("conditions", ()):
        condition["lastTransitionTime"] = "2026-11-21T10:00:00Z"
    seen.jobs.on_upsert(read(type(job_seen()), document))
    assert len(seen.observe().jobs) == 1
    assert knowing.asked == ["uid-llama"]
    pod = spec.PodSpec.model_validate(template(overhead={"cpu": "250m"})["spec"])
    knowing.answer = DryRunResult(pod=pod)
    tell(seen)
    (job,) = seen.observe().jobs
    assert job.spec.roles[0].template.spec.overhead == {"cpu": "250m"}


def test_a_job_that_loses_its_room_before_its_templates_are_known_is_shown_as_it_is_now_and_gets_none() -> None:
    knowing = Knowing(None)
    seen, changes = sight(knowing)
    seen.jobs.on_upsert(read(RawTrainingJob, {**job_document(), "status": {"attempt": 1, "conditions": [ADMITTED]}}))
    evicted = spec.TrainingJobStatus(phase="Pending", attempt=2)
    assert changes.during(lambda: seen.jobs.on_status_written("uid-llama", evicted, 7)) > 0
    world = seen.observe()
    (job,) = world.jobs
    assert (job.status, job.metadata.resource_version) == (evicted, "7")
    assert "dry run" in world.pod_rejections["uid-llama"]
    knowing.answer = DryRunResult()
    tell(seen)
    assert seen.observe().pod_rejections == {}


def test_a_job_that_is_shown_and_edited_is_shown_as_it_is_now_and_gets_no_room_until_its_pods_were_tried() -> None:
    knowing = Knowing()
    seen, _ = sight(knowing)
    seen.jobs.on_upsert(job_seen())
    knowing.answer = None
    edited = job_document(version=2)
    edited["spec"]["cancel"] = True
    edited["spec"]["roles"][0]["template"]["metadata"] = {"annotations": {"edited": "yes"}}
    seen.jobs.on_upsert(read(RawTrainingJob, edited))
    world = seen.observe()
    (job,) = world.jobs
    assert (job.spec.cancel, job.metadata.resource_version) == (True, "2")
    assert world.pod_rejections.keys() == {"uid-llama"}


def test_what_was_learned_of_a_job_counts_on_when_verdicts_are_forgotten() -> None:
    knowing = Knowing(DryRunResult(pod=pod_asking("2")))
    seen, _ = sight(knowing)
    seen.jobs.on_upsert(job_seen())
    knowing.answer = None
    waiting = spec.TrainingJobStatus(phase="Pending", reason="InsufficientResources")
    seen.jobs.on_status_written("uid-llama", waiting, 7)
    world = seen.observe()
    (job,) = world.jobs
    assert (job.status, world.pod_rejections) == (waiting, {})
    assert job.spec.roles[0].template.spec.containers[0].resources.requests == {"cpu": "2"}


def test_a_finished_job_is_shown_without_asking() -> None:
    knowing = Knowing(None)
    seen, _ = sight(knowing)
    done = {"type": "Complete", "status": "True", "reason": "Completed", "lastTransitionTime": "2026-11-21T10:00:00Z"}
    document = job_document()
    document["status"] = {"conditions": [done]}
    seen.jobs.on_upsert(read(type(job_seen()), document))
    assert len(seen.observe().jobs) == 1
    assert knowing.asked == []


def test_a_job_is_shown_with_what_its_pods_really_ask_for() -> None:
    pod = spec.PodSpec.model_validate(template(overhead={"cpu": "250m"})["spec"])
    seen, _ = sight(Knowing(DryRunResult(pod=pod)))
    seen.jobs.on_upsert(job_seen())
    (job,) = seen.observe().jobs
    assert job.spec.roles[0].template.spec.overhead == {"cpu": "250m"}
    known = seen.jobs.get("uid-llama")
    assert known is not None
    assert known.job.spec.roles[0].template.spec.overhead == {}


def test_a_job_whose_pods_would_be_refused_is_shown_with_the_reason_until_it_heals() -> None:
    knowing = Knowing(DryRunResult(refusal="no such account"))
    seen, _ = sight(knowing)
    seen.jobs.on_upsert(job_seen())
    assert seen.observe().pod_rejections == {"uid-llama": "no such account"}
    knowing.answer = DryRunResult()
    tell(seen)
    assert seen.observe().pod_rejections == {}


def test_our_status_counts_at_once_and_its_event_is_no_news() -> None:
    seen, changes = sight()
    seen.jobs.on_upsert(job_seen())
    status = spec.TrainingJobStatus(phase="Admitted", attempt=2)
    seen.jobs.on_status_written("uid-llama", status, 7)
    (job,) = seen.observe().jobs
    assert job.status is status
    assert job.metadata.resource_version == "7"
    assert changes.during(lambda: seen.jobs.on_upsert(job_seen(version=7))) == 0
    assert seen.observe().jobs[0] is job


def test_what_did_not_change_of_a_job_keeps_its_identity() -> None:
    seen, _ = sight()
    seen.jobs.on_upsert(job_seen(version=1))
    (before,) = seen.observe().jobs
    seen.jobs.on_upsert(job_seen(version=2))
    (after,) = seen.observe().jobs
    assert after is not before
    assert after.spec is before.spec
    assert after.status is before.status


def test_a_job_of_the_same_name_is_another_job() -> None:
    seen, _ = sight()
    seen.jobs.on_upsert(job_seen())
    document = job_document(version=9)
    document["metadata"]["uid"] = "uid-2"
    seen.jobs.on_upsert(read(type(job_seen()), document))
    assert [job.metadata.uid for job in seen.observe().jobs] == ["uid-2"]


def test_a_job_that_cannot_be_read_hides_nobody_else() -> None:
    seen, _ = sight()
    broken = job_document("broken")
    broken["spec"]["roles"] = "none"
    seen.jobs.on_upsert(read(type(job_seen()), broken))
    seen.jobs.on_upsert(job_seen())
    assert [job.metadata.name for job in seen.observe().jobs] == ["llama"]
    assert seen.jobs.invalid["team/broken"].error == "spec.roles: must be a list; got 'none'"


def test_a_job_that_is_edited_into_something_unreadable_is_gone_until_it_can_be_read_again() -> None:
    seen, changes = sight()
    seen.jobs.on_upsert(job_seen())
    assert changes.during(lambda: seen.jobs.on_upsert(unreadable(version=2))) > 0
    assert seen.observe().jobs == ()
    seen.jobs.on_upsert(job_seen(version=3))
    assert [job.metadata.name for job in seen.observe().jobs] == ["llama"]
    assert seen.jobs.invalid == {}


def test_a_job_with_room_is_shown_as_it_was_before_an_edit_that_cannot_be_read() -> None:
    seen, _ = sight()
    admitted = {
        "type": "Admitted",
        "status": "True",
        "reason": "Admitted",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    status = {"conditions": [admitted]}
    seen.jobs.on_upsert(read(RawTrainingJob, {**job_document(), "status": status}))
    edited = job_document(version=2)
    edited["metadata"]["generation"] = 2
    seen.jobs.on_upsert(read(RawTrainingJob, {**edited, "status": status, "spec": {**edited["spec"], "roles": "none"}}))
    (shown,) = seen.observe().jobs
    assert (shown.spec.roles[0].replicas, shown.metadata.generation, shown.metadata.resource_version) == (2, 1, "2")
    seen.jobs.on_upsert(read(RawTrainingJob, {**job_document(version=3), "status": status}))
    assert (seen.jobs.invalid, len(seen.observe().jobs)) == ({}, 1)


def test_what_cannot_be_read_and_is_gone_from_a_list_is_forgotten() -> None:
    seen, _ = sight()
    seen.jobs.on_upsert(unreadable())
    relist(seen.jobs, [job_seen("other")], 9)
    assert seen.jobs.invalid == {}


def unreadable(version: int = 1) -> RawTrainingJob:
    document = job_document(version=version)
    document["spec"]["roles"] = "none"
    return read(RawTrainingJob, document)


def test_no_job_looks_stuck_while_nobody_reads_its_beats() -> None:
    seen, _ = sight()
    seen.jobs.on_upsert(job_seen(stallTimeoutSeconds=60))
    assert seen.observe().jobs[0].spec.stall_timeout_seconds is None


def test_a_job_that_has_just_come_waits_for_a_new_verdict_where_the_one_that_is_known_is_old() -> None:
    knowing = Knowing()
    seen, _ = sight(knowing)
    seen.jobs.on_upsert(job_seen("before"))
    knowing.old = True
    seen.jobs.on_upsert(job_seen("new"))
    seen.jobs.on_upsert(read(RawTrainingJob, {**job_document("runs"), "status": {"conditions": [ADMITTED]}}))
    assert ([job.metadata.name for job in seen.observe().jobs], knowing.asked) == (["before", "runs"], ["uid-new"])
    knowing.old = False
    tell(seen)
    assert len(seen.observe().jobs) == 3


def test_a_job_with_room_keeps_what_its_pods_were_created_with() -> None:
    knowing = Knowing(DryRunResult(pod=pod_asking("2")))
    seen, _ = sight(knowing)
    seen.jobs.on_upsert(read(RawTrainingJob, {**job_document("runs"), "status": {"conditions": [ADMITTED]}}))
    seen.jobs.on_upsert(job_seen("waits"))
    knowing.answer = DryRunResult(pod=pod_asking("1"))
    tell(seen)
    asked = {job.metadata.name: job.spec.roles[0].template.spec.containers[0] for job in seen.observe().jobs}
    assert {name: one.resources.requests for name, one in asked.items()} == {
        "runs": {"cpu": "2"},
        "waits": {"cpu": "1"},
    }


ADMITTED = {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": "2026-11-21T10:00:00Z"}


def pod_asking(cores: str) -> spec.PodSpec:
    return spec.PodSpec.model_validate({"containers": [{"resources": {"requests": {"cpu": cores}}}]})


def test_jobs_of_one_template_share_it() -> None:
    seen, _ = sight()
    seen.jobs.on_upsert(job_seen("a"))
    seen.jobs.on_upsert(job_seen("b"))
    one, two = seen.observe().jobs
    assert one.spec.roles[0].template is two.spec.roles[0].template


# ---- dry-run results


def answered(**of_spec: Any) -> dict[str, Any]:
    wanted = template()["spec"]
    by_default = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]
    return {**wanted, "schedulerName": "default-scheduler", "tolerations": by_default, **of_spec}


def test_a_dry_run_that_adds_only_defaults_says_nothing_new() -> None:
    written = spec.PodSpec.model_validate(template()["spec"])
    assert compare_pod(written, answered()) == DryRunResult()


def test_a_dry_run_that_adds_a_sidecar_tells_what_the_pod_really_asks_for() -> None:
    written = spec.PodSpec.model_validate(template()["spec"])
    side = {"name": "mesh", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}}
    verdict = compare_pod(written, answered(initContainers=[side]))
    assert verdict.pod is not None
    assert verdict.pod.init_containers[0].name == "mesh"


def test_a_dry_run_that_adds_requests_of_the_whole_pod_tells_what_it_really_asks_for() -> None:
    written = spec.PodSpec.model_validate(template()["spec"])
    verdict = compare_pod(written, answered(resources={"requests": {"cpu": "64"}}))
    assert verdict.pod is not None
    assert pod_request(verdict.pod).get("cpu") == 64_000


def test_a_dry_run_that_drops_requests_of_the_whole_pod_tells_that_they_do_not_count() -> None:
    written = spec.PodSpec.model_validate({**template()["spec"], "resources": {"requests": {"cpu": "64"}}})
    verdict = compare_pod(written, answered())
    assert verdict.pod is not None
    assert pod_request(verdict.pod).get("cpu") == 0


def test_a_dry_run_that_adds_a_claim_of_a_device_refuses_the_pod() -> None:
    written = spec.PodSpec.model_validate(template()["spec"])
    verdict = compare_pod(written, answered(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}]))
    assert "resourceClaims" in (verdict.refusal or "")


def test_jobs_that_were_written_alike_share_what_they_want() -> None:
    seen, _ = sight(Knowing())
    for name in ("one", "two"):
        document = job_document()
        document["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        seen.jobs.on_upsert(read(type(job_seen()), document))
    one, two = seen.observe().jobs
    assert one.metadata.name != two.metadata.name
    assert one.spec is two.spec


def test_a_new_job_is_unseen_from_when_it_is_shown_until_the_world_is_looked_at() -> None:
    knowing = Knowing(None)
    seen, _ = sight(knowing)
    seen.jobs.on_upsert(job_seen())
    assert not seen.jobs.has_unobserved()
    knowing.answer = DryRunResult()
    tell(seen)
    assert seen.jobs.has_unobserved()
    seen.observe()
    assert not seen.jobs.has_unobserved()
    seen.jobs.on_upsert(job_seen())
    assert not seen.jobs.has_unobserved()


def test_jobs_that_get_their_first_status_are_counted_as_served() -> None:
    seen, _ = sight(Knowing())
    seen.jobs.on_upsert(job_seen())
    assert seen.jobs.decided_count == 0
    seen.jobs.on_status_written("uid-llama", spec.TrainingJobStatus(submitted_at=5.0), 999)
    assert seen.jobs.decided_count == 1


def test_a_job_that_goes_before_anybody_looked_is_unseen_no_more() -> None:
    seen, _ = sight(Knowing())
    seen.jobs.on_upsert(job_seen())
    assert seen.jobs.has_unobserved()
    relist(seen.jobs, [], 10_000)
    assert not seen.jobs.has_unobserved()
