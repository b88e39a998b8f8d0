"""Scripts that handle no signal: stopped by SIGTERM and killed, with the real libraries, on CPUs.

Each script resumes as its framework's documentation has it, and imports nothing of Muster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from muster.tracing.collect.heartbeat_server import read_newest_checkpoint
from muster.tracing.shared_folder import SharedFolder

SHARED = """
import os, time
import torch

STEPS, HOLD_AT, SAVE_EVERY = int(os.environ.get("STEPS", "1000000")), int(os.environ.get("HOLD_AT", "-1")), 3

def done(step):  # as soon as the weights are those of this step
    name = f"done.attempt-{os.environ['MUSTER_ATTEMPT']}.rank-{os.environ['RANK']}"
    with open(name, "a") as file:
        file.write(f"{step} {time.time()}\\n")
    time.sleep(0.02)

def hold(step):
    while step == HOLD_AT:
        time.sleep(0.05)
"""
LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        hold(self.trainer.global_step)
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def optimizer_step(self, *arguments, **named):
        super().optimizer_step(*arguments, **named)
        done(self.trainer.global_step + 1)  # which it counts afterwards

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 4)), batch_size=2)
saver = ModelCheckpoint("saved", every_n_train_steps=SAVE_EVERY, save_last=True)
trainer = lightning.Trainer(
    max_steps=STEPS, accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", logger=False,
    enable_progress_bar=False, callbacks=[saver],
)
trainer.fit(Model(), data, ckpt_path="last")
"""
DEEPSPEED = """
import deepspeed

deepspeed.init_distributed()
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config={"train_micro_batch_size_per_gpu": 2})
engine.load_checkpoint("saved")
while engine.global_steps < STEPS:
    engine.backward(engine(torch.randn(2, 4)).square().mean())
    engine.step()
    done(engine.global_steps)
    if engine.global_steps % SAVE_EVERY == 0:
        engine.save_checkpoint("saved")
    hold(engine.global_steps)
"""
ACCELERATE = """
from pathlib import Path
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

class Progress:
    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]

accelerator = Accelerator(
    cpu=True, project_config=ProjectConfiguration("saved", automatic_checkpoint_naming=True, total_limit=3)
)
net = torch.nn.Linear(4, 1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=2, shuffle=True)
net, optimizer, data = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3), data)
progress = Progress()
accelerator.register_for_checkpointing(progress)
folders = sorted(Path("saved", "checkpoints").glob("checkpoint_*"), key=lambda path: int(path.name.split("_")[1]))
if folders:
    accelerator.load_state(str(folders[-1]))
    accelerator.project_configuration.iteration = int(folders[-1].name.split("_")[1]) + 1
while progress.step < STEPS:
    for (x,) in data:
        accelerator.backward(net(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        progress.step += 1
        done(progress.step)
        if progress.step % SAVE_EVERY == 0:
            accelerator.save_state()
        hold(progress.step)
        if progress.step >= STEPS:
            break
"""
TRANSFORMERS = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Record(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        done(state.global_step)

    def on_step_begin(self, args, state, control, **kwargs):
        hold(state.global_step)

tokens = torch.randint(0, 64, (16,))
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
arguments = TrainingArguments("saved", use_cpu=True, max_steps=STEPS, save_steps=SAVE_EVERY, disable_tqdm=True)
data = [{"input_ids": tokens, "labels": tokens}] * 4096
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Record()])
trainer.train(resume_from_checkpoint=get_last_checkpoint("saved") if os.path.isdir("saved") else None)
"""


class Job:
    """A script of a job, attempt by attempt."""

    def __init__(self, folder: Path, source: str) -> None:
        self._folder = folder
        self.run = folder / "run"
        (folder / "train.py").write_text(SHARED + source)

    def start(self, attempt: int, ranks: int, **variables: object) -> subprocess.Popen[str]:
        own = {"MUSTER_RUN_DIR": self.run, "MUSTER_CHECKPOINT_DIR": self._folder / "saved", "MUSTER_ATTEMPT": attempt}
        own |= {"MUSTER_JOB": "a", "MUSTER_GRACE_SECONDS": 600, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": 1}
        environ = {**os.environ, **{name: str(value) for name, value in {**own, **variables}.items()}}
        script = ["-m", "muster_components.trainer.instrument", "train.py"]
        command = [sys.executable, "-m", "muster_components.launch", "--nproc", str(ranks), "--", *script]
        return subprocess.Popen(
            command, cwd=self._folder, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def steps(self, attempt: int, rank: int = 0) -> list[int]:
        """Those that the script has done."""
        return [step for step, _ in self._done(attempt, rank)]

    def _done(self, attempt: int, rank: int) -> list[tuple[int, float]]:
        path = self._folder / f"done.attempt-{attempt}.rank-{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(line.split()[0]), float(line.split()[1])) for line in lines]

    def checkpoint(self) -> dict[str, Any]:
        """As the collector and the daemon read it."""
        return dict(read_newest_checkpoint(SharedFolder(self.run), []) or {})

    def lost_steps(self, attempt: int) -> int:
        """As a preemption counts lost work: what was done since the newest checkpoint."""
        saved_at = self.checkpoint()["at"]
        return sum(at > saved_at for _, at in self._done(attempt, 0))


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("framework", "source", "knows_steps"),
    [
        ("lightning", LIGHTNING, True),
        ("deepspeed", DEEPSPEED, True),
        ("accelerate", ACCELERATE, False),
        ("transformers", TRANSFORMERS, True),
    ],
)
def test_a_script_loses_nothing_by_a_preemption_and_what_muster_predicts_by_a_kill(
    tmp_path: Path, framework: str, source: str, knows_steps: bool
) -> None:
    if find_spec(framework) is None or find_spec("accelerate") is None:
        pytest.skip("`make frameworks` installs the frameworks")
    job = Job(tmp_path, source)
    first = job.start(0, 2)
    while first.poll() is None and not all(len(job.steps(0, rank)) > 4 for rank in range(2)):
        time.sleep(0.05)
    first.terminate()
    output, _ = first.communicate()
    assert first.returncode == 143, output
    stopped = job.steps(0)[-1]
    assert job.steps(0) == job.steps(0, 1) == list(range(1, stopped + 1))  # all ranks stop after the same step
    assert (job.checkpoint()["step"], job.lost_steps(0)) == (stopped, 0)

    last = next(step for step in range(stopped + 5, stopped + 8) if step % 3 == 2)
    second = job.start(1, 1, HOLD_AT=last)
    while second.poll() is None and not (job.steps(1)[-1:] == [last] and job.checkpoint()["step"] == last - 2):
        time.sleep(0.05)
    assert second.poll() is None, second.communicate()[0]
    predicted = job.lost_steps(1)
    os.killpg(second.pid, signal.SIGKILL)
    second.communicate()
    assert job.steps(1) == list(range(stopped + 1, last + 1))  # the preemption has lost nothing

    window = (last + 1, last + 3) if knows_steps else (2, 4)
    third = job.start(2, 1, STEPS=last + 4, MUSTER_TRACE_STEPS=f"{window[0]}:{window[1]}")
    output, _ = third.communicate()
    assert third.returncode == 0, output
    assert job.steps(2) == list(range(last - predicted + 1, last + 5))
    assert predicted == 2
    (trace,) = (job.run / "traces" / "spool").iterdir()
    assert trace.name == f"rank-0.attempt-2.steps-{window[0]}-{window[1]}.json"
