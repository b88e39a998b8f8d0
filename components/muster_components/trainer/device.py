"""This rank's device, its kernels, and the process group."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.attention import SDPBackend, sdpa_kernel

from muster_components.launch.rank_layout import usable_cores
from muster_components.trainer.context import RunContext
from muster_components.trainer.errors import InputError
from muster_components.trainer.plan import HostCapabilities

FLOAT8_CAPABILITY: Final = (8, 9)
"""The first compute capability with float8 tensor cores."""


STEADY_TIMEOUT: Final = timedelta(minutes=5)
"""Of collectives after the first step: ranks no longer wait for others that compile. torch's defaults are 10 and 30
minutes, in which the GPUs of a job that hangs are idle."""
LONG_TIMEOUT: Final = timedelta(minutes=30)
"""Of collectives after the last step, in which others may wait for rank 0 to write the model."""


def choose_device(context: RunContext, environ: Mapping[str, str]) -> torch.device:
    """This rank's GPU if the host has any, else the CPU with this rank's share of the cores. Raises InputError."""
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if context.local_rank >= gpus:
            raise InputError(
                f"local rank {context.local_rank} has no GPU: {gpus} visible; start at most {gpus} ranks on this host, "
                "or set CUDA_VISIBLE_DEVICES= to train on the CPU",
                same_on_all_ranks=False,
            )
        device = torch.device("cuda", context.local_rank)
        torch.cuda.set_device(device)
        return device
    # A value set by the user or by the launcher takes precedence. But torchrun sets OMP_NUM_THREADS=1 for several
    # ranks, which would leave cores idle.
    chosen = environ.get("OMP_NUM_THREADS", "")
    if not chosen or (chosen == "1" and "MUSTER_RUN_DIR" not in environ):
        torch.set_num_threads(max(1, usable_cores() // context.local_world_size))
    return torch.device("cpu")


def host_capabilities(device: torch.device, context: RunContext, environ: Mapping[str, str]) -> HostCapabilities:
    """The properties of this host that the plan depends on."""
    compilers = (environ.get("CXX") or "c++", "c++", "g++", "clang++")
    return HostCapabilities(
        device="cuda" if device.type == "cuda" else "cpu",
        world_size=context.world_size,
        has_compiler=any(shutil.which(compiler) for compiler in compilers),
        has_bf16=device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False),
        has_float8=device.type == "cuda" and torch.cuda.get_device_capability(device) >= FLOAT8_CAPABILITY,
    )


@contextlib.contextmanager
def select_kernels(device: torch.device, precision: str, *, deterministic: bool) -> Iterator[None]:
    """Choose kernels in this context: on Hopper and newer cuDNN's attention, which is 20% faster than flash attention,
    and the convolutions that are fastest by measurement.

    With bf16, the remaining float32 matrix products use TF32; with `--precision fp32` they stay float32. With
    `deterministic`, an operator without a deterministic kernel raises RuntimeError, convolutions are not chosen by
    measurement, and the backward passes of cuDNN's and of memory-efficient attention are not used, because they add up
    in varying order.
    """
    if deterministic:
        torch.use_deterministic_algorithms(True)
    if device.type != "cuda":
        yield
        return
    torch.backends.cudnn.benchmark = not deterministic  # shapes are the same in all steps
    torch.set_float32_matmul_precision("high" if precision == "bf16" else "highest")
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if deterministic:
        backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    elif torch.cuda.get_device_capability(device)[0] >= 9:
        backends.insert(0, SDPBackend.CUDNN_ATTENTION)
    with sdpa_kernel(backends, set_priority=True):
        yield


def init_distributed(device: torch.device, world_size: int, *, launched: bool) -> None:
    """gloo for CPU tensors on every machine (checkpoints use it), NCCL for CUDA tensors.

    `launched`: by torchrun or as it does, with a rendezvous.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    device_id = device if device.type == "cuda" and world_size > 1 else None  # one rank: no NCCL unless DDP uses it
    if not launched:
        store = dist.HashStore()  # type: ignore[attr-defined]  # exported, but not by name
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=device_id)
    else:
        dist.init_process_group(backend, device_id=device_id)


def set_group_timeouts(timeout: timedelta, *, except_for: dist.ProcessGroup) -> None:
    """The time-out of later collectives in all process groups of this rank but one."""
    for group in list(distributed_c10d._world.pg_map):
        if group is not except_for:
            distributed_c10d._set_pg_timeout(timeout, group)
