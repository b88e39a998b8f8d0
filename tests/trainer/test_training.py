"""Complete runs with real ranks: interruptions and other world sizes do not change the losses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from muster_components.trainer.errors import (
    EXIT_BAD_INPUT,
    EXIT_DIVERGED,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
)

from .conftest import (
    SIGNALLED_IN_STEP_3,
    TINY,
    Finished,
    Starter,
    clean_environment,
    events,
    latest,
    losses,
    metrics,
    write_files_after,
    write_text,
)

pytestmark = pytest.mark.slow


@pytest.mark.smoke
def test_kills_stops_and_resumes_with_another_world_size_or_ddp_do_not_change_the_losses(
    start: Starter, text: Path, tmp_path: Path
) -> None:
    run = (*TINY, "--data", str(text), "--steps", "60", "--checkpoint_every", "10")
    assert start(2, *run, run_dir=tmp_path / "undisturbed").end() == [EXIT_OK] * 2
    expected = losses(tmp_path / "undisturbed")
    assert list(expected) == list(range(1, 61))
    assert expected[60] < expected[1] - 2

    folder = tmp_path / "disturbed"
    first = start(4, *run, run_dir=folder, held_at=45)
    first.wait_until(lambda: latest(folder))
    first.send(signal.SIGKILL)
    first.end()
    saved = latest(folder)
    assert saved is not None
    assert saved["step"] < 60

    second = start(1, *run, run_dir=folder, attempt=1, held_at=50)
    second.wait_until(lambda: second.steps_done() > 2)
    second.send(signal.SIGTERM)
    second.go_on()
    assert second.end() == [EXIT_STOPPED]
    assert f"resumed after step {saved['step']} " in second.log_text()
    stopped = latest(folder)
    assert stopped is not None
    assert saved["step"] < stopped["step"] < 60
    assert stopped["attempt"] == 1

    # Eight sequences on three ranks need one padding sequence.
    third = start(3, *run, "--parallel", "ddp", run_dir=folder, attempt=2)
    assert third.end() == [EXIT_OK] * 3
    assert "1 padding sequences" in third.log_text()
    assert "3 ranks on CPU, ddp" in third.log_text()
    assert losses(folder) == pytest.approx(expected, abs=1e-4)


COMPILED_RUN = ("--model", "gpt:1m", "--seq_len", "32", "--global_batch", "8", "--steps", "4")


@pytest.fixture(scope="module")
def not_compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of COMPILED_RUN on two ranks without compilation; its text is beside it."""
    folder = tmp_path_factory.mktemp("not-compiled")
    starter = Starter(folder)
    ranks = starter(2, *COMPILED_RUN, "--data", str(write_text(folder)), "--no_compile")
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    assert "not compiled" in ranks.log_text()
    starter.kill_all()
    return ranks.run_dir


@pytest.mark.compiles
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--activation_checkpointing", "full"), marks=pytest.mark.smoke),
        ("--activation_checkpointing", "selective", "--parallel", "tp=2"),
    ],
    ids=" ".join,
)
def test_compilation_and_activation_checkpointing_do_not_change_the_losses(
    start: Starter, not_compiled: Path, flags: tuple[str, ...]
) -> None:
    text = str(not_compiled.parent / "text")
    ranks = start(2, *COMPILED_RUN, "--data", text, "--compile", *flags, environ=compile_cache())
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    assert ", compiled, " in ranks.log_text()
    assert losses(ranks.run_dir) == pytest.approx(losses(not_compiled), abs=1e-3)


def test_a_memory_budget_does_not_change_the_losses(start: Starter, text: Path, tmp_path: Path) -> None:
    run = (*COMPILED_RUN, "--data", str(text))
    budget = ("--backend", "aot_eager", "--activation_checkpointing", "budget:0.2")
    for name, flags in {"budget": budget, "plain": ("--no_compile",)}.items():
        ranks = start(2, *run, *flags, run_dir=tmp_path / name)
        assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
        assert ("compiled by aot_eager, fp32, budget:0.2 recompute" in ranks.log_text()) == (name == "budget")
    assert losses(tmp_path / "budget") == pytest.approx(losses(tmp_path / "plain"), abs=1e-4)


def test_deterministic_runs_have_equal_losses_to_the_last_bit(start: Starter, text: Path, tmp_path: Path) -> None:
    run = (*TINY, "--data", str(text), "--steps", "5", "--micro_batch", "2", "--deterministic")
    for name in ("first", "second"):
        assert start(2, *run, run_dir=tmp_path / name).end() == [EXIT_OK] * 2
    first, second = metrics(tmp_path / "first"), metrics(tmp_path / "second")
    assert [(line["loss"], line["grad_norm"]) for line in first] == [
        (line["loss"], line["grad_norm"]) for line in second
    ]


def test_under_torchrun_sigterm_saves_a_checkpoint_and_every_rank_exits_with_143(text: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "muster_components.trainer", *TINY, "--data", str(text), "--steps", "100000",
        "--checkpoint_every", "0", "--output", str(run_dir),
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log, env=clean_environment(tmp_path), cwd=tmp_path)
    try:
        deadline = time.monotonic() + 600
        while len(metrics(run_dir)) < 5:
            assert agent.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        agent.send_signal(signal.SIGTERM)
        agent.wait(200)
    finally:
        agent.kill()
        agent.wait()
    log_text = (tmp_path / "log").read_text()
    saved = latest(run_dir)
    assert saved is not None, log_text
    for rank in (0, 1):
        assert metrics(run_dir, rank)[-1]["step"] == saved["step"]
    assert f"stopped after step {saved['step']}/100000" in log_text
    assert [event["kind"] for event in map(json.loads, (run_dir / "events.jsonl").read_text().splitlines())][-2:] == [
        "stopping",
        "checkpoint_saved",
    ]


def test_with_keep_0_nothing_is_saved_and_the_run_succeeds(start: Starter, text: Path) -> None:
    ranks = start(2, *TINY, "--data", str(text), "--steps", "4", "--keep", "0")
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    assert list(losses(ranks.run_dir)) == [1, 2, 3, 4]
    assert latest(ranks.run_dir) is None
    assert not events(ranks.run_dir, "checkpoint_saved")


def test_with_keep_0_neither_the_event_nor_the_last_heartbeat_of_a_stop_tells_of_a_checkpoint(
    start: Starter, text: Path
) -> None:
    ranks = start(1, *TINY, "--data", str(text), "--steps", "100000", "--keep", "0")
    ranks.wait_until(lambda: ranks.steps_done() > 3)
    ranks.send(signal.SIGTERM)
    assert ranks.end() == [EXIT_STOPPED], ranks.log_text()
    (event,) = events(ranks.run_dir, "stopping")
    assert event["message"].endswith("; nothing is saved, since --keep is 0")
    assert json.loads((ranks.run_dir / "heartbeats/rank-0.json").read_text())["phase"] == "train"


def test_a_signal_to_one_rank_stops_all_in_the_same_step(start: Starter, text: Path, tmp_path: Path) -> None:
    ranks = start(2, *TINY, "--data", str(text), "--steps", "100000", "--checkpoint_every", "0")
    ranks.wait_until(lambda: ranks.steps_done() > 3)
    ranks.processes[1].send_signal(signal.SIGTERM)
    assert ranks.end() == [EXIT_STOPPED] * 2
    assert metrics(tmp_path / "run", 0)[-1]["step"] == metrics(tmp_path / "run", 1)[-1]["step"]


def test_when_a_rank_is_killed_the_others_end_with_a_traceback(start: Starter, text: Path) -> None:
    ranks = start(2, *TINY, "--data", str(text), "--steps", "100000", "--checkpoint_every", "2")
    ranks.wait_until(lambda: ranks.steps_done() > 3)
    ranks.processes[1].kill()
    assert ranks.end()[0] == EXIT_FAILED
    assert "Traceback" in ranks.log_text()


def test_ctrl_c_saves_a_checkpoint_and_has_its_own_exit_code(start: Starter, text: Path, tmp_path: Path) -> None:
    ranks = start(1, *TINY, "--data", str(text), "--steps", "100000", "--checkpoint_every", "0")
    ranks.wait_until(lambda: ranks.steps_done() > 3)
    ranks.send(signal.SIGINT)
    assert ranks.end() == [EXIT_INTERRUPTED]
    assert latest(tmp_path / "run") is not None


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_signal_during_a_step_stops_all_ranks_after_this_step(
    start: Starter, text: Path, tmp_path: Path, world_size: int
) -> None:
    (tmp_path / "signalled.py").write_text(SIGNALLED_IN_STEP_3)
    ranks = start(
        world_size, *TINY, "--data", str(text), "--steps", "9", module="signalled",
        environ={"SIGNALLED_RANK": str(world_size - 1)},
    )  # fmt: skip
    assert ranks.end() == [EXIT_STOPPED] * world_size, ranks.log_text()
    saved = latest(ranks.run_dir)
    assert saved is not None
    assert saved["step"] == 3


def test_unreadable_checkpoints_are_named_and_the_previous_one_is_used(start: Starter, finished: Finished) -> None:
    expected = losses(finished.run_dir)
    checkpoints = finished.run_dir / "checkpoints"
    (checkpoints / "step-00000009" / ".metadata").unlink()
    part = checkpoints / "step-00000006" / "__1_0.distcp"
    part.write_bytes(part.read_bytes()[:5000])
    (checkpoints / "latest").write_text("no json")

    again = start(2, *finished.flags, attempt=1)
    assert again.end() == [EXIT_OK] * 2
    assert "resumed after step 3 " in again.log_text()
    named = [event["message"] for event in events(finished.run_dir, "checkpoint_unreadable")]
    assert len(named) == 3
    for name, message in zip(("latest", "step-00000009", "step-00000006"), named, strict=True):
        assert name in message
    assert losses(finished.run_dir) == pytest.approx(expected, abs=1e-4)


def test_resume_never_counts_for_the_first_attempt_and_later_ones_resume_its_own_checkpoints(
    start: Starter, finished: Finished
) -> None:
    run = (*finished.flags, "--resume", "never", "--steps")
    uid = {"MUSTER_JOB_UID": "u2"}
    first = start(1, *run, "4", run_dir=finished.run_dir, environ=uid)
    assert first.end() == [EXIT_OK], first.log_text()
    saved = latest(finished.run_dir)
    assert saved is not None
    assert (saved["step"], saved["path"]) == (4, "checkpoints/step-00000004")
    for part in finished.run_dir.glob("checkpoints/step-00000004/*.distcp"):
        part.write_bytes(b"")
    second = start(1, *run, "5", run_dir=finished.run_dir, attempt=1, environ=uid)
    assert second.end() == [EXIT_OK], second.log_text()
    assert "resumed after step 3 " in second.log_text()
    assert "step-00000003.2" in second.log_text()


def test_if_no_checkpoint_can_be_read_the_run_fails(start: Starter, finished: Finished) -> None:
    for part in finished.run_dir.glob("checkpoints/step-*/*.distcp"):
        part.write_bytes(b"")
    again = start(1, *finished.flags, attempt=1)
    assert again.end() == [EXIT_FAILED]
    assert "--resume never starts from the beginning" in again.log_text()


def test_a_checkpoint_of_another_run_is_rejected_with_both_values(start: Starter, finished: Finished) -> None:
    other = start(1, *finished.flags, "--global_batch", "4", attempt=1)
    assert other.end() == [EXIT_BAD_INPUT]
    assert "global_batch was 8, is 4" in other.log_text()


def test_a_resume_with_other_data_is_rejected(start: Starter, finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("quite another text, long enough for a few windows of it\n" * 200)
    changed = start(1, *finished.flags, "--data", str(tmp_path / "other.txt"), attempt=1)
    assert changed.end() == [EXIT_BAD_INPUT]
    assert "data was '" in changed.log_text()
    assert "11,201 bytes of text" in changed.log_text()


def test_a_completed_run_has_nothing_to_do(start: Starter, finished: Finished) -> None:
    again = start(1, *finished.flags, attempt=1)
    assert again.end() == [EXIT_OK]
    assert "nothing to do: step 9/9 was already done" in again.log_text()


def test_the_first_and_the_last_step_are_always_printed(start: Starter, text: Path) -> None:
    run = (*TINY, "--data", str(text), "--log_every", "4")
    first = start(1, *run, "--steps", "5")
    assert first.end() == [EXIT_OK]
    assert printed_steps(first.log_text()) == ["step 1/5: first step", "step 4/5", "step 5/5"]
    second = start(1, *run, "--steps", "8", attempt=1)
    assert second.end() == [EXIT_OK]
    assert printed_steps(second.log_text()) == ["step 6/8: first step", "step 8/8"]


def printed_steps(log_text: str) -> list[str]:
    lines = [line.split("  ") for line in log_text.splitlines() if line.startswith("step ")]
    return [parts[0] + (": first step" if parts[-1].startswith("first step ") else "") for parts in lines]


def test_a_loss_that_is_not_finite_ends_the_run_and_is_not_saved(start: Starter, text: Path) -> None:
    ranks = start(
        2, *TINY, "--data", str(text), "--steps", "200", "--lr", "1e30", "--warmup", "0", "--checkpoint_every", "1"
    )
    assert ranks.end() == [EXIT_DIVERGED] * 2
    assert "must be finite" in ranks.log_text()
    (diverged,) = events(ranks.run_dir, "diverged")
    saved = latest(ranks.run_dir)
    assert saved is None or saved["step"] < diverged["step"]


GRADIENT_IS_NAN = """
from torch import nn

class Data:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return {"x": [float(i), 1.0]}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 1)
    def forward(self, x):
        y = self.linear(x)
        return y.square().mean() + (y - y).sqrt().sum()
"""


def test_a_gradient_that_is_not_finite_ends_the_run_though_the_loss_is(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "nan_user.py").write_text(GRADIENT_IS_NAN)
    flags = ("--model", "nan_user:Model", "--data", "nan_user:Data", "--global_batch", "4", "--steps", "3")
    ranks = start(2, *flags, "--no_compile", "--checkpoint_every", "1")
    assert ranks.end() == [EXIT_DIVERGED] * 2, ranks.log_text()
    (diverged,) = events(ranks.run_dir, "diverged")
    assert diverged["step"] == 1
    assert "gradient norm nan: must be finite" in diverged["message"]
    assert latest(ranks.run_dir) is None


def test_a_checkpoint_that_is_being_written_when_the_loss_diverges_is_saved(
    start: Starter, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "slow_save.py").write_text(write_files_after("diverged"))
    # The first step has a finite loss, and sets weights whose loss has none.
    run = (*TINY, "--data", str(text), "--steps", "2", "--lr", "1e30", "--warmup", "0", "--checkpoint_every", "1")
    ranks = start(2, *run, module="slow_save")
    assert ranks.end() == [EXIT_DIVERGED] * 2, ranks.log_text()
    (diverged,) = events(ranks.run_dir, "diverged")
    saved = latest(ranks.run_dir)
    assert saved is not None, ranks.log_text()
    assert (saved["step"], diverged["step"]) == (1, 2)
    assert events(ranks.run_dir, "checkpoint_failed") == []


SAVE_AFTER_A_READ_FAILS = """
import os, sys, time
from pathlib import Path
from muster_components.trainer.__main__ import main
from muster_components.trainer import checkpoint_writer
from muster_components.trainer.forward_backward import BatchReader
failed = Path(os.environ["MUSTER_RUN_DIR"], "failed")
read, write = BatchReader.read, checkpoint_writer.write_files
def noted(self, step):
    try:
        return read(self, step)
    except Exception:
        failed.touch()
        raise
def afterwards(*args):
    while not failed.exists():
        time.sleep(0.01)
    time.sleep(0.5)  # without waiting for this, the trainer would end meanwhile
    return write(*args)
BatchReader.read, checkpoint_writer.write_files = noted, afterwards
sys.exit(main(sys.argv[1:]))
"""


def test_a_checkpoint_that_is_being_written_when_data_cannot_be_read_is_saved(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "slow_save.py").write_text(SAVE_AFTER_A_READ_FAILS)
    tokens = np.full(1_001, 5, dtype="<u2")
    tokens[600] = 300  # beyond the vocabulary, in a window of the third step
    tokens.tofile(tmp_path / "tokens.bin")
    run = (*TINY, "--data", str(tmp_path / "tokens.bin"), "--steps", "4", "--checkpoint_every", "2")
    ranks = start(1, *run, module="slow_save")
    assert ranks.end() == [EXIT_BAD_INPUT], ranks.log_text()
    assert f"got 300 at {tmp_path / 'tokens.bin'}, byte 1200" in ranks.log_text()
    saved = latest(ranks.run_dir)
    assert saved is not None, ranks.log_text()
    assert saved["step"] == 2
    assert events(ranks.run_dir, "checkpoint_failed") == []


def test_data_that_one_rank_cannot_read_end_all_ranks_with_its_exit_code(start: Starter, tmp_path: Path) -> None:
    tokens = np.full(1_001, 5, dtype="<u2")
    tokens[600] = 300  # beyond the vocabulary, in a window of the third step
    tokens.tofile(tmp_path / "tokens.bin")
    run = (*TINY, "--data", str(tmp_path / "tokens.bin"), "--steps", "4", "--checkpoint_every", "1")
    ranks = start(4, *run, "--parallel", "pp=2,fsdp=2")
    assert ranks.end() == [EXIT_BAD_INPUT] * 4, ranks.log_text()
    assert "trainer: --data: tokens must be 0 to 255, the vocabulary of the model; got 300" in ranks.log_text()
    assert list(losses(ranks.run_dir)) == [1, 2]
    saved = latest(ranks.run_dir)
    assert saved is not None
    assert saved["step"] == 2


OWN_DATA = """
import torch
from torch import nn

class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, picture):
        return self.layer(picture).mean()

class Data:
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if index == 11:
            raise OSError("no such host")
        return {"picture": torch.zeros(2)}
"""


def test_a_sample_that_one_rank_cannot_read_ends_all_ranks_with_its_exit_code(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "own_data.py").write_text(OWN_DATA)
    run = ("--model", "own_data:Tower", "--data", "own_data:Data", "--global_batch", "4", "--steps", "4")
    ranks = start(2, *run, environ={"PYTHONPATH": str(tmp_path)})
    assert ranks.end() == [EXIT_FAILED] * 2, ranks.log_text()
    assert "OSError: no such host" in ranks.log_text()
    assert sum("own_data.py" in ranks.log_text(rank) for rank in range(2)) == 1  # the traceback


def test_a_module_of_the_user_that_one_rank_cannot_import_ends_all_ranks_with_its_exit_code(
    start: Starter, tmp_path: Path
) -> None:
    on_rank_0 = "import os\nassert os.environ['RANK'] == '0', 'not on this host'\n"
    (tmp_path / "own_data.py").write_text(on_rank_0 + OWN_DATA)
    ranks = start(2, "--model", "own_data:Tower", "--data", "own_data:Data", environ={"PYTHONPATH": str(tmp_path)})
    assert ranks.end() == [EXIT_BAD_INPUT] * 2, ranks.log_text()
    assert "trainer: --model own_data:Tower raised AssertionError: not on this host" in ranks.log_text()


def test_the_last_heartbeat_and_line_have_the_result(finished: Finished) -> None:
    for rank in (0, 1):
        heartbeat = json.loads((finished.run_dir / "heartbeats" / f"rank-{rank}.json").read_text())
        assert (heartbeat["phase"], heartbeat["step"], heartbeat["steps"], heartbeat["world_size"]) == ("done", 9, 9, 2)
        assert heartbeat["loss"] == pytest.approx(metrics(finished.run_dir, rank)[-1]["loss"])
        assert heartbeat["peak_memory_bytes"] > 1e6
        assert heartbeat["mfu"] is None
        assert heartbeat["checkpoint_step"] == (9 if rank == 0 else None)
    first, last = losses(finished.run_dir)[1], losses(finished.run_dir)[9]
    assert f"done: loss {first:.2f} -> {last:.2f}, " in finished.log_text
    assert "step 9/9  loss " in finished.log_text


def compile_cache() -> dict[str, str]:
    """The cache of compiled kernels, which outlives the test if TORCHINDUCTOR_CACHE_DIR is set."""
    return {name: os.environ[name] for name in ("TORCHINDUCTOR_CACHE_DIR",) if name in os.environ}
