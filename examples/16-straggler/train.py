"""A user's own script with DDP on the CPU: rank 1 reads its data slowly. Nothing of Muster is in it."""

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


dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in DataLoader(Pairs(), batch_size=16):
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
