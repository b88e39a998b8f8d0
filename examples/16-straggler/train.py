"""A user's script with DDP, on GPUs if each rank has one: rank 1 reads its data slowly. It does not import Muster."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

SLOW_RANK, SLEEP_S = 1, 0.02  # for each of 16 samples


class Pairs(Dataset):
    """Random samples, which rank 1 gets late."""

    def __len__(self) -> int:
        return 16 * 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if dist.get_rank() == SLOW_RANK:
            time.sleep(SLEEP_S)
        return torch.randn(512)


on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
if on_gpus:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpus else "gloo")
network = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
model = DistributedDataParallel(network.to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in DataLoader(Pairs(), batch_size=16):
    batch = batch.to(device)
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
