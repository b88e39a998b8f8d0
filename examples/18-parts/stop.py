"""SIGTERM at any time: all ranks stop after the same step. Under `python -m muster_components.launch` or torchrun."""

import time

import torch.distributed as dist

import muster

dist.init_process_group("gloo")
for step in range(1, 100_000):
    time.sleep(0.01 * (1 + dist.get_rank()))  # one rank is slower
    if muster.should_stop() is not None:
        break
    muster.report(step=step)
print(f"rank {dist.get_rank()} saves and ends after step {step}", flush=True)
