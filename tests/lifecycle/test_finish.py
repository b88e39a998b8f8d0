from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.lifecycle.cases import (
    BOUNDS,
    NOW,
    admitted,
    condition,
    created,
    deleted,
    events,
    failed,
    job,
    pods_of,
    reconcile,
    running,
    with_status,
)  # fmt: skip

from muster.api import spec
from muster.cluster import DeletePod, Heartbeat, PodView, RecordEvent, RemoveJob
from muster.heartbeats.parse import ClockReading, parse_heartbeat
from muster.model import Placement, RolePlacement, Wait
from muster.workload import transitions
from muster.workload.conditions import explain_phase, find_condition, is_finished, with_status_fields

DONE: Any = "Succeeded"


def two_roles() -> spec.TrainingJob:
    template = {"spec": {"containers": [{}], "terminationGracePeriodSeconds": 7}}
    roles = [
        {"name": "trainer", "replicas": 2, "template": template},
        {"name": "server", "replicas": 1, "essential": False, "template": template},
    ]
    placement: Placement = (RolePlacement("trainer", "f", (("n0", 2),)), RolePlacement("server", "f", (("n1", 1),)))
    wanted = spec.TrainingJob.model_validate({"metadata": {"name": "a", "uid": "u1"}, "spec": {"roles": roles}})
    one = admitted(wanted, placement=placement)
    return with_status(one, reconcile(one, pods_of(one)).status)


def with_phases(pods: tuple[PodView, ...], *phases: Any) -> tuple[PodView, ...]:
    return tuple(replace(pod, phase=phase, ready=phase == "Running") for pod, phase in zip(pods, phases, strict=True))


def test_complete_when_all_essential_pods_exit_0_and_the_others_are_stopped_gently() -> None:
    one = two_roles()
    pods = pods_of(one)
    assert reconcile(one, with_phases(pods, DONE, "Running", "Running")).status.phase == "Running"
    result = reconcile(one, with_phases(pods, DONE, DONE, "Running"), now=NOW + 9)
    assert result.status.phase == "Succeeded"
    assert result.status.finished_at is None
    stops = [action for action in result.writes if isinstance(action, DeletePod)]
    assert [(stop.name, stop.grace_s) for stop in stops] == [(pods[2].name, 7.0)]


def test_a_failing_pod_that_is_not_essential_fails_the_gang_but_not_once_the_work_is_done() -> None:
    one = two_roles()
    pods = pods_of(one)
    assert reconcile(one, (*pods[:2], failed(pods[2]))).status.restarts == 1
    done = with_phases(pods[:2], DONE, DONE)
    assert reconcile(one, (*done, failed(pods[2]))).status.phase == "Succeeded"


def test_completed_pods_keep_their_capacity_until_the_gang_ends() -> None:
    one = running()
    pods = pods_of(one)
    result = reconcile(one, with_phases(pods, DONE, "Running", "Running"))
    assert (deleted(result), created(result)) == ([], [])
    assert result.status.placement == one.status.placement


def test_max_runtime_bounds_the_admission_restarts_included() -> None:
    one = running(job(maxRuntimeSeconds=100))
    assert reconcile(one, pods_of(one)).wake_at == NOW + 100
    restarted = with_status(one, transitions.restart(one.status, "Restarting", "", NOW + 90, 60.0))
    result = reconcile(restarted, now=NOW + 100)
    assert condition(result.status, "Failed") == ("True", "MaxRuntimeExceeded")
    failed = next(one for one in result.status.conditions if one.type == "Failed")
    assert failed.message == "ran for its maxRuntimeSeconds of 100"
    ended = reconcile(one, pods_of(one), now=NOW + 100)
    assert deleted(ended) == [pod.name for pod in pods_of(one)]


@pytest.mark.parametrize(
    ("fields", "broken", "later_s"),
    [
        ({"cancel": True}, False, 0),
        ({"maxRuntimeSeconds": 100}, False, 100),
        ({"failurePolicy": {"maxRestarts": 0}}, True, 0),
    ],
)
def test_no_pod_of_a_job_that_has_ended_counts_as_ready(fields: Any, broken: bool, later_s: float) -> None:
    one = running(job())
    assert one.status.pods_ready == 3
    one = one.model_copy(update={"spec": job(**fields).spec})
    pods = pods_of(one)
    ended = reconcile(one, (failed(pods[0]), *pods[1:]) if broken else pods, now=NOW + later_s).status
    assert (is_finished(ended), ended.pods_ready, ended.pods_wanted) == (True, 0, 3)


def test_max_runtime_starts_anew_after_a_requeue() -> None:
    one = running(job(maxRuntimeSeconds=100))
    evicted = with_status(one, transitions.evict(one.status, "Preempted", "", NOW + 90))
    waiting = reconcile(evicted, now=NOW + 95).status
    assert waiting.admitted_at is None
    again = with_status(one, transitions.admit(waiting, (RolePlacement("trainer", "h200", (("n2", 3),)),), NOW + 200))
    assert reconcile(again, pods_of(again), now=NOW + 299).status.phase == "Running"


def test_no_step_for_too_long_is_a_failure() -> None:
    one = running(job(stallTimeoutSeconds=60))
    moving = Heartbeat(at=NOW + 50, step=5, step_changed_at=NOW + 50)
    assert reconcile(one, pods_of(one), now=NOW + 61, heartbeat=moving).wake_at == NOW + 110
    result = reconcile(one, pods_of(one), now=NOW + 110, heartbeat=moving)
    assert result.status.last_failure is not None
    assert result.status.last_failure.reason == "Stalled"
    assert result.status.restarts == 1


@pytest.mark.parametrize(
    "heartbeat",
    [
        None,
        Heartbeat(at=NOW - 500, step=99, step_changed_at=NOW - 500),  # of an earlier attempt
        Heartbeat(at=NOW + 5, step=99, step_changed_at=NOW - 500, attempt=7),
        Heartbeat(at=NOW + 5, step=99, step_changed_at=NOW - 5, has_stepped=False),  # compiles after a resume
    ],
)
def test_until_the_first_step_of_an_attempt_only_its_own_limit_holds(heartbeat: Heartbeat | None) -> None:
    one = running(job(stallTimeoutSeconds=60))
    assert reconcile(one, pods_of(one), now=NOW + 10_000, heartbeat=heartbeat).status.restarts == 0
    limited = running(job(stallTimeoutSeconds=60, firstStepTimeoutSeconds=300))
    assert reconcile(limited, pods_of(limited), now=NOW + 100, heartbeat=heartbeat).wake_at == NOW + 300
    late = reconcile(limited, pods_of(limited), now=NOW + 300, heartbeat=heartbeat).status
    assert late.restarts == 1
    assert late.last_failure is not None
    assert (late.last_failure.reason, late.last_failure.log_tail) == ("Stalled", "no step within 300 s of its start")


def test_after_the_first_step_its_limit_holds_no_longer() -> None:
    one = running(job(firstStepTimeoutSeconds=300))
    stepped = Heartbeat(at=NOW + 50, step=1, step_changed_at=NOW + 50, attempt=one.status.attempt)
    assert reconcile(one, pods_of(one), now=NOW + 10_000, heartbeat=stepped).status.restarts == 0


def watched(at: float, step: int | None) -> Heartbeat:
    """What is known of a program that reports nothing, from the checkpoint that the launcher found."""
    seen = parse_heartbeat({}, {"step": step, "at": at, "format": "DeepSpeed"}, ClockReading(at))
    assert seen is not None
    return seen


@pytest.mark.parametrize("step", [40, None])
def test_between_two_checkpoints_of_a_program_that_reports_no_steps_it_does_not_stall(step: int | None) -> None:
    one = running(job(stallTimeoutSeconds=60, firstStepTimeoutSeconds=300))
    saved = watched(NOW + 200, step)
    result = reconcile(one, pods_of(one), now=NOW + 10_000, heartbeat=saved)
    assert (result.status.restarts, result.wake_at) == (0, None)
    assert condition(result.status, "Stalled") == ("", "")
    assert result.status.last_checkpoint == spec.CheckpointStatus(step=step, at=NOW + 200)


def test_a_checkpoint_of_an_earlier_attempt_is_no_first_step() -> None:
    one = running(job(firstStepTimeoutSeconds=300))
    before = watched(NOW - 100, 40)
    assert reconcile(one, pods_of(one), now=NOW + 100, heartbeat=before).wake_at == NOW + 300
    late = reconcile(one, pods_of(one), now=NOW + 300, heartbeat=before).status
    assert (late.restarts, late.last_failure is not None) == (1, True)


def test_a_job_without_a_time_out_that_makes_no_step_for_long_has_a_condition_and_one_event() -> None:
    one = running()
    last = Heartbeat(at=NOW, step=40, step_changed_at=NOW, attempt=one.status.attempt, step_time_s=90.0)
    assert reconcile(one, pods_of(one), now=NOW + 1, heartbeat=last).wake_at == NOW + 900
    quick = replace(last, step_time_s=0.1)
    assert reconcile(one, pods_of(one), now=NOW + 1, heartbeat=quick).wake_at == NOW + 600
    stalled = reconcile(one, pods_of(one), now=NOW + 720, heartbeat=quick)
    message = "no step for 12 min after step 40; to see where its ranks are: muster trace a --stacks"
    assert condition(stalled.status, "Stalled") == ("True", "NoStep")
    (event,) = (write for write in stalled.writes if isinstance(write, RecordEvent))
    assert (event.type, event.reason, event.message) == ("Warning", "NoStep", message)
    again = with_status(one, stalled.status)
    assert reconcile(again, pods_of(one), now=NOW + 800, heartbeat=quick).writes == ()
    goes_on = replace(quick, step=41, step_changed_at=NOW + 810)
    assert condition(reconcile(again, pods_of(one), now=NOW + 811, heartbeat=goes_on).status, "Stalled")[0] == "False"


@pytest.mark.parametrize(
    "silent",
    [
        None,  # a new leader has not asked yet
        Heartbeat(at=NOW + 790, step=40, step_changed_at=NOW),  # what is left of one whose collector is silent
    ],
)
def test_a_stalled_job_whose_steps_are_not_known_any_more_stays_stalled(silent: Heartbeat | None) -> None:
    one = running()
    last = Heartbeat(at=NOW, step=40, step_changed_at=NOW, attempt=one.status.attempt, step_time_s=0.1)
    stalled = with_status(one, reconcile(one, pods_of(one), now=NOW + 720, heartbeat=last).status)
    later = reconcile(stalled, pods_of(one), now=NOW + 800, heartbeat=silent)
    assert condition(later.status, "Stalled") == ("True", "NoStep")
    assert later.writes == ()


def test_a_stalled_job_that_restarts_is_stalled_no_longer() -> None:
    one = running()
    last = Heartbeat(at=NOW, step=40, step_changed_at=NOW, attempt=one.status.attempt, step_time_s=0.1)
    stalled = with_status(one, reconcile(one, pods_of(one), now=NOW + 720, heartbeat=last).status)
    failed = tuple(replace(pod, phase="Failed", exit_code=1) for pod in pods_of(one))
    restarted = reconcile(stalled, failed, now=NOW + 800, heartbeat=last).status
    assert restarted.started_at is None
    assert condition(reconcile(with_status(one, restarted), now=NOW + 801).status, "Stalled")[0] == "False"


@pytest.mark.parametrize("fields", [{"stallTimeoutSeconds": 3600}, {"firstStepTimeoutSeconds": 3600}])
def test_a_job_with_a_time_out_of_steps_has_no_such_event(fields: dict[str, Any]) -> None:
    one = running(job(**fields))
    last = Heartbeat(at=NOW, step=40, step_changed_at=NOW, attempt=one.status.attempt, step_time_s=0.1)
    assert reconcile(one, pods_of(one), now=NOW + 720, heartbeat=last).writes == ()


def test_eviction_takes_all_pods_and_then_waits_again_under_its_first_submission() -> None:
    one = running()
    evicted = with_status(one, transitions.evict(one.status, "Preempted", "preempted for b", NOW + 5))
    result = reconcile(evicted, pods_of(one), now=NOW + 5)
    assert deleted(result) == [pod.name for pod in pods_of(one)]
    assert result.status.phase == "Running", "it has its capacity until its pods are gone"
    going = tuple(replace(pod, deleting=True) for pod in pods_of(one))
    assert reconcile(evicted, going, now=NOW + 6).writes == ()
    gone = reconcile(evicted, now=NOW + 7).status
    assert (gone.phase, gone.attempt, gone.restarts, gone.placement) == ("Pending", 1, 0, [])
    assert gone.submitted_at == one.status.submitted_at
    assert (gone.nomination, gone.requeue_after) == (None, None)


def test_pods_that_exit_0_because_they_were_evicted_do_not_complete_the_job() -> None:
    one = running()
    evicted = with_status(one, transitions.evict(one.status, "Preempted", "", NOW))
    stopped = tuple(replace(pod, phase="Succeeded", deleting=True) for pod in pods_of(one))
    assert reconcile(evicted, stopped).status.phase != "Succeeded"
    for step, attempt in ((59, 0), (60, 1)):
        heartbeat = Heartbeat(at=NOW + 1, step=step, step_changed_at=NOW, total_steps=60, attempt=attempt)
        assert reconcile(evicted, stopped, heartbeat=heartbeat).status.phase != "Succeeded"
    finished_before = with_phases(pods_of(one), DONE, DONE, DONE)
    assert reconcile(evicted, finished_before).status.phase == "Succeeded"


def test_pods_that_do_their_last_step_while_they_are_evicted_complete_the_job() -> None:
    one = running()
    evicted = with_status(one, transitions.evict(one.status, "Preempted", "", NOW))
    stopped = tuple(replace(pod, phase="Succeeded", deleting=True) for pod in pods_of(one))
    last = Heartbeat(at=NOW + 1, step=60, step_changed_at=NOW, total_steps=60, attempt=one.status.attempt)
    assert reconcile(evicted, stopped, heartbeat=last).status.phase == "Succeeded"
    running_still = (replace(stopped[0], phase="Running"), *stopped[1:])
    assert reconcile(evicted, running_still, heartbeat=last).status.phase != "Succeeded"


def test_stopped_pods_that_are_gone_one_after_another_complete_the_job_whose_last_step_is_done() -> None:
    one = running()
    evicted = with_status(one, transitions.evict(one.status, "Preempted", "", NOW))
    first, *others = (replace(pod, deleting=True) for pod in pods_of(one))
    gone = replace(first, phase="Succeeded", tombstone=True)
    early = reconcile(evicted, (gone, *others))
    assert (early.writes, early.status.finished_pods) == ((), []), "it stays visible; whether it completed is not known"
    rest = tuple(replace(pod, phase="Succeeded", tombstone=True) for pod in others)
    last = Heartbeat(at=NOW + 1, step=60, step_changed_at=NOW, total_steps=60, attempt=one.status.attempt)
    saved = replace(last, step=59, checkpoint_step=60, checkpoint_at=NOW + 1)
    for heartbeat in (last, saved):
        assert reconcile(evicted, (gone, *rest), heartbeat=heartbeat).status.phase == "Succeeded"
    requeued = reconcile(evicted, (gone, *rest))
    assert (requeued.status.phase, requeued.status.attempt) == ("Pending", 1)
    assert deleted(requeued) == [pod.name for pod in pods_of(one)], "their tombstones go with the decision"


def test_a_stopped_pod_is_recorded_as_completed_once_the_last_step_is_known_to_be_done() -> None:
    one = running()
    evicted = with_status(one, transitions.evict(one.status, "Preempted", "", NOW))
    first, *others = (replace(pod, deleting=True) for pod in pods_of(one))
    last = Heartbeat(at=NOW + 1, step=60, step_changed_at=NOW, total_steps=60, attempt=one.status.attempt)
    seen = reconcile(
        evicted,
        (replace(first, phase="Succeeded"), *others),
        heartbeat=last,
        timeouts=replace(BOUNDS, progress_refresh_s=60.0),
    ).status
    assert [(part.role, part.indexes) for part in seen.finished_pods] == [("trainer", "0")]
    # The next leader has neither seen that pod nor the heartbeat.
    rest = tuple(replace(pod, phase="Succeeded") for pod in others)
    assert reconcile(with_status(one, seen), rest).status.phase == "Succeeded"


def test_a_pod_that_another_client_stopped_and_that_is_gone_is_lost_unless_the_last_step_is_done() -> None:
    one = running()
    first, *others = pods_of(one)
    gone = replace(first, phase="Succeeded", deleting=True, tombstone=True)
    lost = reconcile(one, (gone, *others)).status
    assert condition(lost, "Evicted") == ("True", "PodLost")
    last = Heartbeat(at=NOW + 1, step=60, step_changed_at=NOW, total_steps=60, attempt=one.status.attempt)
    kept = reconcile(one, (gone, *others), heartbeat=last).status
    assert (kept.phase, kept.node_losses) == ("Running", 0)


def test_a_resize_is_a_new_attempt_with_dense_indexes_and_never_a_failure() -> None:
    one = running(job(least=1))
    smaller: Placement = (RolePlacement("trainer", "h200", (("n1", 2),)),)
    shrunk = with_status(one, transitions.resize(one.status, smaller, "Reclaimed", NOW + 5, eviction=None))
    assert (shrunk.status.attempt, shrunk.status.restarts, shrunk.status.resized_at) == (1, 0, NOW + 5)
    assert deleted(reconcile(shrunk, pods_of(one), now=NOW + 5)) == [pod.name for pod in pods_of(one)]
    result = reconcile(shrunk, now=NOW + 6)
    assert created(result) == [(0, "n1"), (1, "n1")]
    assert result.status.admitted_at == one.status.admitted_at


def test_lowering_replicas_restarts_the_gang_smaller_on_its_own_nodes() -> None:
    one = running()
    edited = with_status(job(2, least=1), one.status)
    result = reconcile(edited, pods_of(one), now=NOW + 5)
    assert result.status.pods_wanted == 2
    assert [(s.node, s.indexes) for part in result.status.placement for s in part.nodes] == [("n0", "0-1")]
    assert result.status.attempt == 1


def test_raising_min_replicas_above_its_size_queues_the_gang_again() -> None:
    one = running()
    result = reconcile(with_status(job(5), one.status), pods_of(one), now=NOW + 5)
    assert condition(result.status, "Evicted") == ("True", "Edited")


def test_suspend_releases_everything_and_resume_waits_again() -> None:
    one = running()
    paused = with_status(job(suspend=True), one.status)
    result = reconcile(paused, pods_of(one), now=NOW + 5)
    assert (result.status.phase, result.status.placement, result.status.nomination) == ("Suspended", [], None)
    assert deleted(result) == [pod.name for pod in pods_of(one)]
    resumed = with_status(job(), result.status)
    again = reconcile(resumed, now=NOW + 50)
    assert (again.status.phase, again.status.attempt, again.status.restarts) == ("Pending", 1, 0)
    assert again.status.submitted_at == one.status.submitted_at


def test_the_time_that_earlier_attempts_ran_is_kept_through_restarts_suspension_and_the_end() -> None:
    one = running()
    restarted = with_status(one, transitions.restart(one.status, "Failed", "", NOW + 5, 1.0))
    assert (restarted.status.started_at, restarted.status.ran_seconds) == (None, 5)
    ready = transitions.restart(restarted.status, "Failed", "never ready", NOW + 50, 1.0)
    assert ready.ran_seconds == 5
    second = with_status(one, one.status.model_copy(update={"ran_seconds": 5, "started_at": NOW + 60}))
    suspended = transitions.suspend(second.status, NOW + 100)
    assert suspended.ran_seconds == 45
    third = transitions.resume(suspended, NOW + 200).model_copy(update={"started_at": NOW + 300})
    over = transitions.finish(third, "Complete", "Succeeded", "", NOW + 310)
    assert (over.ran_seconds, over.started_at) == (45, NOW + 300)


def test_a_suspended_job_gives_its_nomination_back() -> None:
    one = job()
    waiting = reconcile(one).status
    hold = spec.NominationStatus(placement=[], victims=["v"], expires_at=NOW + 100)
    paused = with_status(job(suspend=True), waiting.model_copy(update={"nomination": hold}))
    assert reconcile(paused).status.nomination is None


def test_a_nomination_expires() -> None:
    hold = spec.NominationStatus(placement=[], expires_at=NOW + 100)
    one = with_status(job(), reconcile(job()).status.model_copy(update={"nomination": hold}))
    assert reconcile(one).wake_at == NOW + 100
    result = reconcile(one, now=NOW + 100)
    assert (result.status.nomination, events(result)) == (None, ["NominationExpired"])


ELSEWHERE = [{"name": "worker", "replicas": 3, "template": {"spec": {"containers": [{}]}}}]


@pytest.mark.parametrize(
    ("edited", "kept"),
    [
        (job(), True),
        (job(5, least=4), True),
        (job(flavors=["a100", "h200"]), True),
        (job(queue="elsewhere"), True),
        (job(2), False),
        (job(flavors=["a100"]), False),
        (job(roles=ELSEWHERE), False),
    ],
)  # fmt: skip
def test_a_nomination_ends_when_an_edit_leaves_no_such_pods(edited: spec.TrainingJob, kept: bool) -> None:
    hold = spec.NominationStatus(placement=admitted().status.placement, expires_at=NOW + 100)
    one = with_status(edited, reconcile(job()).status.model_copy(update={"nomination": hold}))
    result = reconcile(one)
    assert (result.status.nomination is not None, events(result)) == (kept, [] if kept else ["NominationLost"])


def test_cancel_is_for_good() -> None:
    one = running()
    result = reconcile(with_status(job(cancel=True), one.status), pods_of(one))
    assert condition(result.status, "Cancelled") == ("True", "Cancelled")
    assert find_condition(result.status, "Failed") is None
    assert len(deleted(result)) == 3
    back = with_status(job(cancel=False), result.status)
    assert reconcile(back).status.phase == "Cancelled"


def test_a_job_that_is_cancelled_while_it_waits_is_cancelled_at_once() -> None:
    waiting = reconcile(job()).status
    ended = reconcile(with_status(job(cancel=True), waiting), now=NOW + 5).status
    assert (ended.phase, ended.reason, ended.finished_at) == ("Cancelled", "Cancelled", NOW + 5)


def test_cancel_of_a_finished_job_changes_nothing() -> None:
    one = running()
    done = reconcile(one, with_phases(pods_of(one), DONE, DONE, DONE)).status
    assert reconcile(with_status(job(cancel=True), done)).status.phase == "Succeeded"


@pytest.mark.parametrize("requested", [job(cancel=True), job(suspend=True)], ids=["cancel", "suspend"])
def test_a_completed_job_has_succeeded_whatever_its_spec_requests_at_that_moment(requested: spec.TrainingJob) -> None:
    one = running()
    through = with_phases(pods_of(one), DONE, DONE, DONE)
    result = reconcile(with_status(requested, one.status), through, now=NOW + 5)
    assert (result.status.phase, result.status.finished_at) == ("Succeeded", NOW + 5)
    assert (events(result), deleted(result)) == (["Completed"], [])
    nearly = with_phases(pods_of(one), DONE, DONE, "Running")
    assert reconcile(with_status(requested, one.status), nearly).status.phase != "Succeeded"


def test_a_deleted_job_goes_when_its_last_pod_is_gone() -> None:
    one = running()
    meta = one.metadata.model_copy(update={"deletion_timestamp": NOW})
    dying = one.model_copy(update={"metadata": meta})
    result = reconcile(dying, pods_of(one))
    assert len(deleted(result)) == 3
    assert not any(isinstance(action, RemoveJob) for action in result.writes)
    assert reconcile(dying).writes == (RemoveJob("u1"),)


def test_a_deleted_job_that_a_finalizer_keeps_is_cancelled_once_its_pods_are_gone() -> None:
    one = running()
    meta = one.metadata.model_copy(update={"deletion_timestamp": NOW, "finalizers": ["example.com/hold"]})
    kept = one.model_copy(update={"metadata": meta})
    assert reconcile(kept, pods_of(one), now=NOW + 1).status.phase == "Running"
    ended = reconcile(kept, now=NOW + 2).status
    assert (ended.phase, ended.reason, ended.finished_at) == ("Cancelled", "Deleted", NOW + 2)
    assert reconcile(with_status(kept, ended), now=NOW + 3).status == ended


@pytest.mark.parametrize("finalizers", [[], ["foregroundDeletion"]])
def test_a_deleted_job_that_no_other_finalizer_keeps_is_not_shown_as_cancelled(finalizers: list[str]) -> None:
    one = running()
    meta = one.metadata.model_copy(update={"deletion_timestamp": NOW, "finalizers": finalizers})
    assert reconcile(one.model_copy(update={"metadata": meta}), now=NOW + 1).status.phase == "Running"


def test_a_finished_job_is_removed_after_its_time_and_not_while_pods_live() -> None:
    one = running(job(ttlSecondsAfterFinished=60))
    pods = with_phases(pods_of(one), DONE, DONE, DONE)
    done = with_status(one, reconcile(one, pods).status)
    assert reconcile(done, pods, now=NOW + 1).wake_at == NOW + 60
    assert reconcile(done, pods, now=NOW + 60).writes == (RemoveJob("u1"),)
    alive = (replace(pods[0], phase="Running", deleting=True), *pods[1:])
    assert reconcile(done, alive, now=NOW + 60).writes == ()


def test_a_finished_job_without_ttl_stays() -> None:
    one = running()
    done = with_status(one, reconcile(one, with_phases(pods_of(one), DONE, DONE, DONE)).status)
    result = reconcile(done, now=NOW + 10**7)
    assert (result.writes, result.wake_at) == ((), None)


def test_checkpoints_are_written_with_other_changes_and_alone_once_a_minute() -> None:
    one = running()
    first = Heartbeat(at=NOW + 1, step=10, step_changed_at=NOW + 1, checkpoint_step=10, checkpoint_at=NOW + 1)
    recorded = reconcile(one, pods_of(one), now=NOW + 1, heartbeat=first).status
    assert recorded.last_checkpoint == spec.CheckpointStatus(step=10, at=NOW + 1)
    next_one = replace(first, checkpoint_step=20, checkpoint_at=NOW + 30)
    held_back = reconcile(with_status(one, recorded), pods_of(one), now=NOW + 30, heartbeat=next_one)
    assert held_back.status is recorded
    assert held_back.wake_at == NOW + 61
    along = with_status(one, transitions.evict(recorded, "Preempted", "", NOW + 31))
    gone = reconcile(along, now=NOW + 31, heartbeat=next_one).status
    assert gone.last_checkpoint == spec.CheckpointStatus(step=20, at=NOW + 30)


def test_a_checkpoint_dated_in_the_future_counts_as_of_now_and_suppresses_no_later_one() -> None:
    one = running()
    ahead = Heartbeat(at=NOW + 1, step=10, step_changed_at=NOW + 1, checkpoint_step=10, checkpoint_at=NOW + 9000)
    recorded = reconcile(one, pods_of(one), now=NOW + 1, heartbeat=ahead).status
    assert recorded.last_checkpoint == spec.CheckpointStatus(step=10, at=NOW + 1)
    one = with_status(one, recorded)
    assert reconcile(one, pods_of(one), now=NOW + 500, heartbeat=ahead).status is recorded
    true = replace(ahead, checkpoint_step=20, checkpoint_at=NOW + 100)
    assert reconcile(one, pods_of(one), now=NOW + 101, heartbeat=true).status.last_checkpoint == spec.CheckpointStatus(
        step=20, at=NOW + 100
    )


def test_a_status_with_a_future_checkpoint_suppresses_no_later_one() -> None:
    wrong = with_status_fields(running().status, {"last_checkpoint": spec.CheckpointStatus(step=10, at=NOW + 9000)})
    one = with_status(running(), wrong)
    true = Heartbeat(at=NOW + 1, step=20, step_changed_at=NOW + 1, checkpoint_step=20, checkpoint_at=NOW + 1)
    recorded = reconcile(one, pods_of(one), now=NOW + 1, heartbeat=true).status
    assert recorded.last_checkpoint == spec.CheckpointStatus(step=20, at=NOW + 1)


def test_the_last_checkpoint_of_an_evicted_job_is_recorded_at_once() -> None:
    one = running()
    last = Heartbeat(at=NOW + 1, step=10, step_changed_at=NOW + 1, checkpoint_step=10, checkpoint_at=NOW + 1)
    recorded = reconcile(one, pods_of(one), now=NOW + 1, heartbeat=last).status
    saved = replace(last, checkpoint_step=12, checkpoint_at=NOW + 6)
    cancelled = transitions.finish(recorded, "Cancelled", "Cancelled", "", NOW + 2)
    for left in (cancelled, transitions.suspend(recorded, NOW + 2)):
        after = reconcile(with_status(one, left), now=NOW + 6, heartbeat=saved).status
        assert after.last_checkpoint == spec.CheckpointStatus(step=12, at=NOW + 6)


def test_a_cancelled_job_has_finished_when_its_last_process_has_ended_and_its_condition_tells_since_when() -> None:
    one = running()
    requested = with_status(job(cancel=True), one.status)
    pods = pods_of(one)
    cancelled = reconcile(requested, pods, now=NOW + 5).status
    assert (cancelled.phase, cancelled.reason, cancelled.finished_at) == ("Terminating", "Cancelled", None)
    requested = with_status(requested, cancelled)
    stopping = tuple(replace(pod, deleting=True) for pod in pods)
    assert reconcile(requested, stopping[1:], now=NOW + 20).status is cancelled
    ended = reconcile(requested, now=NOW + 35).status
    assert (ended.phase, ended.finished_at) == ("Cancelled", NOW + 35)
    (why,) = [entry for entry in ended.conditions if entry.type == "Cancelled"]
    assert (why.reason, why.last_transition_time) == ("Cancelled", NOW + 5)
    assert reconcile(with_status(requested, ended), now=NOW + 99).status is ended


def test_the_time_to_live_of_a_cancelled_job_begins_when_its_last_process_has_ended() -> None:
    wanted = job(cancel=True, ttlSecondsAfterFinished=60)
    requested = with_status(
        wanted, reconcile(with_status(wanted, running().status), pods_of(running()), now=NOW + 5).status
    )
    result = reconcile(requested, now=NOW + 90)
    assert (result.wake_at, result.writes) == (NOW + 150, ())


def test_a_wait_keeps_its_transition_time_while_only_its_words_change() -> None:
    waiting = reconcile(job()).status
    first = transitions.set_waiting(waiting, Wait("u1", "InsufficientResources", "4 free", 2, None), NOW)
    second = transitions.set_waiting(first, Wait("u1", "InsufficientResources", "5 free", 1, NOW + 60), NOW + 60)
    admitted_condition = second.conditions[0]
    assert (admitted_condition.message, admitted_condition.last_transition_time) == ("5 free", NOW)
    assert (second.queue_position, second.estimated_start) == (1, NOW + 60)


def terminating(status: spec.TrainingJobStatus) -> tuple[str, str, str]:
    found = next((one for one in status.conditions if one.type == "Terminating"), None)
    return ("", "", "") if found is None else (found.status, found.reason, found.message)


def test_a_failed_job_says_that_its_pods_run_and_which_has_not_ended_after_its_grace_period() -> None:
    one = running(job(failurePolicy={"maxRestarts": 0}))
    first, *others = pods_of(one)
    result = reconcile(one, (failed(first), *others), now=NOW + 10)
    assert result.status.phase == "Failed"
    assert terminating(result.status) == ("True", "Stopping", "its pods are being stopped")
    stopping = with_status(one, result.status)
    left = tuple(replace(pod, deleting=True) for pod in others)
    assert reconcile(stopping, left[1:], now=NOW + 20).status is stopping.status, "no write for each pod that ends"
    late = reconcile(stopping, left[1:], now=NOW + 70).status
    name = left[1].name
    assert terminating(late) == ("True", "NotEnding", f"pod {name} on n1 has not ended")
    assert explain_phase(late)[1].endswith(f"; pod {name} on n1 has not ended")
    ended = reconcile(with_status(one, late), (), now=NOW + 80).status
    assert (terminating(ended)[0], ended.finished_at) == ("False", NOW + 80)


def evicted_message(status: spec.TrainingJobStatus) -> str:
    return next(one.message for one in status.conditions if one.type == "Evicted")


def test_an_evicted_job_says_which_pod_has_not_ended_after_its_grace_period() -> None:
    one = running()
    one = with_status(one, transitions.evict(one.status, "Preempted", "preempted for team/p", NOW))
    left = tuple(replace(pod, deleting=True) for pod in pods_of(one))
    one = with_status(one, reconcile(one, left, now=NOW + 1).status)  # the stop is recorded
    early = reconcile(one, left, now=NOW + 20)
    assert early.status is one.status
    assert early.wake_at == NOW + 60
    late = with_status(one, reconcile(one, left, now=NOW + 60).status)
    name = left[0].name
    since = "preempted for team/p; after its grace period"
    assert evicted_message(late.status) == f"{since} pod {name} on n0 and 2 more pods have not ended"
    assert late.status.reason == "Preempted"
    assert reconcile(late, left, now=NOW + 70).status is late.status
    last = with_status(late, reconcile(late, left[1:2], now=NOW + 80).status)
    assert evicted_message(last.status) == f"{since} pod {left[1].name} on n0 has not ended"
    requeued = reconcile(last, (), now=NOW + 90).status
    assert (requeued.phase, evicted_message(requeued)) == ("Pending", "preempted for team/p")


def test_a_job_that_is_resumed_says_that_its_pods_are_stopped_until_they_have_ended() -> None:
    """Its queue cannot be edited meanwhile: the pods are charged to it."""
    one = running()
    stopping = tuple(replace(pod, deleting=True) for pod in pods_of(one))
    suspended = reconcile(with_status(job(suspend=True), one.status), pods_of(one), now=NOW + 10).status
    assert terminating(suspended)[:2] == ("True", "Stopping")
    resumed = reconcile(with_status(job(), suspended), stopping, now=NOW + 20).status
    assert (resumed.phase, *terminating(resumed)[:2]) == ("Pending", "True", "Stopping")
    ended = reconcile(with_status(job(), resumed), (), now=NOW + 30).status
    assert terminating(ended)[0] == "False"


def test_a_job_none_of_whose_pods_has_to_be_stopped_is_never_terminating() -> None:
    one = running()
    done = tuple(replace(pod, phase="Succeeded", ready=False, exit_code=0) for pod in pods_of(one))
    assert terminating(reconcile(one, done, now=NOW + 10).status) == ("", "", "")
