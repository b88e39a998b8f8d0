"""The training program of faults.py: plain PyTorch with torch.profiler, and one planted fault.

    torchrun --nproc-per-node 4 benchmarks/fault_program.py --layout fsdp --fault slow-loader --rank 2 --out FOLDER

It runs on GPUs with NCCL if there is one for each rank, else on the CPU with gloo. The sizes are such that a step takes
tens of milliseconds on either.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache
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
    "slow-network",  # none of the program's: NCCL between the GPUs of a host over TCP, by NETWORK_ENVIRONMENT
    "unbalanced",  # pipelines: the stage of the rank has three times the blocks
)
NETWORK_ENVIRONMENT = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
}
UNTRACED, TRACED = 3, 4  # steps
WIDTH = {"cpu": 256, "cuda": 1024}
BATCH = {"cpu": 64, "cuda": 8192}
RESENT = {"cpu": 8, "cuda": 64}  # how often slow-transfer sends a bucket
TIMEOUT = timedelta(seconds=180)  # of a collective


class Block(nn.Module):
    """Two linear layers and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layers(x)
        return out


class Batches(Dataset[Tensor]):
    """One random batch, again and again; reading it takes `sleep_s`."""

    def __init__(self, size: int, width: int, sleep_s: float) -> None:
        self._batch, self._sleep_s = torch.randn(size, width), sleep_s

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, _: int) -> Tensor:
        time.sleep(self._sleep_s)
        return self._batch


def resend(count: int) -> Callable[..., torch.futures.Future[Tensor]]:
    """A hook that reduces each bucket `count` times."""

    def hook(_, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with types, and these are strings
        for _ in range(count - 1):
            dist.all_reduce(bucket.buffer().clone())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    return hook


@cache
def device_mesh(kind: str, stages: int, replicas: int) -> DeviceMesh:
    """The mesh of a layout; all cases of a process share its process groups."""
    return init_device_mesh(kind, (stages, replicas), mesh_dim_names=("pp", "dp"))


class Training:
    """The model of one layout, and a step of it."""

    def __init__(self, args: argparse.Namespace, device: torch.device, faulty: bool) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        stages = {"pp": world, "pp-fsdp": 2}.get(args.layout, 1)
        mesh = device_mesh(device.type, stages, world // stages)
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
                model.register_comm_hook(None, resend(RESENT[device.type]))
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
    for batch in DataLoader(Batches(args.batch, args.width, sleep_s), batch_size=None):
        yield batch.to(device)


def plant(args: argparse.Namespace, number: int, training: Training, batch: Tensor) -> Tensor:
    """What the faulty rank does before a step; returns its batch."""
    if args.fault == "checkpoint" and number % 2 == 0:
        with record_function("save_checkpoint"), tempfile.TemporaryFile() as file:
            torch.save(training.optimizer.state_dict(), file)
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


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layout", choices=LAYOUTS, default="ddp")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-s", type=float, default=0.15, help="how long the fault takes in a step")
    parser.add_argument("--rank", type=int, default=0, help="the rank with the fault")
    parser.add_argument("--width", type=int, help=f"of the model; default: {WIDTH['cpu']}, on GPUs {WIDTH['cuda']}")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--batch", type=int, help=f"of a rank; default: {BATCH['cpu']}, on GPUs {BATCH['cuda']}")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU for each rank")
    parser.add_argument("--out", required=True, help="the folder of the traces")
    return parser.parse_args(argv)


def set_up(kind: str | None) -> torch.device:
    """Join the process group of the ranks; `kind` as --device."""
    local, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    kind = kind or ("cuda" if torch.cuda.device_count() >= ranks else "cpu")
    if kind == "cpu":
        dist.init_process_group("gloo", timeout=TIMEOUT)
        return torch.device("cpu")
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", timeout=TIMEOUT, device_id=device)
    return device


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train one case, trace it, write one trace per rank: all, or none if a rank fails."""
    args.width, args.batch = args.width or WIDTH[device.type], args.batch or BATCH[device.type]
    out, partial = Path(args.out), Path(f"{args.out}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    faulty = dist.get_rank() == args.rank
    training = Training(args, device, faulty)
    loader = batches(args, device, args.fault_s if faulty and args.fault == "slow-loader" else 0.0)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    dist.barrier()
    with profile(
        activities=activities,
        record_shapes=True,
        schedule=schedule(wait=UNTRACED - 1, warmup=1, active=TRACED),
        on_trace_ready=lambda done: done.export_chrome_trace(str(partial / f"rank-{dist.get_rank()}.json")),
    ) as profiler:
        for number in range(UNTRACED + TRACED):
            batch = next(loader)
            training.step(plant(args, number, training, batch) if faulty else batch)
            profiler.step()
    dist.barrier()
    if dist.get_rank() == 0:
        if out.is_dir():
            for trace in partial.iterdir():
                trace.replace(out / trace.name)
            partial.rmdir()
        else:
            partial.rename(out)


def train_all(environment: dict[str, str], kind: str | None, cases: Sequence[Sequence[str]]) -> None:
    """A rank of several cases, in turn, with one process group; cases are their options."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    device = set_up(kind)
    for args in map(parse, cases):
        train(args, device)
        if args.fault == "recompilation":
            torch._dynamo.reset()
        gc.collect()
    dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> None:
    """One case, under torchrun."""
    args = parse(argv)
    train(args, set_up(args.device))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
