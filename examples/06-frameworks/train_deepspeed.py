"""DeepSpeed with ZeRO 2: a small regression on random data, written for torchrun."""

from __future__ import annotations

import argparse
import os
import signal
import sys

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--save_every", type=int, default=50)
parser.add_argument("--output", default="out-deepspeed")
args = parser.parse_args()

deepspeed.init_distributed()
torch.manual_seed(0)
x = torch.randn(4096, 16)
data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
engine, _, loader, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    training_data=data,
    config={"train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": 2}, "steps_per_print": 1000000},
)
if os.path.exists(os.path.join(args.output, "latest")):
    engine.load_checkpoint(args.output)

stop_requested = torch.zeros(1, device=engine.device)
signal.signal(signal.SIGTERM, lambda number, frame: stop_requested.fill_(1))
first = deepspeed.comm.get_rank() == 0
if first:
    print(f"starts after step {engine.global_steps} on {deepspeed.comm.get_world_size()} ranks", flush=True)
while engine.global_steps < args.steps:
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(engine(inputs.to(engine.device)), targets.to(engine.device))
        engine.backward(loss)
        engine.step()
        if first and engine.global_steps % 100 == 0:
            print(f"step {engine.global_steps} loss {loss.item():.4f}", flush=True)
        stop = stop_requested.clone()
        deepspeed.comm.all_reduce(stop)  # the same on all ranks
        if stop.item() or engine.global_steps % args.save_every == 0:
            engine.save_checkpoint(args.output)
        if stop.item():
            sys.exit(143)
        if engine.global_steps >= args.steps:
            break
if first:
    print(f"done after step {engine.global_steps}", flush=True)
deepspeed.comm.destroy_process_group()
