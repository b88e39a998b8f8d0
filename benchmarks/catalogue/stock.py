"""Programs without a planted fault whose kernels are inefficient, traced on one GPU.

PYTHONPATH=benchmarks python -m catalogue.stock --out FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

SKIPPED, TRACED = 4, 3  # steps
HEAD = 50


class Biased(nn.Module):
    """Attention with a learned bias: with heads whose size is no multiple of 8 no fused kernel takes a mask."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, length, length))

    def forward(self, x: Tensor) -> Tensor:
        """The input with attention added."""
        batch, length, width = x.shape
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.to(q.dtype).expand(batch, -1, -1, -1))
        out: Tensor = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


def transformer(device: str, *, vocabulary: int, width: int, layers: int) -> nn.Module:
    """torch's own encoder between an embedding and a head."""
    block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, dropout=0.0, norm_first=True)
    encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(vocabulary, width), encoder, nn.Linear(width, vocabulary)).to(device)


def biased(device: str, *, vocabulary: int, width: int, layers: int, length: int) -> nn.Module:
    """Blocks with a learned bias of attention."""
    blocks = [Biased(width, width // HEAD, length) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.Linear(width, vocabulary)).to(device)


def record(out: Path, name: str, model: nn.Module, batch: Tensor, *, autocast: bool) -> None:
    """Train a few steps on a batch of tokens and trace the last ones."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    on_gpu = batch.device.type == "cuda"
    (out / name).mkdir(parents=True, exist_ok=True)
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
        record_shapes=True,
        schedule=schedule(wait=SKIPPED - 1, warmup=1, active=TRACED),
        on_trace_ready=lambda done: done.export_chrome_trace(str(out / name / "rank-0.json")),
    ) as profiler:
        for _ in range(SKIPPED + TRACED):
            with torch.autocast(batch.device.type, torch.bfloat16, enabled=autocast):
                logits = model(batch)
                loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


def main() -> None:
    """Record all programs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    args = parser.parse_args()
    width, layers, length, count = (1024, 4, 1024, 16) if args.device == "cuda" else (128, 2, 64, 2)
    programs: dict[str, tuple[Callable[[], nn.Module], int, bool]] = {
        "float32": (lambda: transformer(args.device, vocabulary=8192, width=width, layers=layers), 8192, False),
        "vocabulary": (lambda: transformer(args.device, vocabulary=50257, width=width, layers=layers), 50257, True),
        "math-attention": (
            lambda: biased(args.device, vocabulary=8192, width=20 * HEAD, layers=layers, length=length),
            8192,
            True,
        ),
    }
    for name, (build, vocabulary, autocast) in programs.items():
        torch.manual_seed(0)
        batch = torch.randint(0, vocabulary, (count, length), device=args.device)
        record(args.out, name, build(), batch, autocast=autocast)
        print(f"{name}: recorded", flush=True)


if __name__ == "__main__":
    main()
