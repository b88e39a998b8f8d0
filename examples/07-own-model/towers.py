"""A model and a data set of one's own: two towers that learn which digits belong to which picture.

Nothing here imports Muster. The trainer calls `build` for the model and `Pairs` for the data.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

SEGMENTS = np.array([[int(bit) for bit in f"{number * 37 % 128:07b}"] for number in range(100)], dtype=np.float32)
"""A pattern of seven segments for each number below 100."""


class Pairs:
    """4096 pairs of a noisy pattern of 28 values and the two digits of its number."""

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        number = index % 100
        noise = np.random.default_rng(index).normal(0, 0.1, 28)
        return {
            "picture": (np.tile(SEGMENTS[number], 4) + noise).astype(np.float32),
            "digits": np.array([number // 10, number % 10]),
        }


class Towers(nn.Module):
    """One tower for pictures, one for digits; a pair has similar embeddings (as in CLIP, Radford et al., 2021)."""

    def __init__(self, width, layers):
        super().__init__()
        self.picture_in = nn.Linear(28, width)
        self.picture_blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))
        self.digit_in = nn.Embedding(20, width)
        self.digit_blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.log_scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, picture, digits):
        """The arguments are the fields of a sample; the result has the mean loss of the micro-batch."""
        x = self.picture_in(picture)
        for block in self.picture_blocks:
            x = x + block(x)
        y = self.digit_in(digits + torch.tensor([0, 10], device=digits.device))
        for block in self.digit_blocks:
            y = block(y)
        logits = self.log_scale.exp() * F.normalize(x, dim=-1) @ F.normalize(y.mean(dim=1), dim=-1).T
        pair = torch.arange(len(logits), device=logits.device)
        return {"loss": (F.cross_entropy(logits, pair) + F.cross_entropy(logits.T, pair)) / 2}


def build(width=64, layers=2):
    """The factory; `--model_args width=...,layers=...` are its arguments."""
    return Towers(width, layers)
