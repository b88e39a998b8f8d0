"""Records and processes brought together, by whichever daemon comes next: a second `Replicas` stands for it."""

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
from tests.local.small import eventually, processes_of, shell_job

from muster import spec
from muster.local import launcher, pod_supervisor, shim
from muster.local.home import Home, open_home
from muster.local.launcher import LaunchContext
from muster.local.pod_folder import PodFolder, ShimNotStarted
from muster.local.pod_supervisor import PodSupervisor
from muster.local.records import PodRecord, is_pod_error
from muster.local.store import SqliteStore, open_store

UID = "0123456789abcdef"
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


class Machine:
    """A host whose daemon can die: `restart` opens the database again and knows nothing else."""

    def __init__(self, path: Path) -> None:
        self.home: Home = open_home(path)
        self.boot_id = "boot-1"
        self.store: SqliteStore = open_store(self.home.database)
        self.restart()

    def restart(self) -> None:
        self.store.close()
        self.store = open_store(self.home.database)
        host = LaunchContext(self.home, self.boot_id, ENVIRONMENT, 0o022, ("/bin/false",), drain_s=5.0)
        self.replicas = PodSupervisor(host, self.store, {"n1": ("0", "1", "2", "3")})

    def add(self, line: str, gpus: int = 0, index: int = 0, grace: int = 60, trace: object = None) -> PodRecord:
        """A pod of the one job, whose template is now `line`: that of pods not yet started, too."""
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
        def look() -> bool:
            self.replicas.sync()
            return self.pod(index).phase == phase

        eventually(look)
        return self.pod(index)

    def until_gone(self) -> None:
        def look() -> bool:
            self.replicas.sync()
            return not self.store.pods.get(UID)

        eventually(look)

    def log(self, index: int = 0) -> str:
        path = self.home.run_dir("default", "job", UID) / "logs" / f"trainer-{index}.attempt-0.log"
        return path.read_text() if path.exists() else ""

    def folder(self, index: int = 0) -> PodFolder:
        return PodFolder(self.home.pod_dir(UID, "trainer", index, 0))


@pytest.fixture
def machine(home: Path) -> Iterator[Machine]:
    machine = Machine(home)
    yield machine
    machine.store.close()


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_what_was_only_intended_is_started_by_the_next_daemon(machine: Machine) -> None:
    machine.add("echo ran")
    machine.restart()
    assert machine.until("Succeeded").exit_code == 0
    assert machine.log() == "ran\n"


def test_a_running_replica_is_adopted_and_its_end_found_out(machine: Machine, tmp_path: Path) -> None:
    machine.add(f"echo ran; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 4")
    machine.until("Running")
    machine.restart()
    (tmp_path / "go").touch()
    assert machine.until("Failed").exit_code == 4
    assert (machine.log(), machine.pod().log_tail) == ("ran\n", "ran\n")


def test_an_end_that_nobody_saw_is_found_out(machine: Machine) -> None:
    machine.add("exit 3")
    machine.replicas.sync()
    eventually((machine.folder().path / shim.EXIT).exists)
    machine.restart()
    assert machine.until("Failed").exit_code == 3


@pytest.mark.parametrize("delay_s", [0.0, 0.005, 0.02, 0.04, 0.08])
def test_a_daemon_that_dies_just_after_starting_a_shim_does_not_start_it_twice(
    machine: Machine, delay_s: float
) -> None:
    machine.add("echo ran; sleep 0.3")
    machine.replicas.sync()  # starts the shim; nobody has seen it run yet
    time.sleep(delay_s)
    machine.restart()
    assert machine.until("Succeeded").exit_code == 0
    assert machine.log() == "ran\n"


def test_a_stop_that_was_only_written_down_is_carried_out_by_the_next_daemon(machine: Machine) -> None:
    pod = machine.add("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    machine.until("Running")
    eventually(machine.log)
    machine.change(pod, deleting_at=time.time())
    machine.restart()
    machine.until_gone()
    assert machine.log() == "up\nsaved\n"
    assert processes_of(machine.home.path) == []


def test_a_pod_that_is_deleted_before_it_starts_never_runs(machine: Machine) -> None:
    pod = machine.add("echo ran")
    machine.change(pod, deleting_at=time.time())
    machine.until_gone()
    assert machine.log() == ""


def test_a_shim_that_is_still_on_its_way_when_its_pod_is_deleted_starts_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    late = tmp_path / "late.py"
    late.write_text(
        "import os, runpy, signal\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        f"runpy.run_path({launcher._SHIM!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr(launcher, "_SHIM", str(late))
    pod = machine.add("echo ran")
    machine.replicas.sync()  # the shim is on its way ...
    (on_its_way,) = processes_of(machine.home.path)
    eventually(lambda: psutil.Process(on_its_way).status() == psutil.STATUS_STOPPED)
    machine.change(pod, deleting_at=time.time())  # ... and its daemon dies before it has begun
    machine.restart()
    machine.until_gone()
    os.kill(on_its_way, signal.SIGCONT)
    eventually(lambda: processes_of(machine.home.path) == [])
    assert machine.log() == ""


def test_after_a_reboot_a_replica_without_an_end_is_lost_and_one_with_an_end_is_not(machine: Machine) -> None:
    for index in (0, 1):
        machine.add("[ $MUSTER_REPLICA = 1 ] && exit 6; exec sleep 60", index=index)
    machine.until("Running", 0)
    machine.until("Failed", 1)
    kill(processes_of(machine.home.path))
    machine.boot_id = "boot-2"
    machine.restart()
    lost = machine.until("Lost", 0)
    assert (lost.reason, lost.exit_code) == ("Rebooted", None)
    assert machine.pod(1).exit_code == 6


def test_a_replica_whose_shim_was_killed_is_lost_and_leaves_nothing_behind(machine: Machine) -> None:
    machine.add("setsid sleep 60 & echo $! ; sleep 60")
    machine.until("Running")
    eventually(machine.log)
    state = machine.folder().state()
    kill([state.pid])  # type: ignore[union-attr, list-item]
    assert machine.until("Lost").reason == "ShimKilled"
    assert processes_of(machine.home.path) == []


def test_what_runs_without_a_record_is_ended_at_the_start(machine: Machine) -> None:
    pod = machine.add("setsid sleep 60 & echo up; sleep 60")
    machine.until("Running")
    eventually(machine.log)
    with machine.store.transaction():
        machine.store.remove_pod(pod)
    machine.restart()
    assert machine.replicas.kill_orphans() >= 1
    eventually(lambda: processes_of(machine.home.path) == [])


def test_replicas_of_other_homes_are_no_orphans_of_this_one(machine: Machine, tmp_path: Path) -> None:
    other = Machine(tmp_path / "other")
    other.add(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done")
    other.until("Running")
    assert machine.replicas.kill_orphans() == 0
    (tmp_path / "go").touch()
    assert other.until("Succeeded").exit_code == 0
    other.store.close()


def test_a_replica_waits_for_gpus_that_one_who_leaves_still_has(machine: Machine) -> None:
    old = machine.add("trap 'sleep 0.4; exit 0' TERM; echo up; while :; do sleep 0.05; done", gpus=3, index=0)
    machine.until("Running", 0)
    eventually(lambda: machine.log(0))
    machine.add("echo got $CUDA_VISIBLE_DEVICES", gpus=2, index=1)
    machine.replicas.sync()
    assert machine.pod(1).devices is None
    machine.change(old, deleting_at=time.time())
    machine.until("Succeeded", 1)
    assert machine.log(1) == "got 0,1\n"


def test_a_disk_without_room_delays_a_replica_and_says_so(machine: Machine) -> None:
    machine.add("echo ran")
    full = machine.home.run_dir("default", "job", UID)
    full.parent.mkdir()
    full.write_text("a file where the folder should be")
    machine.replicas.sync()
    assert machine.pod().phase == "Pending"
    assert [event.reason for event in machine.store.events(UID)] == ["ReplicaStartFailed"]
    full.unlink()
    assert machine.until("Succeeded").exit_code == 0


def test_a_pod_whose_own_files_are_wrong_fails_with_the_reason_after_some_tries_and_others_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_supervisor, "_FIRST_RETRY_S", 0.02)
    machine.add("echo ran", index=0)
    machine.add("echo ran", index=1)
    machine.folder(0).path.parent.mkdir(parents=True)
    machine.folder(0).path.write_text("a file where the folder should be")
    failed = machine.until("Failed", 0)
    assert (failed.exit_code, failed.reason) == (None, "StartError")
    assert failed.log_tail == f"cannot be started: [Errno 17] File exists: '{machine.folder(0).path}'\n"
    assert machine.replicas.pop_changed()
    (event,) = machine.store.events(UID)
    assert (event.reason, event.count) == ("ReplicaStartFailed", 3)
    assert machine.until("Succeeded", 1).exit_code == 0


def test_a_name_that_the_file_system_does_not_take_is_of_its_pod_alone_and_no_shim_can_be_there(
    machine: Machine,
) -> None:
    folder = PodFolder(machine.home.pods_dir / UID / ("x" * 300))
    assert (folder.state(), folder.prevent_start()) == (ShimNotStarted(), True)
    with pytest.raises(OSError, match="File name too long") as caught:
        folder.write_spec({})
    assert is_pod_error(caught.value, machine.home)


def test_what_other_pods_of_the_home_would_meet_too_is_waited_for(machine: Machine) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert is_pod_error(denied, machine.home)
    machine.home.runs_dir.write_text("a file where the folder should be")
    assert not is_pod_error(denied, machine.home)
    assert not is_pod_error(OSError(errno.ENOSPC, "No space left on device"), machine.home)


def test_a_shim_that_ends_before_it_begins_is_tried_again_after_a_pause_and_says_why(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import sys; sys.exit('no interpreter for you')")
    good = launcher._SHIM
    monkeypatch.setattr(launcher, "_SHIM", str(broken))
    monkeypatch.setattr(pod_supervisor, "_FIRST_RETRY_S", 1000.0)
    machine.add("echo ran")
    eventually(lambda: machine.replicas.sync() or machine.store.events(UID))
    for _ in range(10):
        machine.replicas.sync()
        assert machine.replicas.live_shim_count() == 0
    (event,) = machine.store.events(UID)
    assert (event.reason, event.count) == ("ReplicaStartFailed", 1)
    assert "its shim ended with exit code 1: no interpreter for you" in event.message
    due = machine.replicas.next_sync_at()
    assert due is not None
    assert due > time.time()
    monkeypatch.setattr(launcher, "_SHIM", good)
    monkeypatch.setattr(machine.replicas, "_clock", lambda: time.time() + 1000.0)
    assert machine.until("Succeeded").exit_code == 0


def test_a_pod_that_cannot_be_looked_at_says_so_once_and_the_others_go_on(machine: Machine, tmp_path: Path) -> None:
    machine.add(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done", index=0)
    machine.until("Running", 0)
    (tmp_path / "go").touch()
    machine.add("echo ran", index=1)
    lock = machine.folder(0).path / shim.LOCK
    machine.restart()
    kept = lock.rename(lock.with_name("kept"))
    lock.symlink_to(lock)  # opening it fails, as it does without file descriptors left
    assert machine.until("Succeeded", 1).exit_code == 0
    assert machine.pod(0).phase == "Running"
    assert [event.reason for event in machine.store.events(UID)] == ["ReplicaStatusUnknown"]
    kept.rename(lock)
    assert machine.until("Succeeded", 0).exit_code == 0


def test_a_collector_that_fails_is_told_and_fails_nothing(machine: Machine) -> None:
    machine.add("sleep 0.2", trace=spec.TraceRequest(start_step=1, steps=1))
    machine.until("Succeeded")
    assert [event.reason for event in machine.store.events(UID)] == ["CollectorFailed"]


def test_a_replica_stopped_because_the_host_goes_down_is_lost_and_not_failed(machine: Machine) -> None:
    machine.add("trap 'exit 1' TERM; echo up; while :; do sleep 0.05; done")
    machine.until("Running")
    eventually(machine.log)
    machine.replicas.stop_all()
    assert machine.until("Lost").reason == "NodeShutdown"
