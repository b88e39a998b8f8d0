"""The shim: one replica, its processes, its exit file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.local.support import eventually

from muster.local import shim
from muster.local.pod_folder import PodFolder, ShimExited, ShimLost, ShimNotStarted, ShimRunning
from muster.local.run_folder import byte_range


def write_spec(folder: Path, line: str, grace_s: float = 100.0, **changes: Any) -> PodFolder:
    shim_spec = {
        "argv": ["/bin/sh", "-c", line],
        "env": {"PATH": "/usr/bin:/bin", "MUSTER_POD": "test-pod"},
        "cwd": str(folder.parent),
        "log": str(folder.parent / "log"),
        "grace_s": grace_s,
        "umask": 0o022,
        "boot_id": "this-boot",
    }
    pod = PodFolder(folder)
    pod.write_spec(shim_spec | changes)
    return pod


def start(pod: PodFolder, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    command = [*prefix, sys.executable, "-I", "-S", shim.__file__, str(pod.path)]
    return subprocess.Popen(command, start_new_session=True)


def end_of(pod: PodFolder) -> ShimExited:
    state = pod.state()
    assert isinstance(state, ShimExited)
    return state


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("line", "code"), [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137), ("kill -11 $$", 139)])
def test_the_exit_code_is_that_of_the_replica_or_128_plus_the_signal(tmp_path: Path, line: str, code: int) -> None:
    pod = write_spec(tmp_path / "pod", line)
    assert pod.state() == ShimNotStarted()
    assert start(pod).wait(100) == 0
    assert end_of(pod).exit_code == code


def test_stdout_and_stderr_are_in_the_log_in_order(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", "echo one; echo two >&2; echo three")
    start(pod).wait(100)
    assert (tmp_path / "log").read_text() == "one\ntwo\nthree\n"
    assert pod.log_sizes()[-1].size == len("one\ntwo\nthree\n")


def test_orphans_of_the_replica_do_not_add_records_of_the_log_size(tmp_path: Path) -> None:
    line = (
        "for i in $(seq 50); do ( (sleep 0.01; echo line) & ); sleep 0.01; done; "
        "until [ $(wc -l < log) = 50 ]; do sleep 0.05; done"
    )
    pod = write_spec(tmp_path / "pod", line)
    start(pod).wait(100)
    end = end_of(pod)
    assert pod.log_sizes()[-1].size == 50 * len("line\n")
    assert len(pod.log_sizes()) <= 2 * (end.finished_at - end.started_at + 2), "at most two in a second"


def test_before_the_start_the_log_was_empty(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", "echo one")
    before = time.time()
    start(pod).wait(100)
    assert byte_range(pod.log_sizes(), None, before) == (0, 0)
    assert byte_range(pod.log_sizes(), before, None) == (0, None)


def test_a_missing_program_has_exit_code_127_and_a_message_in_the_log(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", "", argv=["/no/such/program"])
    start(pod).wait(100)
    assert end_of(pod).exit_code == 127
    assert "cannot start /no/such/program" in (tmp_path / "log").read_text()


def test_no_process_of_a_replica_outlives_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    line = (
        f"(setsid sh -c 'echo $$ >> {pids}; trap \"\" TERM; sleep 100' &) ; sleep 100 & echo $! >> {pids}; "
        f"until [ $(wc -l < {pids}) = 2 ]; do sleep 0.02; done"
    )
    pod = write_spec(tmp_path / "pod", line)
    start(pod).wait(100)
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 2
    assert not any(alive(pid) for pid in started)


needs_setpriv = pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
OTHER_USER = "setpriv --reuid=65534 --clear-groups"
WITHOUT_CAP_KILL = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")  # as a user whose job uses sudo


@needs_setpriv
def test_the_exit_code_is_recorded_although_a_process_of_another_user_remains(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    line = f"{OTHER_USER} sleep 1000 & echo $! > {pid}; until grep -q sleep /proc/$!/comm; do sleep 0.02; done; exit 3"
    pod = write_spec(tmp_path / "pod", line)
    assert start(pod, WITHOUT_CAP_KILL).wait(100) == 0
    assert end_of(pod).exit_code == 3
    os.kill(int(pid.read_text()), signal.SIGKILL)


@needs_setpriv
def test_the_exit_code_of_a_replica_of_another_user_that_cannot_be_stopped_is_recorded(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", f"exec {OTHER_USER} sh -c 'echo up; sleep 3; exit 5'", grace_s=0.1)
    process = start(pod, WITHOUT_CAP_KILL)
    eventually(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
    process.terminate()
    assert process.wait(100) == 0
    assert end_of(pod).exit_code == 5


def test_sigterm_is_sent_to_the_replica_which_may_exit_within_its_grace_period(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", "trap 'echo saved; exit 7' TERM; echo up; while :; do sleep 0.05; done")
    process = start(pod)
    eventually(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
    process.send_signal(signal.SIGTERM)
    process.wait(100)
    assert (end_of(pod).exit_code, end_of(pod).stopped) == (7, True)
    assert (tmp_path / "log").read_text().endswith("saved\n")


def test_a_replica_that_ignores_sigterm_is_killed_after_the_requested_grace_period(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", "trap '' TERM; echo up; sleep 1000", grace_s=1000.0)
    process = start(pod)
    eventually(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
    pod.write_stop(0.3)
    requested = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(100)
    assert end_of(pod).exit_code == 137
    assert time.monotonic() - requested > 0.25


@pytest.mark.parametrize("stop", [None, "", "{", "{}", "[]", '{"grace_s": null}', '{"grace_s": "soon"}'])
def test_without_a_valid_stop_file_the_grace_period_of_the_spec_applies(tmp_path: Path, stop: str | None) -> None:
    pod = write_spec(tmp_path / "pod", "trap 'echo stopping' TERM; echo up; while :; do sleep 0.02; done", grace_s=2.0)
    if stop is not None:
        (pod.path / shim.STOP).write_text(stop)
    process = start(pod)
    eventually(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
    requested = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(100)
    assert time.monotonic() - requested > 1.95
    assert (end_of(pod).exit_code, end_of(pod).stopped) == (137, True)
    assert (tmp_path / "log").read_text() == "up\nstopping\n"


@pytest.mark.parametrize("then_s", [(2000.0, 0.6), (3.0, 2000.0)])
def test_repeated_stop_requests_send_one_sigterm_and_never_extend_the_grace_period(
    tmp_path: Path, then_s: tuple[float, float]
) -> None:
    line = "trap 'echo stopping' TERM; echo up; while :; do sleep 0.02; done"
    pod = write_spec(tmp_path / "pod", line, grace_s=1000.0)
    process = start(pod)
    eventually(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
    pod.write_stop(1000.0)
    process.send_signal(signal.SIGTERM)
    eventually(lambda: "stopping" in (tmp_path / "log").read_text())
    for grace_s in then_s:
        pod.write_stop(grace_s)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.15)
    process.wait(100)  # neither the 1000 s of the first request nor the 2000 s of another
    assert (tmp_path / "log").read_text() == "up\nstopping\n"
    assert end_of(pod).exit_code == 137


def test_two_shims_at_once_run_the_replica_once(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", f"echo ran; until [ -e {tmp_path}/go ]; do sleep 0.02; done")
    processes = [start(pod) for _ in range(5)]
    eventually(lambda: sum(process.poll() is not None for process in processes) == 4)
    (tmp_path / "go").touch()
    codes = sorted(process.wait(100) for process in processes)
    assert codes == [0, *[shim.ALREADY_RUNS] * 4]
    assert (tmp_path / "log").read_text() == "ran\n"


def test_a_replica_that_has_run_never_runs_again(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", "echo ran")
    assert [start(pod).wait(100), start(pod).wait(100)] == [0, shim.ALREADY_RAN]
    assert (tmp_path / "log").read_text() == "ran\n"


def test_killing_a_shim_ends_its_replica_and_its_state_is_lost(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", "echo $$; exec sleep 100")
    process = start(pod)
    main = int(eventually(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text()))
    state = pod.state()
    assert isinstance(state, ShimRunning)
    assert state.pid == process.pid
    process.kill()
    process.wait(100)
    eventually(lambda: not alive(main))
    assert pod.state() == ShimLost("this-boot")


def test_the_collector_starts_with_the_replica_and_is_drained_before_the_exit_file(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    line = f"trap 'sleep 0.3; echo drained; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"
    collector = {
        "argv": ["/bin/sh", "-c", line],
        "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/", "log": str(tmp_path / "collector"), "drain_s": 100,
    }  # fmt: skip
    pod = write_spec(tmp_path / "pod", f"while [ ! -e {ready} ]; do sleep 0.02; done", collector=collector)
    start(pod).wait(100)
    assert (tmp_path / "collector").read_text() == "drained\n"
    assert end_of(pod).collector_status == 0


def test_a_collector_that_does_not_exit_is_killed_and_the_replicas_exit_code_is_kept(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    collector = {
        "argv": ["/bin/sh", "-c", f"trap '' TERM; touch {ready}; sleep 100"],
        "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/", "log": str(tmp_path / "collector"), "drain_s": 0.3,
    }  # fmt: skip
    pod = write_spec(tmp_path / "pod", f"while [ ! -e {ready} ]; do sleep 0.02; done; exit 3", collector=collector)
    start(pod).wait(100)
    assert (end_of(pod).exit_code, end_of(pod).collector_status) == (3, -9)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small disk needs root")
def test_the_exit_file_is_written_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this host does not allow a mount")
    try:
        pod = write_spec(disk / "pod", f"head -c 1000000 /dev/zero > {disk}/full; exit 5")
        start(pod).wait(100)
        assert end_of(pod).exit_code == 5
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_shim_that_cannot_write_starts_nothing_and_can_be_retried(tmp_path: Path) -> None:
    pod = write_spec(tmp_path / "pod", "echo ran")
    (tmp_path / "pod" / shim.SPEC).unlink()
    assert start(pod).wait(100) == shim.NO_SPACE
    assert pod.state() == ShimNotStarted()
    assert not (tmp_path / "log").exists()


def test_the_shim_imports_nothing_of_muster_and_few_modules() -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(sorted(sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, shim.__file__], capture_output=True, text=True, check=True
    )
    modules = json.loads(answer.stdout.replace("'", '"'))
    assert not {"muster", "subprocess", "asyncio", "logging", "pathlib", "psutil"} & set(modules)
