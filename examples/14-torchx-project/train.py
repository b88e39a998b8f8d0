"""Each of the processes that torchrun's component starts adds its rank; rank 0 prints the sum."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank()))
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"the ranks of {os.environ['MUSTER_JOB']} sum up to {total.item():.0f}")
dist.destroy_process_group()
