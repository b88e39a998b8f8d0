"""Rounds of the daemon's loop, one by one, and what is applied between them."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.local.small import eventually, shell_job

from muster import spec
from muster.cluster import ObservedState
from muster.engine import CycleResult
from muster.local import pod_supervisor, shim
from muster.local.cluster import QUARANTINE_S
from muster.local.control_loop import ControlLoop, DaemonComponents
from muster.local.home import Home, open_home
from muster.local.wiring import assemble
from muster.yaml_input import AnyObject


@pytest.fixture
def opened(home: Path) -> Home:
    return open_home(home)


@pytest.fixture
def parts(opened: Home) -> Iterator[DaemonComponents]:
    parts = assemble(opened, "1x8", None)
    yield parts
    parts.supervisor.kill_all()
    parts.store.close()


@pytest.fixture
def daemon(opened: Home, parts: DaemonComponents) -> Iterator[ControlLoop]:
    lock = os.open(opened.lock, os.O_RDWR | os.O_CREAT)
    yield ControlLoop(opened, parts, 60.0, lock)
    os.close(lock)


def test_an_end_found_while_writes_are_carried_out_brings_the_next_round_at_once(
    parts: DaemonComponents, daemon: ControlLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = shell_job("short", "until [ -e $GO ]; do sleep 0.05; done", env={"GO": str(tmp_path / "go")})
    uid = parts.service.submit([short], dry_run=False)[0].metadata.uid

    def phase() -> str:
        return next((pod.phase for pod in parts.store.pods.get(uid, {}).values()), "")

    def phase_after(act: Callable[[], None]) -> str:
        act()
        return phase()

    eventually(lambda: phase_after(daemon._run_cycle) == "Running")
    daemon._run_cycle()
    snapshot = parts.notifier.snapshot
    assert snapshot is not None
    (folder,) = parts.store.pods[uid].values()
    end = daemon._home.pod_dir(uid, folder.role, folder.index, folder.attempt) / shim.EXIT

    def reconcile(_: ObservedState) -> CycleResult:
        """Looks at the world before the replica ends, and has its writes carried out after that."""
        (tmp_path / "go").touch()
        eventually(lambda: end.exists() and phase_after(lambda: parts.cluster.apply(())) == "Succeeded")
        return CycleResult((), (), (), {}, None, snapshot)

    monkeypatch.setattr(daemon._engine, "reconcile", reconcile)
    daemon._run_cycle()
    assert daemon._next_cycle_at is not None
    assert daemon._next_cycle_at <= time.time()


def test_jobs_of_one_name_in_two_namespaces_each_hear_what_of_them_is_ignored(parts: DaemonComponents) -> None:
    jobs = []
    for namespace, image in (("red", "torch:2"), ("blue", "")):
        body = shell_job("twin", "true").model_dump(mode="json", by_alias=True, exclude_none=True)
        body["metadata"]["namespace"] = namespace
        body["spec"]["roles"][0]["template"]["spec"]["containers"][0]["image"] = image
        jobs.append(spec.TrainingJob.model_validate(body))
    parts.service.apply(jobs)
    told = {
        str(job.metadata.namespace): [event.reason for event in parts.store.events(uid)]
        for uid, job in parts.store.jobs.items()
    }
    assert told == {"red": ["FieldIgnored"], "blue": []}


def test_the_checkpoint_that_a_cancelled_job_writes_in_its_grace_is_known_once_it_has_ended(
    parts: DaemonComponents, daemon: ControlLoop
) -> None:
    say = """echo '{"step": 22, "at": 1000}' > latest; exit 0"""
    save = f"trap {shlex.quote(say)} TERM; touch up; while :; do sleep 0.1; done"
    line = f'mkdir -p "$MUSTER_RUN_DIR/checkpoints" && cd "$MUSTER_RUN_DIR/checkpoints" && {save}'
    job = parts.service.submit([shell_job("saver", line, grace=60)], dry_run=False)[0]
    uid, folder = job.metadata.uid, parts.cluster.run_dir(job) / "checkpoints"

    def after_a_round(what: Callable[[], object]) -> object:
        daemon._run_cycle()
        return what()

    eventually(lambda: after_a_round((folder / "up").exists))
    parts.service.patch("default", "saver", {"cancel": True})
    eventually(lambda: after_a_round(lambda: not parts.store.pods.get(uid)))
    daemon._run_cycle()
    assert parts.store.jobs[uid].status.last_checkpoint == spec.CheckpointStatus(step=22, at=1000)
    assert uid not in parts.cluster.observe().heartbeats, "its files are read no more"


def test_a_job_whose_files_cannot_be_made_fails_with_the_reason_and_the_others_run(
    parts: DaemonComponents, daemon: ControlLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_supervisor, "_GIVE_UP_AFTER", 1)
    blocked, free = parts.service.submit(
        [shell_job("blocked", "true", failurePolicy={"maxRestarts": 0}), shell_job("free", "true")], dry_run=False
    )
    parts.cluster.run_dir(blocked).parent.mkdir(exist_ok=True)
    parts.cluster.run_dir(blocked).write_text("a file where the folder should be")

    def phases() -> list[str]:
        daemon._run_cycle()
        return [parts.store.jobs[job.metadata.uid].status.phase for job in (blocked, free)]

    eventually(lambda: phases() == ["Failed", "Succeeded"])
    failure = parts.store.jobs[blocked.metadata.uid].status.last_failure
    assert failure is not None
    assert (failure.reason, failure.exit_code) == ("StartError", None)
    assert failure.log_tail.startswith("cannot be started: [Errno ")
    assert str(parts.cluster.run_dir(blocked)) in failure.log_tail


def test_a_job_whose_status_can_never_be_written_is_set_aside_with_its_room_and_the_others_go_on(
    parts: DaemonComponents, daemon: ControlLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, other = parts.service.submit(
        [shell_job("sick", "sleep 600", gpus=5), shell_job("other", "sleep 600", gpus=5)], dry_run=False
    )
    uids = [job.metadata.uid for job in (sick, other)]

    def states() -> list[list[str]]:
        daemon._run_cycle()
        return [[pod.phase for pod in parts.store.pods.get(uid, {}).values()] for uid in uids]

    eventually(lambda: states() == [["Running"], []])
    parts.service.submit([shell_job("small", "true", gpus=1)], dry_run=False)
    put = parts.store.put

    def refusing(item: AnyObject) -> None:
        if item.metadata.uid == uids[0]:
            raise ValueError("year 33658 is out of range")
        put(item)

    monkeypatch.setattr(parts.store, "put", refusing)
    parts.store.jobs[uids[0]] = sick.model_copy(
        update={"spec": sick.spec.model_copy(update={"cancel": True}), "status": parts.store.jobs[uids[0]].status}
    )

    def small() -> str:
        daemon._run_cycle()
        return next(job.status.phase for job in parts.store.jobs.values() if job.metadata.name == "small")

    eventually(lambda: small() == "Succeeded")
    assert states() == [["Running"], []], "the room of what is set aside is given to nobody"
    (event,) = [event for event in parts.store.events(uids[0]) if event.reason == "StatusWriteFailed"]
    assert event.message.endswith("; retrying in 60 s: ValueError: year 33658 is out of range")
    monkeypatch.setattr(parts.store, "put", put)
    monkeypatch.setattr(parts.cluster, "_clock", lambda: time.time() + QUARANTINE_S)
    eventually(lambda: states()[0] in ([], ["Failed"]) and parts.store.jobs[uids[0]].status.phase == "Cancelled")
