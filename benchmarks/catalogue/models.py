"""The models of the catalogue's plain programs, their sizes, and their data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset


@dataclass(frozen=True, slots=True)
class Size:
    """Of a language model and its batches."""

    width: int
    layers: int
    sequence: int
    batch: int
    vocabulary: int = 8192


SIZES = {
    "cuda": Size(width=2048, layers=6, sequence=1024, batch=16),
    "cpu": Size(width=128, layers=4, sequence=64, batch=8, vocabulary=512),
}
TINY = Size(width=64, layers=12, sequence=32, batch=4, vocabulary=128)
VARIANTS = {
    "wide": Size(width=256, layers=2, sequence=48, batch=4, vocabulary=1000),
    "deep": Size(width=64, layers=12, sequence=96, batch=6, vocabulary=384),
    "narrow": Size(width=128, layers=3, sequence=80, batch=6, vocabulary=640),
}
"""On CPUs, by the end of a program's name."""
VARIANTS_OF_GPUS = {
    "wide": Size(width=4096, layers=2, sequence=512, batch=12, vocabulary=16384),
    "deep": Size(width=1024, layers=8, sequence=768, batch=48),
    "narrow": Size(width=1536, layers=5, sequence=1024, batch=24, vocabulary=12288),
    "bert": Size(width=1536, layers=4, sequence=512, batch=32),
}


def size_of(program: str, device: str) -> Size:
    """The size of a program's model."""
    if program.endswith("-tiny"):
        return TINY
    variants = VARIANTS if device == "cpu" else VARIANTS_OF_GPUS
    return variants.get(program.rpartition("-")[2], SIZES[device])


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Images(nn.Module):
    """A small residual network for images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, channels, 7, 2, 3)]
        for _ in range(6):
            layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(channels, 100)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(x).mean((2, 3)))
        return out


class Recommender(nn.Module):
    """Embeddings of categories, and a network over them that predicts a click."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(tables * width, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
        self.top = nn.Linear(1024, 1)

    def forward(self, categories: Tensor) -> Tensor:
        found = [table(of) for table, of in zip(self.tables, categories.unbind(1), strict=True)]
        out: Tensor = self.top(self.bottom(torch.cat(found, 1)))
        return out


class Clicks(Dataset[Tensor]):
    """Random categories."""

    def __init__(self, tables: int, rows: int, samples: int) -> None:
        self._shape, self._rows = (samples, tables), rows

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, _: int) -> Tensor:
        return torch.randint(0, self._rows, self._shape)


class Tokens(Dataset[Tensor]):
    """Random sequences; `slow` is what a worker sleeps for a batch."""

    def __init__(self, size: Size, slow: Any = None) -> None:
        self._size, self._slow = size, slow

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, _: int) -> Tensor:
        if self._slow is not None and self._slow.value:
            import time

            time.sleep(self._slow.value / self._size.batch)
        return torch.randint(0, self._size.vocabulary, (self._size.sequence + 1,))


class Pictures(Dataset[Tensor]):
    """Random images."""

    def __init__(self, pixels: int) -> None:
        self._image = torch.rand(3, pixels, pixels)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, _: int) -> Tensor:
        return self._image


def language_model(size: Size, layers: int, *, first: bool = True, last: bool = True) -> nn.Sequential:
    """Embedding, blocks, head; a stage of a pipeline has some of them."""
    parts: list[nn.Module] = [nn.Embedding(size.vocabulary, size.width)] if first else []
    parts += [Block(size.width) for _ in range(layers)]
    parts += [nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary)] if last else []
    return nn.Sequential(*parts)
