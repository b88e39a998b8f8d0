"""The training program of faults.py: plain PyTorch with torch.profiler, and one planted fault.

    torchrun --nproc-per-node 4 benchmarks/fault_program.py --layout fsdp --fault slow-loader --rank 2 --out FOLDER

It runs on GPUs with NCCL if there is one for each rank, else on the CPU with gloo.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

LAYOUTS = ("ddp", "fsdp", "pp", "pp-fsdp")
FAULTS = (
    "none",
    "slow-loader",  # the data set sleeps
    "checkpoint",  # torch.save every second step, in an annotation
    "host-sleep",  # in an annotation of the user's
    "silent-sleep",  # outside of all annotations
    "extra-work",  # matrix products that the others do not have
    "recompilation",  # an input of a new shape in each step
    "slow-transfer",  # DDP: a communication hook that sends each bucket several times, on all ranks
    "unbalanced",  # pipelines: the stage of the rank has three times the blocks
)
TRACED = 4


class Block(nn.Module):
    """Two linear layers and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


class Batches(Dataset[Tensor]):
    """Random samples; each takes `sleep_s`."""

    def __init__(self, width: int, sleep_s: float) -> None:
        self._width, self._sleep_s = width, sleep_s

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, _: int) -> Tensor:
        time.sleep(self._sleep_s)
        return torch.randn(self._width)


def resend(count: int) -> Callable[..., torch.futures.Future[Tensor]]:
    """A hook that reduces each bucket `count` times."""

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with types, and these are strings
        for _ in range(count - 1):
            dist.all_reduce(bucket.buffer().clone())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    return hook


class Training:
    """The model of one layout, and a step of it."""

    def __init__(self, args: argparse.Namespace, device: torch.device, faulty: bool) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        stages = {"pp": world, "pp-fsdp": 2}.get(args.layout, 1)
        mesh = init_device_mesh(device.type, (stages, world // stages), mesh_dim_names=("pp", "dp"))
        stage = mesh["pp"].get_local_rank()
        blocks = args.blocks // stages
        if args.fault == "unbalanced" and stage == args.rank * stages // world:
            blocks *= 3
        torch.manual_seed(rank)
        model: nn.Module = nn.Sequential(*(Block(args.width) for _ in range(blocks))).to(device)
        if args.layout in ("fsdp", "pp-fsdp"):
            for block in model.children():
                fully_shard(block, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
        elif args.layout == "ddp":
            model = DistributedDataParallel(model)
            if args.fault == "slow-transfer":
                model.register_comm_hook(None, resend(8))
        if args.fault == "recompilation" and faulty:
            torch._dynamo.config.cache_size_limit = 1000
            model = torch.compile(model, backend="aot_eager", dynamic=False)
        self._model, self._micro_batches = model, 2 * stages
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self._schedule = self._pipeline(model, stage, stages, device, mesh) if stages > 1 else None
        self._first, self._last = stage == 0, stage == stages - 1

    def _pipeline(
        self, model: nn.Module, stage: int, stages: int, device: torch.device, mesh: DeviceMesh
    ) -> Schedule1F1B:
        part = PipelineStage(model, stage, stages, device, group=mesh["pp"].get_group())
        return Schedule1F1B(part, self._micro_batches, loss_fn=lambda out, target: (out - target).square().mean())

    def step(self, batch: Tensor) -> None:
        """Forward, backward, update."""
        if self._schedule is None:
            self._model(batch).square().mean().backward()
        elif self._first:
            self._schedule.step(batch)
        else:
            self._schedule.step(target=batch if self._last else None)
        self.optimizer.step()
        self.optimizer.zero_grad()


def batches(args: argparse.Namespace, device: torch.device, sleep_s: float) -> Iterator[Tensor]:
    """Batches from a DataLoader in this process."""
    for batch in DataLoader(Batches(args.width, sleep_s / args.batch), batch_size=args.batch):
        yield batch.to(device)


def plant(args: argparse.Namespace, number: int, training: Training, batch: Tensor) -> Tensor:
    """What the faulty rank does before a step; returns its batch."""
    if args.fault == "checkpoint" and number % 2 == 0:
        with record_function("save_checkpoint"):
            torch.save(training.optimizer.state_dict(), Path(args.out) / "checkpoint.pt")
            time.sleep(2 * args.fault_s)  # a slow file system
    elif args.fault == "host-sleep":
        with record_function("tokenize"):
            time.sleep(args.fault_s)
    elif args.fault == "silent-sleep":
        time.sleep(args.fault_s)
    elif args.fault == "extra-work":
        until, size = time.monotonic() + args.fault_s, 256 if batch.device.type == "cpu" else 4096
        weight = torch.randn(size, size, device=batch.device)
        while time.monotonic() < until:
            torch.mm(weight, weight)
            if batch.is_cuda:
                torch.cuda.synchronize()
    elif args.fault == "recompilation":
        return batch[: len(batch) - number - 1]
    return batch


def main(argv: Sequence[str] | None = None) -> None:
    """Train, trace, write one trace per rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", choices=LAYOUTS, default="ddp")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-s", type=float, default=0.15)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", required=True)
    args = parser.parse_args(argv)
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= ranks
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    faulty = dist.get_rank() == args.rank
    training = Training(args, device, faulty)
    loader = batches(args, device, args.fault_s if faulty and args.fault == "slow-loader" else 0.0)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpus else [])]
    path = Path(args.out) / f"rank-{dist.get_rank()}.json"
    with profile(
        activities=activities,
        record_shapes=True,
        schedule=schedule(wait=1, warmup=1, active=TRACED),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as profiler:
        for number in range(2 + TRACED):
            batch = next(loader)
            training.step(plant(args, number, training, batch) if faulty else batch)
            profiler.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
