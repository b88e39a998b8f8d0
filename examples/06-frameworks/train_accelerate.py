"""Accelerate: a small regression on random data, written for torchrun."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save_every", type=int, default=50)
parser.add_argument("--output", default="out-accelerate")
args = parser.parse_args()

set_seed(0)
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(),  # without it, Accelerate uses only one rank on CPUs
    project_config=ProjectConfiguration(args.output, automatic_checkpoint_naming=True, total_limit=2),
)
x = torch.randn(4096, 16)
data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


class Progress:
    """How many steps are done; saved with the model."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


progress = Progress()
accelerator.register_for_checkpointing(progress)
saved = sorted(Path(args.output, "checkpoints").glob("checkpoint_*"), key=lambda path: int(path.name.split("_")[1]))
if saved:
    accelerator.load_state(str(saved[-1]))
    accelerator.project_configuration.iteration = int(saved[-1].name.split("_")[1]) + 1

signal.signal(signal.SIGTERM, lambda number, frame: accelerator.set_trigger())
accelerator.print(f"starts after step {progress.step} on {accelerator.num_processes} ranks", flush=True)
while progress.step < args.steps:
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if progress.step % 100 == 0:
            accelerator.print(f"step {progress.step} loss {loss.item():.4f}", flush=True)
        progress.step += 1
        stop = accelerator.check_trigger()  # the same on all ranks
        if stop or progress.step % args.save_every == 0:
            accelerator.save_state()
        if stop:
            accelerator.print(f"stops after step {progress.step}", flush=True)
            sys.exit(143)
        if progress.step >= args.steps:
            break
accelerator.print(f"done after step {progress.step}", flush=True)
accelerator.end_training()
