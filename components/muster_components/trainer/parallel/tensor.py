"""Tensor parallelism with sequence parallelism for the recipes (Megatron-LM; Korthikanti et al., 2022).

Within a block, each rank of `tp` has some of the heads and of the feed-forward columns for whole sequences. Between
them, each rank has a part of every sequence: the all-reduce after a row-wise matrix becomes a reduce-scatter there and
an all-gather before the next column-wise one. Embedding and head are split by vocabulary; the loss is computed from
split logits, so that no rank stores all of them.
"""

from __future__ import annotations

import fnmatch

import torch
from torch import nn
from torch.distributed._symmetric_memory import enable_symm_mem_for_group
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from muster_components.trainer.parallel.call_graph import Placeholder

_SEQUENCE = Shard(1)
"""Activations (B x L x D) between blocks."""


def apply_tensor_parallelism(module: nn.Module, mesh: DeviceMesh, *, overlap: bool = False) -> None:
    """Split a `Transformer`, or a part of it, over the one dimension of `mesh`, in place.

    `overlap`: the compiler splits matrix products and runs them while parts of their inputs are still exchanged
    through symmetric memory (async TP; CUDA only).
    """
    if overlap:
        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(mesh.get_group().group_name)
    block: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention.qkv": ColwiseParallel(input_layouts=_SEQUENCE),
        "attention.out": RowwiseParallel(output_layouts=_SEQUENCE),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=_SEQUENCE, desired_input_layouts=Replicate()),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=_SEQUENCE),
    }
    plan: dict[str, ParallelStyle] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=_SEQUENCE),
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "head.norm": SequenceParallel(),
        "head.out": ColwiseParallel(input_layouts=_SEQUENCE, output_layouts=Shard(-1), use_local_output=False),
        "head": PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Replicate()),
    }
    plan |= {f"blocks.*.{name}": style for name, style in block.items()}
    # A pipeline stage has placeholders for the modules of other stages, and GPT-2's style has no gate.
    styles = {
        name: style
        for name, child in module.named_modules()
        for pattern, style in plan.items()
        if fnmatch.fnmatchcase(name, pattern) and not isinstance(child, Placeholder)
    }
    parallelize_module(module, mesh, styles)
    embed = getattr(module, "embed", None)
    if isinstance(embed, nn.Module) and not isinstance(embed, Placeholder):
        # A compiled block that gets a tensor whose collective has not ended returns a gradient that is no DTensor
        # (torch 2.13).
        embed.register_forward_hook(lambda _module, _inputs, x_BLD: x_BLD.clone())
