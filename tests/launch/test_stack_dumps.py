"""Stacks of ranks that hang: on request, and before they are killed."""

from __future__ import annotations

import itertools
import re
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.launch.conftest import Pod

from muster.capture.protocol import HungRank
from muster.capture.stacks import collect_stacks, describe_stacks, read_stacks
from muster.tracing.hang.hang_report import analyse_hang
from muster.tracing.read.flight_recorder import SIGNAL_REQUEST, STOP_REQUEST
from muster.tracing.shared_folder import SharedFolder
from muster_components.launch import stack_dumps
from muster_components.launch.rank_layout import RankLayout
from muster_components.launch.rank_process import RankProcess
from muster_components.launch.stack_dumps import SpyDump, StackDumper, main_frames

REGISTERED = """
    from muster_components.trainer.context import install_stack_handler
    install_stack_handler(os.environ)
    import json, pathlib, threading
    folder = pathlib.Path(os.environ["MUSTER_RUN_DIR"], "heartbeats")
    folder.mkdir(parents=True, exist_ok=True)
    ranks = int(os.environ["WORLD_SIZE"])
    heartbeat = {"rank": rank, "world_size": ranks, "attempt": 0, "step": 1, "at": time.time()}
    (folder / f"rank-{rank}.json").write_text(json.dumps(heartbeat))
    threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="other").start()

    def hang():
        print("hangs", rank, flush=True)
        if rank == 1:
            time.sleep(1000)
        else:
            threading.Event().wait()
"""
Start = Callable[..., Pod]


@pytest.mark.slow
def test_the_stacks_of_all_ranks_say_which_one_is_elsewhere(start: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    environ = {"MUSTER_RUN_DIR": str(run_dir), "MUSTER_STACKS_SECONDS": "60"}
    pod = start(REGISTERED + "    hang()\n", "--nproc", "3", **environ)
    for rank in (0, 1, 2):
        pod.await_line(f"hangs {rank}")
    found: list[HungRank] = []
    for request in ("s1", "s2"):
        found = collect_stacks(run_dir, request, 0, lambda: True)
        assert [(one.rank, one.reason) for one in found] == [(0, ""), (1, ""), (2, "")]
        assert found[1].frames[0].startswith("hang (")
        whole = (run_dir / found[1].file).read_text()
        assert whole.count("(most recent call first)") == 2  # both threads
    text = describe_stacks(found)
    assert text.startswith("rank 1 is in hang (")
    assert "; ranks 0, 2 are in wait (" in text
    assert ", called from hang (" in text


HUNG_COLLECTIVE = """
    import json, pathlib
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from muster_components.trainer.context import install_stack_handler
    from muster_components.trainer.flight_recorder import serve_flight_recorder
    install_stack_handler(os.environ)
    serve_flight_recorder(os.environ)
    dist.init_process_group("gloo")
    group = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "fsdp")).get_group("fsdp")
    value = torch.ones(5)
    for _ in range(2):
        dist.all_reduce(value, group=group)
    print("hangs", rank, flush=True)
    if rank == 3:
        time.sleep(1000)
    dist.all_gather([torch.ones(5), torch.ones(5)], value, group=group)
    time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_id", "grace_s", "handler"),
    [
        pytest.param(SIGNAL_REQUEST, 1200, "", marks=pytest.mark.smoke),  # the ranks die of SIGTERM
        (STOP_REQUEST, 2, "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"),
    ],
)
def test_a_stall_leaves_the_rank_that_did_not_enter_a_collective_in_the_run_folder(
    start: Start, tmp_path: Path, request_id: str, grace_s: int, handler: str
) -> None:
    run_dir = tmp_path / "run"
    environ = {"MUSTER_RUN_DIR": str(run_dir), "MUSTER_GRACE_SECONDS": str(grace_s), "MUSTER_STACKS_SECONDS": "60"}
    pod = start(handler + HUNG_COLLECTIVE, "--nproc", "4", **environ)
    for rank in range(4):
        pod.await_line(f"hangs {rank}")
    expected = "rank 3 never entered all-gather 3 of group fsdp; rank 2 waits in it, since "
    found: list[HungRank] = []
    for request in itertools.count():  # until the ranks are in their collectives, and have waited there
        found = collect_stacks(run_dir, f"s{request}", 0, lambda: True)
        if describe_stacks(found).startswith(expected):
            break
    assert [one.reason for one in found] == [""] * 4
    text = describe_stacks(found)
    assert re.match(
        re.escape(expected) + r"[\d.]+ s; rank 2 is in all_gather \(", text
    )  # the stacks alone would name rank 2
    pod.process.terminate()  # as the engine does after a stall
    assert pod.end()[0] == 143
    saved = read_stacks(SharedFolder(run_dir), request_id)
    assert describe_stacks(saved).startswith(expected)
    assert (run_dir / "flight-recorder" / f"rank-3.attempt-0.{request_id}.pickle").is_file()
    assert analyse_hang(run_dir).sentences[0].startswith(expected)


HUNG_TRAINER = """
    import threading
    from datetime import timedelta
    from muster_components.trainer import device
    from muster_components.trainer.__main__ import main
    from muster_components.trainer.forward_backward import GradientAccumulation
    device.STEADY_TIMEOUT = timedelta(seconds=2)
    run, step = GradientAccumulation.run, 0
    def hangs(self, batches):
        global step
        step += 1
        if step == 3 and rank == 1:
            threading.Event().wait()
        return run(self, batches)
    GradientAccumulation.run = hangs
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_after_the_first_step_ranks_wait_for_a_rank_that_hangs_for_a_short_time_and_its_stacks_are_saved(
    start: Start, tmp_path: Path
) -> None:
    text, run_dir = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("the quick fox jumps over the lazy dog. " * 200)
    model = ("--model", "gpt:1m", "--seq_len", "32", "--global_batch", "4", "--no_compile")
    environ = {"MUSTER_RUN_DIR": str(run_dir), "MUSTER_STACKS_SECONDS": "60", "CUDA_VISIBLE_DEVICES": ""}
    pod = start(HUNG_TRAINER, "--nproc", "2", args=(*model, "--data", str(text), "--steps", "5"), **environ)
    code, log = pod.end()
    assert code == 1, log
    assert "rank 0 failed first" in log
    assert "Timed out waiting 2000ms" in log
    assert " in hangs\n" in (run_dir / "stacks" / "rank-1.attempt-0.sigterm.txt").read_text()


@pytest.mark.slow
def test_ranks_that_do_not_stop_leave_their_stacks_in_the_log_and_in_the_run_folder(
    start: Start, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    source = REGISTERED + "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    hang()\n"
    environ = {"MUSTER_RUN_DIR": str(run_dir), "MUSTER_GRACE_SECONDS": "2", "MUSTER_STACKS_SECONDS": "60"}
    pod = start(source, "--nproc", "2", **environ)
    for rank in (0, 1):
        pod.await_line(f"hangs {rank}")
    pod.process.terminate()
    _, log = pod.end()
    assert "muster: rank 1 did not stop; it is in hang (" in log
    saved = {path.name for path in (run_dir / "stacks").iterdir()}
    assert {f"rank-{rank}.attempt-0.stop.txt" for rank in (0, 1)} <= saved


@pytest.mark.slow
def test_a_rank_without_the_handler_is_not_signalled_and_is_named(start: Start, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    pod = start("print('runs', flush=True)\ntime.sleep(1000)\n", "--nproc", "1", MUSTER_RUN_DIR=str(run_dir))
    pod.await_line("runs")
    (found,) = collect_stacks(run_dir, "s1", 0, lambda: True)
    assert "the program does not print stacks on request" in found.reason
    assert pod.process.poll() is None


@dataclass
class SignalledProcess:
    """Writes these stacks when it is signalled; a suspended process writes none."""

    file: Path
    stacks: str
    pid: int = 0
    returncode: int | None = None

    def send_signal(self, signum: int) -> None:
        self.file.write_text(self.stacks)


def test_suspended_ranks_share_one_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes only in `sleep`, so that the host's load does not matter."""
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(stack_dumps, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(stack_dumps, "_catches", lambda pid: True)
    ranks: dict[int, RankProcess] = {}
    for rank in range(8):
        file = tmp_path / f"{rank}.stacks"
        file.touch()
        stacks = '  File "/a.py", line 3 in hang\n' if rank == 7 else ""
        process = cast("subprocess.Popen[bytes]", SignalledProcess(file, stacks))
        ranks[rank] = RankProcess(rank, process, error_file="", stacks_file=str(file))
    found = StackDumper(ranks, None, RankLayout(nproc=8)).dump("stop", ranks)
    assert now - 1000 == pytest.approx(3, abs=0.1)
    assert [one.rank for one in found if "no stacks within 3 s" in one.reason] == list(range(7))
    assert found[7].frames == ("hang (/a.py:3)",)


def test_a_rank_is_asked_for_its_flight_recorder_after_its_stacks_whatever_another_rank_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that wakes up while faulthandler reads its stack can crash the rank."""
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    requested: list[tuple[int, str, bool]] = []

    def request_recorder(dumper: StackDumper, request: str, rank: int) -> str:
        requested.append((rank, (tmp_path / f"{rank}.stacks").read_text(), now < 1002))
        return ""

    monkeypatch.setattr(stack_dumps, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    monkeypatch.setattr(stack_dumps, "_catches", lambda pid: True)
    monkeypatch.setattr(StackDumper, "_request_recorder", request_recorder)
    ranks: dict[int, RankProcess] = {}
    for rank, stacks in enumerate(["", "stacks"]):  # rank 0 is suspended
        file = tmp_path / f"{rank}.stacks"
        file.touch()
        process = cast("subprocess.Popen[bytes]", SignalledProcess(file, stacks))
        ranks[rank] = RankProcess(rank, process, error_file="", stacks_file=str(file))
    StackDumper(ranks, None, RankLayout(nproc=2)).dump("sigterm", ranks)
    assert requested == [(1, "stacks", True), (0, "", False)]


def test_ranks_without_a_handler_are_read_at_once_within_the_same_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(4)
    limits: list[float] = []

    def spy_dump(pid: int, timeout_s: float) -> SpyDump:
        together.wait(600)  # the others have begun, too
        limits.append(timeout_s)
        return SpyDump(reason="py-spy did not end")

    monkeypatch.setattr(stack_dumps, "spy_dump", spy_dump)
    process = cast("subprocess.Popen[bytes]", SignalledProcess(tmp_path / "unused", ""))
    ranks = {rank: RankProcess(rank, process, error_file="", stacks_file="") for rank in range(4)}
    found = StackDumper(ranks, None, RankLayout(nproc=4, stacks_timeout_s=0.5)).dump("s1", ranks)
    assert limits == [0.5] * 4
    assert [(one.rank, "py-spy did not end" in one.reason) for one in found] == [(rank, True) for rank in range(4)]


def test_without_a_launcher_the_ranks_are_named(tmp_path: Path) -> None:
    (found,) = collect_stacks(tmp_path, "s1", 0, lambda: False)
    assert "python -m muster_components.launch" in found.reason
    assert describe_stacks([found]) == "no stacks"


def test_the_main_thread_is_the_last_one_of_a_dump() -> None:
    text = (
        'Thread 0x7f (most recent call first):\n  File "/a.py", line 3 in other\n\n'
        'Current thread 0x7e (most recent call first):\n  File "/b c.py", line 10 in <module>\n'
    )
    assert main_frames(text) == ("<module> (/b c.py:10)",)
    assert main_frames("") == ()
    imports = '  File "<frozen importlib._bootstrap>", line 241 in _call\n' * 40
    assert main_frames(f'{imports}  File "/train.py", line 1 in <module>\n') == ("<module> (/train.py:1)",)
