"""What became of the work of an attempt that was stopped before its end."""

from __future__ import annotations

from dataclasses import replace

from tests.lifecycle.cases import NOW, events, job, pods_of, reconcile, running, with_status

from muster.api import spec
from muster.cluster import Heartbeat, RecordEvent
from muster.kinds.trainingjob.stops import describe_stop
from muster.workload import transitions

STOPPED_AT = NOW + 600
HEARTBEAT = Heartbeat(at=NOW + 599, step=140, step_changed_at=NOW + 599, attempt=0)
SAVED_BEFORE = replace(HEARTBEAT, checkpoint_step=100, checkpoint_at=NOW + 400)


def evicted(reason: str = "Preempted") -> spec.TrainingJob:
    one = running(job(3))
    return with_status(one, transitions.evict(one.status, reason, "a higher priority", STOPPED_AT))


def after(one: spec.TrainingJob, heartbeat: Heartbeat | None) -> tuple[spec.TrainingJobStatus, list[str]]:
    """Its status once its pods have been stopped and are gone, with the texts of its Events."""
    stopping = with_status(one, reconcile(one, pods_of(one), now=STOPPED_AT, heartbeat=SAVED_BEFORE).status)
    result = reconcile(stopping, (), now=STOPPED_AT + 20, heartbeat=heartbeat)
    return result.status, [f"{e.reason}: {e.message}" for e in result.writes if isinstance(e, RecordEvent)]


def test_a_checkpoint_that_was_saved_after_the_stop_is_recorded_with_an_event() -> None:
    saved = replace(HEARTBEAT, step=142, checkpoint_step=142, checkpoint_at=STOPPED_AT + 4)
    status, messages = after(evicted(), saved)
    assert status.last_stop == spec.StopStatus(
        attempt=0,
        reason="Preempted",
        at=STOPPED_AT,
        started_at=NOW,
        ended_at=STOPPED_AT + 20,
        step=140,
        saved=True,
        checkpoint_step=142,
        checkpoint_at=STOPPED_AT + 4,
    )
    assert messages == [
        "CheckpointSaved: attempt 0 was stopped at step 140 (Preempted): a checkpoint of step 142 was saved after 4s"
    ]


def test_without_a_new_checkpoint_the_work_since_the_last_one_is_lost() -> None:
    status, messages = after(evicted(), SAVED_BEFORE)
    assert status.last_stop is not None
    assert (status.last_stop.saved, status.last_stop.lost_seconds) == (False, 200)
    lost = "no checkpoint was saved, 3m20s of work since the checkpoint of step 100 are lost"
    assert messages == [f"CheckpointNotSaved: attempt 0 was stopped at step 140 (Preempted): {lost}"]


def test_where_the_ranks_were_is_in_the_event_if_the_cluster_knows_it() -> None:
    one = evicted()
    stopping = with_status(one, reconcile(one, pods_of(one), now=STOPPED_AT, heartbeat=HEARTBEAT).status)
    assert stopping.status.last_stop is not None
    known = stopping.status.last_stop.model_copy(update={"ranks": "rank 0 is in load (data.py:3)"})
    result = reconcile(
        with_status(stopping, stopping.status.model_copy(update={"last_stop": known})), (), now=STOPPED_AT + 20
    )
    assert result.status.last_stop is not None
    assert result.status.last_stop.lost_seconds == 600
    assert describe_stop(result.status.last_stop).endswith(
        "10m00s of work since its start are lost; when it was stopped, rank 0 is in load (data.py:3)"
    )
    assert events(result) == ["CheckpointNotSaved"]


def test_of_a_program_of_which_nothing_is_known_no_event_says_that_it_saved_nothing() -> None:
    one = evicted()
    stopping = with_status(one, reconcile(one, pods_of(one), now=STOPPED_AT).status)
    result = reconcile(stopping, (), now=STOPPED_AT + 20)
    assert events(result) == []
    assert result.status.last_stop is not None
    assert result.status.last_stop.ended_at == STOPPED_AT + 20


def test_a_suspended_job_has_an_outcome_once_its_pods_have_ended() -> None:
    one = running(job(3))
    pods = pods_of(one)
    wanted = one.model_copy(update={"spec": one.spec.model_copy(update={"suspend": True})})
    suspended = with_status(wanted, reconcile(wanted, pods, now=STOPPED_AT, heartbeat=SAVED_BEFORE).status)
    assert suspended.status.last_stop is not None
    assert (suspended.status.last_stop.reason, suspended.status.last_stop.ended_at) == ("Suspended", None)
    assert events(reconcile(suspended, pods, now=STOPPED_AT + 5, heartbeat=SAVED_BEFORE)) == []
    result = reconcile(suspended, (), now=STOPPED_AT + 20, heartbeat=SAVED_BEFORE)
    assert events(result) == ["CheckpointNotSaved"]
    assert events(reconcile(with_status(suspended, result.status), (), now=STOPPED_AT + 30)) == []


def test_an_eviction_that_is_withdrawn_or_of_an_attempt_that_had_not_started_is_not_recorded() -> None:
    one = evicted()
    stopping = with_status(one, reconcile(one, pods_of(one), now=STOPPED_AT).status)
    revoked = with_status(stopping, transitions.revoke_eviction(stopping.status, STOPPED_AT + 1))
    assert reconcile(revoked, pods_of(revoked), now=STOPPED_AT + 2).status.last_stop is None
    waiting = with_status(one, one.status.model_copy(update={"started_at": None}))
    assert reconcile(waiting, pods_of(waiting), now=STOPPED_AT).status.last_stop is None


def test_a_job_that_was_resized_and_has_completed_is_not_written_again() -> None:
    one = running(job(3))
    pods = tuple(replace(pod, phase="Succeeded", ready=False) for pod in pods_of(one))
    resized = with_status(one, one.status.model_copy(update={"resized_at": NOW + 1, "attempt": one.status.attempt}))
    done = with_status(resized, reconcile(resized, pods, now=NOW + 50).status)
    assert done.status.phase == "Succeeded"
    again = with_status(done, done.status.model_copy(update={"attempt": 3}))
    assert reconcile(again, pods, now=NOW + 60).status is again.status
