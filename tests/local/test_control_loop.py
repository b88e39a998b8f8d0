"""Cycles of the daemon's loop, quarantined jobs, and the exit of an idle daemon."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.local.support import ended, eventually, has, shell_job

from muster.api import spec
from muster.api.yaml_input import AnyObject
from muster.engine import CycleResult
from muster.errors import ClusterError
from muster.local import pod_supervisor, shim
from muster.local.client import LocalClient
from muster.local.cluster import QUARANTINE_S, Quarantine
from muster.local.control_loop import ControlLoop, DaemonComponents, RequestTracker
from muster.local.home import open_home
from muster.workload.observed import ObservedState


def test_an_end_found_while_writes_are_applied_triggers_the_next_cycle_at_once(
    parts: DaemonComponents, loop: ControlLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = shell_job("short", "until [ -e $GO ]; do sleep 0.05; done", env={"GO": str(tmp_path / "go")})
    uid = parts.service.submit([short], dry_run=False)[0].metadata.uid

    def phase() -> str:
        return next((pod.phase for pod in parts.store.pods.get(uid, {}).values()), "")

    def phase_after(act: Callable[[], None]) -> str:
        act()
        return phase()

    eventually(lambda: phase_after(loop._run_cycle) == "Running")
    loop._run_cycle()
    assert parts.notifier.cycle is not None
    snapshot = parts.notifier.cycle.snapshot
    (folder,) = parts.store.pods[uid].values()
    end = loop._home.pod_dir(uid, folder.role, folder.index, folder.attempt) / shim.EXIT

    def reconcile(_: ObservedState) -> CycleResult:
        """Lets the replica end after the observation and before the writes."""
        (tmp_path / "go").touch()
        eventually(lambda: end.exists() and phase_after(lambda: parts.cluster.apply(())) == "Succeeded")
        return CycleResult((), (), (), {}, None, snapshot)

    monkeypatch.setattr(loop._engine, "reconcile", reconcile)
    loop._run_cycle()
    assert loop._next_cycle_at is not None
    assert loop._next_cycle_at <= time.time()


def test_jobs_of_one_name_in_two_namespaces_have_their_own_notices(parts: DaemonComponents) -> None:
    jobs = []
    for namespace, image in (("red", "torch:2"), ("blue", "")):
        body = shell_job("duplicate", "true").model_dump(mode="json", by_alias=True, exclude_none=True)
        body["metadata"]["namespace"] = namespace
        body["spec"]["roles"][0]["template"]["spec"]["containers"][0]["image"] = image
        jobs.append(spec.TrainingJob.model_validate(body))
    parts.service.apply(jobs)
    reasons = {
        str(job.metadata.namespace): [event.reason for event in parts.store.events(uid)]
        for uid, job in parts.store.jobs.items()
    }
    assert reasons == {"red": ["FieldIgnored"], "blue": []}


def test_old_usage_is_deleted_once_a_day_while_the_daemon_runs(
    parts: DaemonComponents, loop: ControlLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, deleted = time.time(), []
    monkeypatch.setattr(type(parts.store), "delete_old_usage", lambda self, at: deleted.append(at))
    for hours in (0, 23, 25, 26, 48, 50):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + hours * 3600)
        loop._run_cycle()
    assert [round((at - now) / 3600) for at in deleted] == [25, 50]


def test_a_deletion_of_old_usage_that_fails_is_logged_and_tried_again_after_an_hour(
    parts: DaemonComponents, loop: ControlLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, tried = time.time(), []

    def delete(self: object, at: float) -> None:
        tried.append(at)
        if len(tried) == 1:
            raise ClusterError("the database cannot be written: disk full")

    monkeypatch.setattr(type(parts.store), "delete_old_usage", delete)
    for hours in (0, 25, 25.5, 26.1, 27, 49, 51):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + hours * 3600)
        loop._run_cycle()
    assert [round((at - now) / 3600, 1) for at in tried] == [25, 26.1, 51]
    assert "old usage is not deleted: the database cannot be written: disk full; retrying in 1 h" in caplog.text


def saver_job() -> spec.TrainingJob:
    """A job that runs until SIGTERM, and then writes a checkpoint of step 22."""
    write = """echo '{"step": 22, "at": 1000}' > latest; exit 0"""
    save = f"trap {shlex.quote(write)} TERM; touch up; while :; do sleep 0.1; done"
    line = f'mkdir -p "$MUSTER_RUN_DIR/checkpoints" && cd "$MUSTER_RUN_DIR/checkpoints" && {save}'
    return shell_job("saver", line, grace=60)


def test_the_checkpoint_that_a_cancelled_job_writes_in_its_grace_period_is_in_its_status(
    parts: DaemonComponents, loop: ControlLoop
) -> None:
    job = parts.service.submit([saver_job()], dry_run=False)[0]
    uid, folder = job.metadata.uid, parts.cluster.run_dir(job) / "checkpoints"

    def after_a_cycle(condition: Callable[[], object]) -> object:
        loop._run_cycle()
        return condition()

    eventually(lambda: after_a_cycle((folder / "up").exists))
    parts.service.patch("default", "saver", {"cancel": True})
    eventually(lambda: after_a_cycle(lambda: not parts.store.pods.get(uid)))
    loop._run_cycle()
    assert parts.store.jobs[uid].status.last_checkpoint == spec.CheckpointStatus(step=22, at=1000)
    assert uid not in parts.cluster.observe().heartbeats, "its files are no longer read"


def test_a_submit_between_the_end_of_a_cancelled_job_and_the_next_cycle_does_not_lose_its_checkpoint(
    parts: DaemonComponents, loop: ControlLoop
) -> None:
    job = parts.service.submit([saver_job()], dry_run=False)[0]
    uid, up = job.metadata.uid, parts.cluster.run_dir(job) / "checkpoints" / "up"

    def after_a_cycle(condition: Callable[[], object]) -> object:
        loop._run_cycle()
        return condition()

    def has_ended() -> bool:
        parts.cluster.apply(())
        return all(pod.finished for pod in parts.store.pods[uid].values())

    eventually(lambda: after_a_cycle(up.exists))
    parts.service.patch("default", "saver", {"cancel": True})
    loop._run_cycle()
    eventually(has_ended)
    parts.service.submit([shell_job("other", "true")], dry_run=True)
    loop._run_cycle()
    assert parts.store.jobs[uid].status.last_checkpoint == spec.CheckpointStatus(step=22, at=1000)


def test_a_replica_that_ignores_sigterm_is_killed_after_the_grace_period_that_its_queue_allows(
    parts: DaemonComponents, loop: ControlLoop
) -> None:
    impatient = spec.Queue.model_validate({
        "metadata": {"name": "impatient"},
        "spec": {"maxGracePeriodSeconds": 1, "namespaceSelector": {}, "resources": [{"flavor": "local"}]},
    })  # fmt: skip
    parts.service.apply([impatient])
    line = 'trap "" TERM; cd "$MUSTER_RUN_DIR"; echo "$MUSTER_GRACE_SECONDS" > grace; while :; do sleep 0.1; done'
    job = parts.service.submit([shell_job("hung", line, grace=86_400, queue="impatient")], dry_run=False)[0]
    shown = parts.cluster.run_dir(job) / "grace"

    def after_a_cycle(condition: Callable[[], object]) -> object:
        loop._run_cycle()
        return condition()

    eventually(lambda: after_a_cycle(lambda: shown.exists() and shown.read_text() == "1\n"))
    parts.service.patch("default", "hung", {"cancel": True})
    eventually(lambda: after_a_cycle(lambda: parts.store.jobs[job.metadata.uid].status.finished_at))


def test_a_job_whose_files_cannot_be_created_fails_and_others_run(
    parts: DaemonComponents, loop: ControlLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_supervisor, "_GIVE_UP_AFTER", 1)
    blocked, free = parts.service.submit(
        [shell_job("blocked", "true", failurePolicy={"maxRestarts": 0}), shell_job("free", "true")], dry_run=False
    )
    parts.cluster.run_dir(blocked).parent.mkdir(exist_ok=True)
    parts.cluster.run_dir(blocked).write_text("a file where the folder should be")

    def phases() -> list[str]:
        loop._run_cycle()
        return [parts.store.jobs[job.metadata.uid].status.phase for job in (blocked, free)]

    eventually(lambda: phases() == ["Failed", "Succeeded"])
    failure = parts.store.jobs[blocked.metadata.uid].status.last_failure
    assert failure is not None
    assert (failure.reason, failure.exit_code) == ("StartError", None)
    assert failure.log_tail.startswith("cannot be started: [Errno ")
    assert str(parts.cluster.run_dir(blocked)) in failure.log_tail


def test_a_job_whose_status_cannot_be_written_is_quarantined_with_its_resources_and_others_run(
    parts: DaemonComponents, loop: ControlLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, other = parts.service.submit(
        [shell_job("failing", "sleep 600", gpus=5), shell_job("other", "sleep 600", gpus=5)], dry_run=False
    )
    uids = [job.metadata.uid for job in (failing, other)]

    def states() -> list[list[str]]:
        loop._run_cycle()
        return [[pod.phase for pod in parts.store.pods.get(uid, {}).values()] for uid in uids]

    eventually(lambda: states() == [["Running"], []])
    parts.service.submit([shell_job("small", "true", gpus=1)], dry_run=False)
    put = parts.store.put

    def refusing(item: AnyObject) -> None:
        if item.metadata.uid == uids[0]:
            raise ValueError("year 33658 is out of range")
        put(item)

    monkeypatch.setattr(parts.store, "put", refusing)
    parts.store.jobs[uids[0]] = failing.model_copy(
        update={"spec": failing.spec.model_copy(update={"cancel": True}), "status": parts.store.jobs[uids[0]].status}
    )

    def small() -> str:
        loop._run_cycle()
        return next(job.status.phase for job in parts.store.jobs.values() if job.metadata.name == "small")

    eventually(lambda: small() == "Succeeded")
    assert states() == [["Running"], []], "the resources of a quarantined job are not given to others"
    (event,) = [event for event in parts.store.events(uids[0]) if event.reason == "StatusWriteFailed"]
    assert event.message.endswith("; retrying in 60 s: ValueError: year 33658 is out of range")
    monkeypatch.setattr(parts.store, "put", put)
    monkeypatch.setattr(parts.cluster, "_clock", lambda: time.time() + QUARANTINE_S)
    eventually(lambda: states()[0] in ([], ["Failed"]) and parts.store.jobs[uids[0]].status.phase == "Cancelled")


def test_a_job_is_quarantined_for_a_minute_then_twice_as_long_each_time() -> None:
    quarantine, jobs = Quarantine(), {"a", "b"}
    quarantine.add("a", 100.0)
    quarantine.add("b", 110.0)
    assert quarantine.active(100.0 + QUARANTINE_S - 1, jobs) == {"a", "b"}
    assert quarantine.next_end(100.0) == 100.0 + QUARANTINE_S
    assert quarantine.active(100.0 + QUARANTINE_S, jobs) == {"b"}
    assert quarantine.active(200.0, jobs) == frozenset()
    assert quarantine.next_end(200.0) is None
    assert [quarantine.add("a", 200.0) for _ in range(5)] == [120.0, 240.0, 480.0, 960.0, 960.0]
    assert quarantine.active(201.0, {"b"}) == frozenset(), "it was deleted"


def test_a_job_whose_eviction_cannot_be_written_is_not_preempted_and_the_other_victim_keeps_running(
    parts: DaemonComponents, loop: ControlLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [shell_job(name, "sleep 600", gpus=4) for name in ("a", "b")]
    victims = [job.metadata.uid for job in parts.service.submit(jobs, dry_run=False)]

    def pods() -> list[tuple[str, int]]:
        loop._run_cycle()
        return [(pod.phase, pod.attempt) for uid in victims for pod in parts.store.pods.get(uid, {}).values()]

    eventually(lambda: pods() == [("Running", 0), ("Running", 0)])
    put, tried, written = parts.store.put, 0, 0

    def refusing(item: AnyObject) -> None:
        nonlocal tried, written
        written += 1
        if item.metadata.uid == victims[1] and isinstance(item, spec.TrainingJob) and item.status.eviction:
            tried += 1
            raise ValueError("year 33658 is out of range")
        put(item)

    monkeypatch.setattr(parts.store, "put", refusing)
    (urgent,) = parts.service.submit([shell_job("urgent", "true", gpus=8, priority=10)], dry_run=False)
    for _ in range(20):
        loop._run_cycle()
    assert (tried, pods()) == (1, [("Running", 0), ("Running", 0)])
    assert written <= 12
    assert parts.store.jobs[urgent.metadata.uid].status.nomination is None
    monkeypatch.setattr(parts.store, "put", put)
    monkeypatch.setattr(parts.cluster, "_clock", lambda: time.time() + QUARANTINE_S)
    eventually(lambda: all(attempt > 0 for _, attempt in pods()))


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tracker_at(clock: Callable[[], float]) -> RequestTracker:
    return RequestTracker(lambda: None, clock)


def test_before_its_first_request_a_daemon_runs_for_a_minute_whatever_its_idle_time() -> None:
    clock = Clock()
    tracker = tracker_at(clock)
    assert (tracker.close_if_idle(0.0), tracker.idle_remaining_s(0.0)) == (False, 60.0)
    clock.now += 59.9
    assert not tracker.close_if_idle(0.0)
    clock.now += 0.1
    assert tracker.close_if_idle(0.0), "the client that started it has ended"


def test_the_idle_time_begins_when_the_last_request_is_answered() -> None:
    clock = Clock()
    tracker = tracker_at(clock)
    tracker.begin_request()
    clock.now += 1000.0
    assert not tracker.close_if_idle(5.0)
    tracker.end_request()
    assert (tracker.close_if_idle(5.0), tracker.idle_remaining_s(5.0)) == (False, 5.0)
    clock.now += 5.0
    assert tracker.close_if_idle(5.0)
    with pytest.raises(ClusterError, check=has(reason="ShuttingDown")):
        tracker.begin_request()


def test_only_an_absent_or_another_lock_shows_that_the_home_was_removed(loop: ControlLoop, home: Path) -> None:
    assert loop.owns_home()
    lock = open_home(home).lock
    lock.rename(home / "kept")
    lock.symlink_to(lock)  # it cannot be read: too many levels of links
    assert loop.owns_home()
    (home / "kept").replace(lock)
    assert loop.owns_home()
    home.rename(home.with_name("moved"))
    assert not loop.owns_home()
    open_home(home).lock.touch()
    assert not loop.owns_home()


def test_replicas_of_a_home_that_is_removed_during_the_last_cycle_are_killed(
    parts: DaemonComponents, loop: ControlLoop, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []

    def remove_home() -> None:
        home.rename(home.with_name("moved"))
        loop.request_stop("handover", force=False)

    monkeypatch.setattr(loop, "_run_cycle", remove_home)
    monkeypatch.setattr(parts.supervisor, "kill_all", lambda: killed.append(True))
    loop.run()
    assert killed == [True]


def test_without_idle_time_a_daemon_exits_after_its_first_request() -> None:
    tracker = tracker_at(Clock())
    tracker.begin_request()
    tracker.end_request()
    assert tracker.close_if_idle(0.0)


@pytest.mark.slow
def test_without_idle_time_each_call_is_answered_by_a_new_daemon(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_IDLE_SECONDS", "0")
    client = LocalClient.connect(home)
    pids = set()
    for _ in range(2):
        pids.add(pid := client.status()["pid"])
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists())  # type: ignore[misc]
    assert len(pids) == 2
    client.submit(shell_job("job", "true"))
    assert ended(client, "job").status.phase == "Succeeded"
