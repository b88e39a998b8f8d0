"""What Muster's always-on measurements cost per step: heartbeats, step times, counters of collectives, captures.

    python benchmarks/always_on.py --seconds 20
    torchrun --nproc-per-node 2 benchmarks/always_on.py --device cuda --layers 16 --width 4096 --seconds 40

The program is FSDP2 with AdamW, as a user's own script. Blocks of steps with and without the hook of
`muster_components.trainer.instrument` follow each other in one process, so that other load meets both. Prints the
medians of both, the ratio of neighbours (median and quartiles), and the time that the hook takes on the host. The sizes
of collectives, which are read once a minute, are timed on their own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.optim.optimizer import register_optimizer_step_post_hook

from muster_components.trainer.collective_counts import collective_counts, mean_collective_bytes
from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import run_context
from muster_components.trainer.optimizer_hook import OptimizerWatcher
from muster_components.trainer.reporter import Reporter

MIN_PAIRS = 4


@dataclass(frozen=True, slots=True)
class Result:
    """Of rank 0; times of a step in milliseconds. `ratio` is with / without, over neighbouring blocks."""

    device: str
    ranks: int
    blocks: int
    steps_per_block: int
    without_ms: float
    with_ms: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    host_us_per_step: float
    collectives_per_step: float
    sizes_ms: float


class Hook:
    """The watcher's hook, which can be switched off; `spent_s` is the time in it."""

    def __init__(self, watcher: OptimizerWatcher) -> None:
        self.on = False
        self.spent_s = 0.0
        self._watcher = watcher
        register_optimizer_step_post_hook(self)

    def __call__(self, optimizer: object, *arguments: object) -> None:
        """After a step of an optimizer."""
        if self.on:
            began = time.perf_counter()
            self._watcher.on_optimizer_step(optimizer, *arguments)
            self.spent_s += time.perf_counter() - began


class Program:
    """A model, its optimizer and a batch."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(0)
        width = args.width
        self.device = device
        blocks = [
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(args.layers)
        ]
        self.model = nn.Sequential(*blocks).to(device)
        for block in self.model:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device.type == "cuda")
        self.batch = torch.randn(args.batch, width, device=device)

    def block_s(self, steps: int) -> float:
        """Seconds of this many steps."""
        self.synchronise()
        began = time.perf_counter()
        for _ in range(steps):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                loss: Tensor = self.model(self.batch).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.synchronise()
        return time.perf_counter() - began

    def synchronise(self) -> None:
        """Wait for the device, and for all ranks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()


def measure(args: argparse.Namespace, device: torch.device) -> Result:
    """Alternate blocks for `args.seconds`."""
    context = run_context(os.environ)
    hook = Hook(OptimizerWatcher(context, TraceConfig(), Reporter(context)))
    program = Program(args, device)
    hook.on = True
    program.block_s(args.warmup)
    hook.on, hook.spent_s, steps = False, 0.0, args.block
    times: dict[bool, list[float]] = {False: [], True: []}
    called = sum(collective_counts().values())
    began = time.perf_counter()
    done = torch.zeros(1, device=device)
    while not done.item() or len(times[True]) < MIN_PAIRS:
        for on in (False, True) if len(times[True]) % 2 else (True, False):
            hook.on = on
            times[on].append(program.block_s(steps) / steps)
        hook.on = False
        done.fill_(time.perf_counter() - began > args.seconds)
        dist.broadcast(done, 0)  # all ranks end after the same block
    per_step = (sum(collective_counts().values()) - called) / (2 * steps * len(times[True]))
    began = time.perf_counter()
    mean_collective_bytes(time.time() - 60)
    sizes_s = time.perf_counter() - began
    ratios = [on / off for off, on in zip(times[False], times[True], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Result(
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        ranks=dist.get_world_size(),
        blocks=len(ratios),
        steps_per_block=steps,
        without_ms=round(statistics.median(times[False]) * 1e3, 4),
        with_ms=round(statistics.median(times[True]) * 1e3, 4),
        ratio=round(middle, 5),
        ratio_quartiles=(round(low, 5), round(high, 5)),
        host_us_per_step=round(hook.spent_s * 1e6 / (steps * len(ratios)), 1),
        collectives_per_step=round(per_step, 1),
        sizes_ms=round(sizes_s * 1e3, 2),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--block", type=int, default=20, help="steps of a block")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args(argv)
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device(args.device, rank) if args.device == "cuda" else torch.device("cpu")
    if args.device == "cuda":
        torch.cuda.set_device(device)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # as Muster's launcher
    if args.device == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        # As in a job of Muster, where a request for a trace may come.
        os.environ.setdefault("MUSTER_RUN_DIR", folder)
        os.environ.setdefault("MUSTER_JOB", "always-on")
        result = measure(args, device)
    if dist.get_rank() == 0:
        print(json.dumps(asdict(result)))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
