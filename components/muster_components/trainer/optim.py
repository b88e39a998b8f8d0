"""AdamW with decay groups, and a learning rate that depends only on the step, so that it has no state."""

from __future__ import annotations

import math

import torch
from torch import nn

from muster_components.trainer.config import TrainPlan


def adamw(model: nn.Module, plan: TrainPlan) -> torch.optim.AdamW:
    """Fused AdamW over the model's parameters, with weight decay for matrices but not for vectors (norms, biases).

    On CPUs, torch's fused kernel makes one pass over memory instead of ten.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": plan.config.optim.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def learning_rate(step: int, *, peak: float, warmup: int, steps: int) -> float:
    """The rate of `step` (from 1): linear up to `peak` at step `warmup`, then a cosine down to peak/10 at `steps`."""
    if step <= warmup:
        return peak * step / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` in all groups from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
