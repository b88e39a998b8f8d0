"""The script of docs/tasks/preemptible.md: DDP with a checkpoint of its own, saved when the job is stopped."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import muster

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
checkpoint = Path(os.environ.get("MUSTER_RUN_DIR", ".")) / "checkpoint.pt"

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    step = saved["step"]

while step < steps:
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(pause_s)
    step += 1
    muster.report(step=step, steps=steps, loss=loss)
    if muster.should_stop() is not None:
        if dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "step": step}, checkpoint)
            muster.report(step=step, checkpoint=checkpoint)
        break

print(f"rank {dist.get_rank()} ends after step {step}", flush=True)
dist.destroy_process_group()
