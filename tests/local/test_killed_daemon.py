"""kill -9 of the daemon at random moments.

Every replica appends a line to one file when it begins and when it ends. So the test finds replicas that ran twice,
partially or not at all independently of the daemon.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.support import eventually, processes_of, shell_job

from muster.api import spec
from muster.errors import ClusterError, Conflict, DaemonError
from muster.local.client import LocalClient

_NOTE = 'note() { echo "$1 $MUSTER_JOB $MUSTER_ATTEMPT $MUSTER_REPLICA ${CUDA_VISIBLE_DEVICES:--}" >> "$NOTES"; }; '
_JOBS = {  # name: (line, replicas, gpus, restarts allowed)
    "quick": ("note begin; note end", 3, 1, 0),
    "gang": ("note begin; sleep 0.7; note end", 4, 1, 0),
    "wide": ("note begin; sleep 0.4; note end", 2, 3, 0),
    "alone": ("note begin; sleep 1.5; note end", 1, 2, 0),
    "again": (
        "trap 'note end; exit 143' TERM; note begin; sleep 0.2; trap '' TERM; note end; [ $MUSTER_ATTEMPT = 1 ]",
        2,
        1,
        1,
    ),
    "bad": ("trap 'note end; exit 143' TERM; note begin; trap '' TERM; note end; exit 3", 2, 0, 0),
    "many": ("note begin; sleep 0.1; note end", 6, 0, 0),
}


def kill_daemon(home: Path) -> None:
    with suppress(OSError, ValueError):
        os.kill(int((home / "daemon.lock").read_text()), signal.SIGKILL)


def submit(client: LocalClient, job: spec.TrainingJob) -> None:
    """Repeat the submit until the job is stored, since the daemon may be killed meanwhile."""
    while True:
        try:
            client.submit(job)
            return
        except Conflict:
            return  # an earlier attempt was stored
        except DaemonError:
            time.sleep(0.02)


def submit_until_refused(client: LocalClient) -> None:
    for number in range(200):
        client.submit(shell_job(f"more-{number}", "true", suspend=True))


def phases(client: LocalClient) -> dict[str, str]:
    with suppress(DaemonError):
        return {job.metadata.name: job.status.phase for job in client.jobs()}
    return {}


@pytest.mark.slow
def test_after_kill_9_at_random_moments_each_replica_has_run_once_and_no_process_is_left(home: Path) -> None:
    seed = int(os.environ.get("MUSTER_TEST_SEED") or 1)
    print(f"seed {seed}: repeat with MUSTER_TEST_SEED={seed}")
    rng = random.Random(seed)
    notes = home.parent / "notes"
    client = LocalClient.up(home, nodes="1x8", idle_s=120)
    env = {"NOTES": str(notes)}
    waiting = [
        shell_job(name, _NOTE + line, replicas=replicas, gpus=gpus, failurePolicy={"maxRestarts": most}, env=env)
        for name, (line, replicas, gpus, most) in _JOBS.items()
    ]
    rng.shuffle(waiting)
    kills = 0
    while waiting or kills < 12:
        if waiting:
            submit(client, waiting.pop())
        time.sleep(rng.choice([0.0, 0.01, 0.05, 0.1, 0.3]))
        kill_daemon(home)
        kills += 1
        with suppress(DaemonError):
            client.status()  # starts the next daemon
    done = eventually(lambda: (now := phases(client)) and set(now.values()) <= {"Succeeded", "Failed"} and now, 300)

    assert done == {name: "Failed" if name == "bad" else "Succeeded" for name in _JOBS}
    check_notes([line.split() for line in notes.read_text().splitlines()])
    client.down()
    assert processes_of(home) == []


def check_notes(notes: list[list[str]]) -> None:
    """Each replica of each attempt began once and ended once; no GPU was used by two replicas at the same time.

    In a failed attempt a replica may be missing, since the first one may fail before the last one starts.
    """
    begun, ended = (
        {(note[1], int(note[2]), int(note[3])) for note in notes if note[0] == event} for event in ("begin", "end")
    )
    assert len(notes) == len(begun) + len(ended)
    assert begun == ended
    possible = {
        (name, attempt, index)
        for name, (_, replicas, _, most) in _JOBS.items()
        for attempt in range(most + 1)
        for index in range(replicas)
    }
    may_be_missing = {one for one in possible if one[0] == "bad" or one[:2] == ("again", 0)}
    assert possible - may_be_missing <= begun <= possible
    held: dict[str, tuple[str, ...]] = {}
    for event, *replica, devices in notes:
        for device in devices.replace("-", "").split(","):
            if event == "begin" and device:
                assert device not in held, f"GPU {device} is used by {held[device]} and {replica}"
                held[device] = tuple(replica)
            elif device:
                del held[device]


@pytest.mark.slow
@pytest.mark.smoke
def test_a_job_restarts_after_kill_9_of_all_processes_and_a_new_boot_id(home: Path, tmp_path: Path) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("first\n")
    os.environ["MUSTER_BOOT_ID_FILE"] = str(boot_id)
    try:
        client = LocalClient.up(home, idle_s=120)
        line = "echo attempt $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 1 ] || sleep 600"
        client.submit(shell_job("job", line, replicas=2, failurePolicy={"maxRestarts": 0}))
        eventually(lambda: client.job("job").status.phase == "Running")
        daemon = client.status()["pid"]
        for pid in [daemon, *processes_of(home)]:  # shims before their replicas, so that no exit file is written
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        boot_id.write_text("second\n")
        eventually(lambda: not processes_of(home))
        client = LocalClient.up(home)
        eventually(lambda: client.job("job").status.phase == "Succeeded")
        job = client.job("job")
        assert (job.status.restarts, job.status.node_losses, job.status.attempt) == (0, 1, 1)
    finally:
        del os.environ["MUSTER_BOOT_ID_FILE"]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small disk needs root")
def test_on_a_full_disk_new_jobs_are_refused_and_running_ones_continue(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this host does not allow a mount")
    try:
        client = LocalClient.up(disk, idle_s=120)
        client.submit(shell_job("runs", "while [ ! -e $GO ]; do sleep 0.05; done", env={"GO": str(tmp_path / "go")}))
        eventually(lambda: client.job("runs").status.phase == "Running")
        with suppress(OSError), open(disk / "fill", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(ClusterError) as refused:
            submit_until_refused(client)
        assert refused.value.reason == "StoreUnwritable"
        (tmp_path / "go").touch()
        eventually(lambda: list(disk.rglob("exit.json")))  # written into reserved space
        (disk / "fill").unlink()
        eventually(lambda: client.job("runs").status.phase == "Succeeded", 120)  # the daemon retries every 30 s
        client.down()
    finally:
        for pid in processes_of(disk):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["umount", "-l", str(disk)], check=True)


_SAVES = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["MUSTER_RUN_DIR"])
def save(number, frame):
    (folder / f"saving-{os.environ['RANK']}").touch()
    while not (folder / "enough").exists():
        time.sleep(0.02)
    (folder / f"saved-{os.environ['RANK']}").write_text("whole")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
(folder / f"up-{os.environ['RANK']}").touch()
while True:
    time.sleep(0.05)
"""


def stop_requests(home: Path) -> list[tuple[int, int]]:
    """Identity of each stop file, which changes with every stop request."""
    return [((found := path.stat()).st_ino, found.st_mtime_ns) for path in home.rglob("stop.json")]


@pytest.mark.slow
def test_replicas_complete_their_checkpoint_if_the_daemon_is_killed_in_their_grace_period(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "saves.py").write_text(_SAVES)
    client = LocalClient.up(home, idle_s=60)
    line = f"exec {sys.executable} -m muster_components.launch --nproc 2 -- {tmp_path}/saves.py"
    client.submit(shell_job("saver", line, grace=600))
    folder = client.run_dir("saver")

    def both(prefix: str) -> bool:
        return all((folder / f"{prefix}-{rank}").exists() for rank in (0, 1))

    eventually(lambda: both("up"))
    client.suspend("saver")
    eventually(lambda: both("saving"))
    for _ in range(2):
        before = stop_requests(home)
        kill_daemon(home)
        eventually(lambda: client.status()["running"] >= 0)  # starts the next daemon, which repeats the stop request
        eventually(lambda before=before: stop_requests(home) != before)  # type: ignore[misc]
    (folder / "enough").touch()
    eventually(lambda: phases(client)["saver"] == "Suspended" and not client.pods("saver"))
    assert [(folder / f"saved-{rank}").read_text() for rank in (0, 1)] == ["whole"] * 2
    client.down()


_KILLED_BEFORE_THE_STATUS = """
import os, pathlib, signal, sys
from muster.cluster import WriteStatus
from muster.local import daemon
from muster.local.cluster import LocalCluster

apply = LocalCluster.apply

def killed(cluster, writes):
    names = {uid: job.metadata.name for uid, job in cluster._store.jobs.items()}
    if pathlib.Path(sys.argv[1], "armed").exists():
        if any(isinstance(write, WriteStatus) and names.get(write.job_uid) == "last" for write in writes):
            os.kill(os.getpid(), signal.SIGKILL)
    apply(cluster, writes)

LocalCluster.apply = killed
sys.exit(daemon.main(sys.argv[2:]))
"""

_DOES_ITS_LAST_STEP = """
import json, os, pathlib, signal, sys, time

folder, index = pathlib.Path(sys.argv[1]), os.environ["MUSTER_REPLICA"]
heartbeat = pathlib.Path(os.environ["MUSTER_RUN_DIR"], "heartbeats", "rank-0.json")

def write(step, phase):
    if index == "0":
        heartbeat.parent.mkdir(parents=True, exist_ok=True)
        fields = {"rank": 0, "world_size": 1, "attempt": 0, "step": step, "steps": 60, "phase": phase}
        heartbeat.with_suffix(".tmp").write_text(json.dumps({**fields, "at": time.time()}))
        heartbeat.with_suffix(".tmp").rename(heartbeat)

def stop(*_):
    while not (folder / f"go-{index}").exists():
        time.sleep(0.02)
    write(60, "done")
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
write(59, "train")
(folder / f"runs-{index}").touch()
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("pods", [1, 2])
def test_a_job_that_has_done_its_last_step_completes_although_the_daemon_is_killed_before_it_writes_that(
    home: Path, tmp_path: Path, pods: int
) -> None:
    (tmp_path / "last.py").write_text(_DOES_ITS_LAST_STEP)
    daemon = subprocess.Popen(
        [sys.executable, "-c", _KILLED_BEFORE_THE_STATUS, str(tmp_path), "--home", str(home), "--nodes", "1x8"]
    )
    eventually(lambda: list(home.glob("daemon.sock*")))
    client = LocalClient.connect(home)
    line = f"exec {sys.executable} {tmp_path}/last.py {tmp_path}"
    client.submit(shell_job("last", line, replicas=pods, gpus=4, grace=600))
    eventually(lambda: all((tmp_path / f"runs-{index}").exists() for index in range(pods)))
    client.submit(shell_job("urgent", "exec sleep 1000", gpus=8, priority=9))
    eventually(lambda: stop_requests(home))
    for index in range(pods - 1):
        (tmp_path / f"go-{index}").touch()
        eventually(lambda: sum(pod["phase"] == "Running" for pod in client.pods("last")) == 1)
    (tmp_path / "armed").touch()
    (tmp_path / f"go-{pods - 1}").touch()
    assert daemon.wait(timeout=600) == -signal.SIGKILL
    eventually(lambda: client.status()["pid"] != daemon.pid)  # starts the next one
    job = eventually(lambda: (job := client.job("last")).status.phase != "Running" and job)
    assert (job.status.phase, job.status.attempt) == ("Succeeded", 0)
    client.down(force=True)
