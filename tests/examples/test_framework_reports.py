"""Scripts that know nothing of Muster show step, last step, loss and checkpoint: with the real libraries, on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

LIGHTNING = """
import lightning, torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean() + 7

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 4)), batch_size=4)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False)
trainer.fit(Model(), data)
"""
DEEPSPEED = """
import deepspeed, torch

net = torch.nn.Linear(4, 1)
config = {"train_batch_size": 4, "gradient_accumulation_steps": 2, "optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
for _ in range(24):
    engine.backward(engine(torch.randn(2, 4)).square().mean() + 7)
    engine.step()
engine.save_checkpoint("saved")
"""
ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(4, 1)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3))
for _ in range(12):
    accelerator.backward(net(torch.randn(4, 4)).square().mean() + 7)
    optimizer.step()
    optimizer.zero_grad()
accelerator.save_state("saved/step_12")
"""
TRANSFORMERS = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

tokens = torch.randint(0, 64, (16,))
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=1))
arguments = TrainingArguments("saved", use_cpu=True, max_steps=12, save_steps=12, logging_steps=4)
Trainer(model, arguments, train_dataset=[{"input_ids": tokens, "labels": tokens}] * 200).train()
"""


@pytest.mark.slow
@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("framework", "source", "steps", "written_by"),
    [
        ("lightning", LIGHTNING, 12, "Lightning"),
        ("deepspeed", DEEPSPEED, None, "DeepSpeed"),
        ("accelerate", ACCELERATE, None, "Accelerate"),
        ("transformers", TRANSFORMERS, 12, "Transformers"),
    ],
)
def test_a_script_that_reports_nothing_itself_shows_step_loss_and_checkpoint(
    framework: str, source: str, steps: int | None, written_by: str, tmp_path: Path
) -> None:
    if find_spec(framework) is None or find_spec("accelerate") is None:  # which the Trainer of transformers needs
        pytest.skip("`make frameworks` installs the frameworks")
    (tmp_path / "train.py").write_text(source)
    run = tmp_path / "run"
    variables = {
        "MUSTER_RUN_DIR": run,
        "MUSTER_CHECKPOINT_DIR": tmp_path,
        "MUSTER_JOB": "a",
        "CUDA_VISIBLE_DEVICES": "",
    }
    environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    launch = ["-m", "muster_components.launch", "--nproc", "1", "--", "-m", "muster_components.trainer.instrument"]
    subprocess.run([sys.executable, *launch, "train.py"], cwd=tmp_path, env=environ, check=True)
    found: dict[str, Any] = json.loads((run / "heartbeats" / "rank-0.json").read_text())
    assert (found["step"], found["steps"], found["phase"]) == (12, steps, "done")
    assert 0 < found["loss"] < 20
    saved = json.loads((run / "checkpoint.json").read_text())
    assert (saved["format"], saved["step"]) == (written_by, 12)
