"""Pods of this host across restarts of the daemon, for which a second `PodSupervisor` stands."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.local.support import eventually, processes_of, shell_job

from muster.api import spec
from muster.local import launcher, pod_supervisor, shim
from muster.local.home import Home, open_home
from muster.local.launcher import LaunchContext
from muster.local.pod_folder import PodFolder, ShimNotStarted
from muster.local.pod_supervisor import PodSupervisor, is_pod_error
from muster.local.store import PodRecord, SqliteStore, open_store

UID = "0123456789abcdef"

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


class Host:
    """A host whose daemon can be killed: `restart` creates a supervisor that knows only the database."""

    def __init__(self, path: Path) -> None:
        self.home: Home = open_home(path)
        self.boot_id = "boot-1"
        self.store: SqliteStore = open_store(self.home.database)
        self.restart()

    def restart(self) -> None:
        self.store.close()
        self.store = open_store(self.home.database)
        context = LaunchContext(self.home, self.boot_id, ENVIRONMENT, 0o022, ("/bin/false",), drain_s=5.0)
        self.supervisor = PodSupervisor(context, self.store, {"n1": ("0", "1", "2", "3")})

    def add(self, line: str, gpus: int = 0, index: int = 0, grace: int = 60, trace: object = None) -> PodRecord:
        """Add a pod of the job, whose template becomes `line`, also for pods that have not started."""
        job = shell_job("job", line, replicas=9, grace=grace, trace=trace)
        metadata = job.metadata.model_copy(update={"uid": UID})
        pod = PodRecord(
            name=f"job-trainer-{index}-aaaaa", job_uid=UID, role="trainer", index=index, replicas=9, attempt=0,
            node="n1", flavor="local", port=20000, gpus=gpus, grace_s=float(grace),
        )  # fmt: skip
        with self.store.transaction():
            self.store.put(job.model_copy(update={"metadata": metadata}))
            self.store.put_pod(pod)
        return pod

    def pod(self, index: int = 0) -> PodRecord:
        return self.store.pods[UID][f"job-trainer-{index}-aaaaa"]

    def change(self, pod: PodRecord, **fields: object) -> None:
        with self.store.transaction():
            self.store.put_pod(dataclasses.replace(self.pod(pod.index), **fields))  # type: ignore[arg-type]

    def until(self, phase: str, index: int = 0) -> PodRecord:
        def condition() -> bool:
            self.supervisor.sync()
            return self.pod(index).phase == phase

        eventually(condition)
        return self.pod(index)

    def until_gone(self) -> None:
        def condition() -> bool:
            self.supervisor.sync()
            for pod in list(self.store.pods.get(UID, {}).values()):
                if pod.to_view().tombstone:  # the engine's next cycle deletes it
                    with self.store.transaction():
                        self.store.remove_pod(pod)
            return not self.store.pods.get(UID)

        eventually(condition)

    def log(self, index: int = 0) -> str:
        path = self.home.run_dir("default", "job", UID) / "logs" / f"trainer-{index}.attempt-0.log"
        return path.read_text() if path.exists() else ""

    def folder(self, index: int = 0) -> PodFolder:
        return PodFolder(self.home.pod_dir(UID, "trainer", index, 0))


@pytest.fixture
def host(home: Path) -> Iterator[Host]:
    host = Host(home)
    yield host
    host.store.close()


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_pending_pod_is_started_by_the_next_daemon(host: Host) -> None:
    host.add("echo ran")
    host.restart()
    assert host.until("Succeeded").exit_code == 0
    assert host.log() == "ran\n"


def test_a_running_replica_is_adopted_by_the_next_daemon(host: Host, tmp_path: Path) -> None:
    host.add(f"echo ran; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 4")
    host.until("Running")
    host.restart()
    (tmp_path / "go").touch()
    assert host.until("Failed").exit_code == 4
    assert (host.log(), host.pod().log_tail) == ("ran\n", "ran\n")


def test_the_exit_code_of_a_replica_that_ended_between_two_daemons_is_recorded(host: Host) -> None:
    host.add("exit 3")
    host.supervisor.sync()
    eventually((host.folder().path / shim.EXIT).exists)
    host.restart()
    assert host.until("Failed").exit_code == 3


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.02, 0.04, 0.08])
def test_a_daemon_killed_just_after_starting_a_shim_does_not_start_it_twice(host: Host, delay_s: float) -> None:
    host.add("echo ran; sleep 0.3")
    host.supervisor.sync()  # starts the shim; its state has not been read yet
    time.sleep(delay_s)
    host.restart()
    assert host.until("Succeeded").exit_code == 0
    assert host.log() == "ran\n"


def test_a_stored_deletion_is_executed_by_the_next_daemon(host: Host) -> None:
    pod = host.add("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    host.until("Running")
    eventually(host.log)
    host.change(pod, deleting_at=time.time())
    host.restart()
    host.until_gone()
    assert host.log() == "up\nsaved\n"
    assert processes_of(host.home.path) == []


def test_a_pod_that_is_deleted_before_it_starts_never_runs(host: Host) -> None:
    pod = host.add("echo ran")
    host.change(pod, deleting_at=time.time())
    host.until_gone()
    assert host.log() == ""


@pytest.fixture
def late_shim(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shim that stops itself (SIGSTOP) before it does anything."""
    late = tmp_path / "late.py"
    late.write_text(
        "import os, runpy, signal\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        f"runpy.run_path({launcher._SHIM!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(launcher, "_SHIM", str(late))


def starting_shim(host: Host) -> int:
    """The pid of the only shim, which has stopped itself."""
    host.supervisor.sync()
    eventually(lambda: len(processes_of(host.home.path)) == 1)
    (starting,) = processes_of(host.home.path)
    eventually(lambda: psutil.Process(starting).status() == psutil.STATUS_STOPPED)
    return starting


@pytest.mark.usefixtures("late_shim")
def test_a_shim_that_is_starting_while_its_pod_is_deleted_runs_nothing(host: Host) -> None:
    pod = host.add("echo ran")
    starting = starting_shim(host)  # the shim is starting ...
    host.change(pod, deleting_at=time.time())  # ... and its daemon is killed before it has started the replica
    host.restart()
    host.until_gone()
    os.kill(starting, signal.SIGCONT)
    eventually(lambda: processes_of(host.home.path) == [])
    assert host.log() == ""


@pytest.mark.usefixtures("late_shim")
def test_a_shim_that_is_starting_while_the_home_is_removed_runs_nothing(host: Host) -> None:
    host.add("echo ran; sleep 600")
    starting_shim(host)
    host.supervisor.kill_all()
    assert processes_of(host.home.path) == []
    assert host.log() == ""


def test_after_a_reboot_only_replicas_without_exit_file_are_lost(host: Host) -> None:
    for index in (0, 1):
        host.add("[ $MUSTER_REPLICA = 1 ] && exit 6; exec sleep 60", index=index)
    host.until("Running", 0)
    host.until("Failed", 1)
    kill(processes_of(host.home.path))
    host.boot_id = "boot-2"
    host.restart()
    lost = host.until("Lost", 0)
    assert (lost.reason, lost.exit_code) == ("Rebooted", None)
    assert host.pod(1).exit_code == 6


def test_a_replica_whose_shim_was_killed_is_lost_and_leaves_no_process(host: Host) -> None:
    host.add("setsid sleep 60 & echo $! ; sleep 60")
    host.until("Running")
    eventually(host.log)
    state = host.folder().state()
    kill([state.pid])  # type: ignore[union-attr, list-item]
    assert host.until("Lost").reason == "ShimKilled"
    assert processes_of(host.home.path) == []


def test_processes_without_a_pod_record_are_killed_at_the_start(host: Host) -> None:
    pod = host.add("setsid sleep 60 & echo up; sleep 60")
    host.until("Running")
    eventually(host.log)
    with host.store.transaction():
        host.store.remove_pod(pod)
    host.restart()
    assert host.supervisor.kill_orphans() >= 1
    eventually(lambda: processes_of(host.home.path) == [])


def test_replicas_of_other_homes_are_not_killed(host: Host, tmp_path: Path) -> None:
    other = Host(tmp_path / "other")
    other.add(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done")
    other.until("Running")
    assert host.supervisor.kill_orphans() == 0
    (tmp_path / "go").touch()
    assert other.until("Succeeded").exit_code == 0
    other.store.close()


def test_a_replica_waits_for_gpus_of_a_terminating_one(host: Host) -> None:
    old = host.add("trap 'sleep 0.4; exit 0' TERM; echo up; while :; do sleep 0.05; done", gpus=3, index=0)
    host.until("Running", 0)
    eventually(lambda: host.log(0))
    host.add("echo got $CUDA_VISIBLE_DEVICES", gpus=2, index=1)
    host.supervisor.sync()
    assert host.pod(1).devices is None
    host.change(old, deleting_at=time.time())
    host.until("Succeeded", 1)
    assert host.log(1) == "got 0,1\n"


def test_a_replica_that_cannot_be_started_is_retried_with_an_event(host: Host) -> None:
    host.add("echo ran")
    full = host.home.run_dir("default", "job", UID)
    full.parent.mkdir()
    full.write_text("a file where the folder should be")
    host.supervisor.sync()
    assert host.pod().phase == "Pending"
    assert [event.reason for event in host.store.events(UID)] == ["ReplicaStartFailed"]
    full.unlink()
    assert host.until("Succeeded").exit_code == 0


def test_a_pod_whose_own_files_are_invalid_fails_after_three_attempts_and_others_run(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_supervisor, "_FIRST_RETRY_S", 0.02)
    host.add("echo ran", index=0)
    host.add("echo ran", index=1)
    host.folder(0).path.parent.mkdir(parents=True)
    host.folder(0).path.write_text("a file where the folder should be")
    failed = host.until("Failed", 0)
    assert (failed.exit_code, failed.reason) == (None, "StartError")
    assert failed.log_tail == f"cannot be started: [Errno 17] File exists: '{host.folder(0).path}'\n"
    assert host.supervisor.pop_changed()
    (event,) = host.store.events(UID)
    assert (event.reason, event.count) == ("ReplicaStartFailed", 3)
    assert host.until("Succeeded", 1).exit_code == 0


def test_a_name_that_is_too_long_for_the_file_system_is_an_error_of_its_pod_only(
    host: Host,
) -> None:
    folder = PodFolder(host.home.pods_dir / UID / ("x" * 300))
    assert (folder.state(), folder.prevent_start()) == (ShimNotStarted(), True)
    with pytest.raises(OSError, match="File name too long") as caught:
        folder.write_spec({})
    assert is_pod_error(caught.value, host.home)


def test_an_error_that_affects_all_pods_is_not_an_error_of_one_pod(host: Host) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert is_pod_error(denied, host.home)
    host.home.runs_dir.write_text("a file where the folder should be")
    assert not is_pod_error(denied, host.home)
    assert not is_pod_error(OSError(errno.ENOSPC, "No space left on device"), host.home)


def test_a_shim_that_fails_to_start_is_retried_later_with_an_event(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import sys; sys.exit('no interpreter')")
    good = launcher._SHIM
    monkeypatch.setattr(launcher, "_SHIM", str(broken))
    monkeypatch.setattr(pod_supervisor, "_FIRST_RETRY_S", 1000.0)
    host.add("echo ran")
    eventually(lambda: host.supervisor.sync() or host.store.events(UID))
    for _ in range(10):
        host.supervisor.sync()
        assert host.supervisor.live_shim_count() == 0
    (event,) = host.store.events(UID)
    assert (event.reason, event.count) == ("ReplicaStartFailed", 1)
    assert "its shim ended with exit code 1: no interpreter" in event.message
    due = host.supervisor.next_sync_at()
    assert due is not None
    assert due > time.time()
    monkeypatch.setattr(launcher, "_SHIM", good)
    monkeypatch.setattr(host.supervisor, "_clock", lambda: time.time() + 1000.0)
    assert host.until("Succeeded").exit_code == 0


def test_a_pod_whose_status_cannot_be_read_has_one_event_and_others_continue(host: Host, tmp_path: Path) -> None:
    host.add(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done", index=0)
    host.until("Running", 0)
    (tmp_path / "go").touch()
    host.add("echo ran", index=1)
    lock = host.folder(0).path / shim.LOCK
    host.restart()
    kept = lock.rename(lock.with_name("kept"))
    lock.symlink_to(lock)  # opening it fails, as it does without free file descriptors
    assert host.until("Succeeded", 1).exit_code == 0
    assert host.pod(0).phase == "Running"
    assert [event.reason for event in host.store.events(UID)] == ["ReplicaStatusUnknown"]
    kept.rename(lock)
    assert host.until("Succeeded", 0).exit_code == 0


def test_a_failed_collector_is_an_event_not_a_failure(host: Host) -> None:
    host.add("sleep 0.2", trace=spec.TraceRequest(start_step=1, steps=1))
    host.until("Succeeded")
    assert [event.reason for event in host.store.events(UID)] == ["CollectorFailed"]


def test_a_replica_stopped_with_the_daemon_is_lost_not_failed(host: Host) -> None:
    host.add("trap 'exit 1' TERM; echo up; while :; do sleep 0.05; done")
    host.until("Running")
    eventually(host.log)
    host.supervisor.stop_all()
    assert host.until("Lost").reason == "NodeShutdown"
