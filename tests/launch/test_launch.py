"""The launcher with real processes: exit codes, signals, grace period, output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster_components.trainer.errors import EXIT_IMPORT

from .conftest import Pod

Start = Callable[..., Pod]


def test_each_rank_runs_the_script_with_its_arguments(start: Start) -> None:
    code, log = start(
        "print(rank, os.environ['LOCAL_RANK'], os.environ['WORLD_SIZE'], *sys.argv[1:])",
        "--nproc", "2",
        args=("--lr", "0.1", "--", "-x"),
    ).end()  # fmt: skip
    assert sorted(log.splitlines()) == ["0 0 2 --lr 0.1 -- -x", "[r1] 1 1 2 --lr 0.1 -- -x"]
    assert code == 0


def test_a_single_pod_uses_any_free_port(start: Start) -> None:
    code, log = start("print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])", "--nproc", "1").end()
    address, port = log.split()
    assert (code, address) == (0, "127.0.0.1")
    assert 0 < int(port) < 65536


def test_the_exit_code_is_that_of_the_rank_that_failed_first(start: Start) -> None:
    code, log = start(
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        if rank == 1:
            print("out of data", flush=True)
            sys.exit(7)
        time.sleep(600)
        """,
        "--nproc", "3",
    ).end()  # fmt: skip
    assert code == 7
    assert "muster: rank 1 failed first, after" in log
    assert "exit code 7; its last line: out of data" in log


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("def broken(:", 78),
        ("  x = 1\nif x:\n y", 78),
        ("import no_such_module", 78),
        ("from os import no_such_name", 1),
        ("raise RuntimeError('SyntaxError: of another program')", 1),
    ],
    ids=["syntax", "indentation", "missing module", "missing name", "other error"],
)
def test_code_that_a_restart_cannot_cure_has_an_exit_code_of_its_own(start: Start, source: str, code: int) -> None:
    assert start(source).end()[0] == code


def test_a_rank_ended_by_a_signal_gives_128_plus_the_signal(start: Start) -> None:
    code, log = start("os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(600)", "--nproc", "2").end()
    assert code == 128 + signal.SIGKILL
    assert "rank 1 failed first" in log
    assert "killed by SIGKILL (out of memory?)" in log


def test_the_error_recorded_by_torch_is_in_the_log(start: Start) -> None:
    code, log = start(
        """
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            file.write('{"message": {"message": "ValueError: no such shard", "extraInfo": {"timestamp": "1"}}}')
        sys.exit(3)
        """
    ).end()
    assert code == 3
    assert "exit code 3: ValueError: no such shard" in log


def test_sigterm_is_sent_to_every_rank_and_the_exit_code_is_143(start: Start) -> None:
    pod = start(
        """
        def stop(*_):
            print("saved", rank, flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        print("ready", rank, flush=True)
        time.sleep(600)
        """,
        "--nproc", "2", MUSTER_GRACE_SECONDS="600",
    )  # fmt: skip
    pod.await_line("ready 0")
    pod.await_line("ready 1")
    pod.process.terminate()
    code, log = pod.end()
    assert code == 128 + signal.SIGTERM
    assert "saved 0" in log
    assert "[r1] saved 1" in log


@pytest.mark.parametrize(
    ("phase", "steps", "attempt", "code"),
    [("done", 5, 0, 0), ("done", 6, 0, 143), ("done", None, 0, 143), ("train", 5, 0, 143), ("done", 5, 1, 143)],
)
def test_after_a_signal_the_exit_code_is_0_only_if_all_ranks_have_done_their_last_step(
    start: Start, tmp_path: Path, phase: str, steps: int | None, attempt: int, code: int
) -> None:
    heartbeat = {"phase": phase, "step": 5, "steps": steps, "attempt": attempt}
    (tmp_path / "heartbeats").mkdir()
    for rank in range(2):
        (tmp_path / "heartbeats" / f"rank-{rank}.json").write_text(json.dumps(heartbeat))
    source = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('ready', rank, flush=True)\ntime.sleep(600)"
    pod = start(source, "--nproc", "2", MUSTER_RUN_DIR=str(tmp_path), MUSTER_GRACE_SECONDS="1200")
    for rank in range(2):
        pod.await_line(f"ready {rank}")
    pod.process.terminate()
    assert pod.end()[0] == code


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace_period(start: Start) -> None:
    pod = start(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
        MUSTER_GRACE_SECONDS="2",
    )
    pod.await_line("deaf")
    began = time.monotonic()
    pod.process.terminate()
    code, log = pod.end()
    assert code == 128 + signal.SIGTERM
    assert "rank 0 may take 1 s to stop" in log
    assert "killing rank 0" in log
    assert time.monotonic() - began >= 0.9


def test_a_second_signal_kills_at_once(start: Start) -> None:
    pod = start(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
        MUSTER_GRACE_SECONDS="600",
    )
    pod.await_line("deaf")
    pod.process.send_signal(signal.SIGINT)
    pod.await_line("may take 590 s")
    pod.process.send_signal(signal.SIGINT)
    assert pod.end()[0] == 128 + signal.SIGINT


def test_workers_of_a_rank_live_until_it_has_saved_a_checkpoint(start: Start) -> None:
    pod = start(
        """
        import subprocess
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        def stop(*_):
            time.sleep(0.2)
            print("worker", worker.poll(), flush=True)
            worker.kill()
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        time.sleep(600)
        """,
        MUSTER_GRACE_SECONDS="600",
    )
    pod.await_line("ready")
    pod.process.terminate()
    assert "worker None" in pod.end()[1]


def test_the_children_of_a_killed_rank_are_killed(start: Start, tmp_path: Path) -> None:
    pod = start(
        """
        import subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("worker", worker.pid, flush=True)
        time.sleep(600)
        """,
        MUSTER_GRACE_SECONDS="1",
    )
    pod.await_line("worker")
    worker = int(pod.log_text().split()[1])
    pod.process.terminate()
    pod.end()
    deadline = time.monotonic() + 300
    while _runs(worker):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_grandchild_that_keeps_the_log_open_does_not_delay_the_exit(start: Start, tmp_path: Path) -> None:
    source = """
        import subprocess
        if rank == 1:
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open("child", "w") as note:
                note.write(str(child.pid))
        """
    assert start(source, "--nproc", "2").end()[0] == 0
    child = int((tmp_path / "child").read_text())
    assert _runs(child)
    os.kill(child, signal.SIGKILL)


def test_the_number_of_threads_fits_the_host_unless_the_user_sets_it(start: Start) -> None:
    cores = len(os.sched_getaffinity(0))
    script = "print('threads', os.environ['OMP_NUM_THREADS'])"
    assert f"threads {max(1, cores // 2)}\n" in start(script, "--nproc", "2").end()[1]
    assert "threads 5\n" in start(script, OMP_NUM_THREADS="5").end()[1]


def test_a_port_in_use_is_reported_before_any_rank_starts(start: Start, tmp_path: Path) -> None:
    note = tmp_path / "failure.json"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, log = start(
            "print('started')", "--nproc", "2", MUSTER_RANK0_HOST="127.0.0.1", MUSTER_RANK0_PORT=str(port),
            MUSTER_FAILURE_FILE=str(note),
        ).end()  # fmt: skip
    assert code == 75
    assert json.loads(note.read_text())["reason"] == "PortInUse"
    assert f"port {port} of" in log
    assert "MUSTER_RANK0_PORT" in log
    assert "started" not in log


def test_a_script_that_does_not_exist_is_named() -> None:
    ran = _launch("--nproc", "2", "--", "no/such.py")
    assert ran.returncode == 2
    assert "script no/such.py does not exist in" in ran.stdout


def test_unknown_options_are_named() -> None:
    for options, message in (
        (("--nproc", "0", "--", "x.py"), "must be an integer of at least 1; got '0'"),
        (("--nproc", "9" * 5000, "--", "x.py"), "must be an integer of at least 1; got '999"),
        (("--nproc", "2"), "the command of the ranks is missing"),
        (("--nproc", "2", "--", "-m"), "the command of the ranks is missing"),
        (("--ranks", "2", "--", "x.py"), "'--ranks' is not an argument of the launcher"),
        (("--nprocs", "2", "--", "x.py"), "'--nprocs' is not an argument of the launcher; did you mean --nproc?"),
        (
            ("--nproc", "2", "x.py"),
            "'x.py' is not an argument of the launcher; give the command",
        ),
    ):
        ran = _launch(*options)
        assert ran.returncode == 2
        assert message in ran.stdout + ran.stderr


def test_an_inconsistent_layout_names_the_variable() -> None:
    for environ, message in (
        ({"MUSTER_REPLICA": "2", "MUSTER_REPLICAS": "2"}, "MUSTER_REPLICA must be 0 to 1, for 2 pods; got 2"),
        ({"MUSTER_REPLICAS": "2"}, "MUSTER_RANK0_HOST and MUSTER_RANK0_PORT must be set for 2 pods"),
        ({"MUSTER_REPLICAS": "two"}, "MUSTER_REPLICAS must be an integer of at least 1; got 'two'"),
        ({"MUSTER_REPLICAS": "9" * 5000}, "MUSTER_REPLICAS must be an integer of at least 1; got '999"),
        ({"MUSTER_RANK0_PORT": "70000"}, "MUSTER_RANK0_PORT must be 1 to 65535; got 70000"),
        ({"MUSTER_GRACE_SECONDS": "soon"}, "MUSTER_GRACE_SECONDS must be a number of seconds, such as 30; got 'soon'"),
        ({"MUSTER_GRACE_SECONDS": "inf"}, "MUSTER_GRACE_SECONDS must be a number of seconds, such as 30; got 'inf'"),
        ({"MUSTER_STACKS_SECONDS": "no"}, "MUSTER_STACKS_SECONDS must be a number of seconds, such as 3; got 'no'"),
    ):
        ran = _launch("--", "-m", "this", **environ)
        assert ran.returncode == 2
        assert message in ran.stdout


def test_lines_of_several_ranks_do_not_mix(start: Start) -> None:
    _, log = start("for i in range(300): print('rank', rank, 'line', i)", "--nproc", "3").end()
    prefixes = ("", "[r1] ", "[r2] ")
    expected = {f"{prefixes[rank]}rank {rank} line {i}" for rank in range(3) for i in range(300)}
    assert set(log.splitlines()) == expected


def test_output_of_rank_0_without_newline_is_forwarded(start: Start) -> None:
    pod = start("print('\\r 50%', end='', flush=True); time.sleep(600)")
    pod.await_line("\r 50%")


def test_no_orphan_remains_when_the_ranks_end(start: Start) -> None:
    pod = start("print('pid', os.getpid(), flush=True)", "--nproc", "2")
    _, log = pod.end()
    pids = [int(line.split("pid ")[1]) for line in log.splitlines() if "pid " in line]
    assert len(pids) == 2
    assert not any(_runs(pid) for pid in pids)


def _launch(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "muster_components.launch", *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ}, check=False)


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_an_import_error_of_torch_is_reported_by_its_last_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text(
        "raise ImportError('first line\\n\\nlibcudart.so.12: cannot open shared object file')\n"
    )
    note = tmp_path / "failure.json"
    code, log = start(
        "time.sleep(600)", "--nproc", "2", PYTHONPATH=str(tmp_path / "broken"), MUSTER_FAILURE_FILE=str(note)
    ).end()
    assert code == EXIT_IMPORT  # as a rank of the trainer ends whose own import fails
    assert "torch cannot be imported" in log
    assert "libcudart.so.12: cannot open shared object file" in log
    assert "rendezvous" not in log
    assert json.loads(note.read_text())["exit_code"] == EXIT_IMPORT


@pytest.mark.parametrize("module", ["muster_components.trainer", "muster_components.trainer.instrument"])
def test_a_rank_without_torch_ends_with_a_code_that_is_not_retried(tmp_path: Path, module: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    (tmp_path / "train.py").write_text("import torch\n")
    flags = ["--model", "gpt:1m", "--data", "x"] if module.endswith("trainer") else [str(tmp_path / "train.py")]
    environ = {"PYTHONPATH": str(tmp_path), "MUSTER_RUN_DIR": str(tmp_path / "run")}
    ended = _launch("--", "-m", module, *flags, **environ)
    assert ended.returncode == EXIT_IMPORT, ended.stderr
    assert "No module named 'torch'" in ended.stdout + ended.stderr
