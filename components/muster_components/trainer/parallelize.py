"""Activation checkpointing, compilation, FSDP2 or DDP, and initial weights for a model on the meta device.

The order matters, and is that of torchtitan:

1. activation checkpointing inside the blocks, so that the compiler partitions forward and backward by it;
2. compilation of each block by itself: all blocks share one graph, so compile time does not grow with depth, and the
   graph contains no collective, which would break it;
3. FSDP2 around the compiled blocks, whose hooks gather and free the weights outside the graph; DDP around the whole
   model, since it needs all parameters at once;
4. initial weights last, on each rank only its shard.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from muster_components.trainer.config import TrainPlan
from muster_components.trainer.models import Transformer, init_weights

MAX_UNSHARDED_BYTES: Final = 4 * 1024**3
"""On a GPU, smaller gathered weights are kept between forward and backward."""


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """`module` is called in training; optimizer and checkpoints use the parameters of `model`, which it may wrap."""

    module: nn.Module
    model: Transformer
    device: torch.device
    autocast: bool

    def forward_context(self) -> AbstractContextManager[object]:
        """The context of forward: autocast if the weights stay float32 (DDP in bf16)."""
        if self.autocast:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def gradient_sync_context(self, *, last_micro_batch: bool) -> AbstractContextManager[object]:
        """The context of a micro-step: DDP reduces gradients only in the last one of a step.

        FSDP reduces in every micro-step, since otherwise each rank would store the gradients of the whole model.
        """
        if not last_micro_batch and isinstance(self.module, DistributedDataParallel):
            return self.module.no_sync()
        return contextlib.nullcontext()


def parallelize(plan: TrainPlan, device: torch.device, world_size: int) -> ParallelModel:
    """Apply the steps of this module's docstring in their order."""
    parallel = plan.config.parallel
    with torch.device("meta"):
        model = Transformer(plan.config.model, plan.seq_len)
    for block in model.blocks:
        block.recompute = parallel.recompute  # type: ignore[assignment]
    if plan.compile and not parallel.compiled_autograd:
        apply_compile(model)
    if parallel.mode == "fsdp":
        apply_fsdp(model, plan, device, world_size)
        init_weights(model, device, plan.config.seed)
        return ParallelModel(model, model, device, autocast=False)
    init_weights(model, device, plan.config.seed)
    return ParallelModel(apply_ddp(model, plan, device), model, device, autocast=plan.precision == "bf16")


def apply_compile(model: Transformer) -> None:
    """Compile each block and the head in place (`Module.compile` keeps the parameters' names)."""
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False)
    model.head.compile(fullgraph=True, dynamic=False)


def apply_fsdp(model: Transformer, plan: TrainPlan, device: torch.device, world_size: int) -> None:
    """FSDP2: one group per block, one for the rest; bf16 weights and activations, float32 gradients and masters."""
    mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    param_dtype = torch.bfloat16 if plan.precision == "bf16" else None
    # Inputs are not cast: activations already have the weights' dtype, and the rotary table must stay float32.
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    reshard = plan.config.parallel.reshard
    if reshard is None:
        reshard = device.type == "cuda" and _gathered_bytes(model, plan) > MAX_UNSHARDED_BYTES
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)


def apply_ddp(model: Transformer, plan: TrainPlan, device: torch.device) -> nn.Module:
    """DDP; compiled autograd captures the whole step, with the all-reduces of the gradients."""
    devices = [device.index] if device.type == "cuda" else None
    if not plan.config.parallel.compiled_autograd:
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    torch._dynamo.config.optimize_ddp = "python_reducer"
    torch._dynamo.config.compiled_autograd = True
    replicated = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    replicated.compile(dynamic=False)
    return replicated


@contextlib.contextmanager
def select_kernels(device: torch.device, precision: str) -> Iterator[None]:
    """Choose kernels in this context: on Hopper and newer cuDNN's attention, which is 20% faster than flash attention.

    With bf16, the remaining float32 matrix products use TF32; with `--precision fp32` they stay float32.
    """
    if device.type != "cuda":
        yield
        return
    torch.set_float32_matmul_precision("high" if precision == "bf16" else "highest")
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if torch.cuda.get_device_capability(device)[0] >= 9:
        backends.insert(0, SDPBackend.CUDNN_ATTENTION)
    with sdpa_kernel(backends, set_priority=True):
        yield


def init_distributed(device: torch.device, *, single_process: bool) -> None:
    """gloo for CPU tensors on every machine (checkpoints use it), NCCL for CUDA tensors.

    `single_process`: not started by torchrun, so there is no rendezvous.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    device_id = device if device.type == "cuda" else None
    if single_process:
        store = dist.HashStore()  # type: ignore[attr-defined]  # exported, but not by name
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=device_id)
    else:
        dist.init_process_group(backend, device_id=device_id)


def _gathered_bytes(model: Transformer, plan: TrainPlan) -> int:
    width = 2 if plan.precision == "bf16" else 4
    return sum(parameter.numel() for parameter in model.parameters()) * width
