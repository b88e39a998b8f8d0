"""Activation checkpointing, compilation, FSDP2, HSDP or DDP, and initial weights for a model on the meta device.

The order matters, and is that of torchtitan:

1. float8, which replaces linear layers;
2. tensor parallelism, which replaces parameters;
3. activation checkpointing inside the blocks, so that the compiler partitions forward and backward by it;
4. compilation of each block by itself: all blocks share one graph, so compile time does not grow with depth, and the
   graph contains no collective of FSDP2, which would break it (a small model on one GPU is compiled as a whole);
5. FSDP2 around the compiled blocks, whose hooks gather and free the weights outside the graph; DDP around the whole
   model, since it needs all parameters at once;
6. initial weights last, on each rank only its shard.

Where all data is on one rank, there is nothing to shard or to reduce: the module remains as it is, with `MasterWeights`
for bf16.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from muster_components.trainer.compilation.backends import compile_in_place, find_backend
from muster_components.trainer.config import Recompute, memory_budget
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.parallel.activation_offload import ActivationOffload
from muster_components.trainer.parallel.float8 import convert_to_float8, update_scales
from muster_components.trainer.parallel.gradients import average, redistributed
from muster_components.trainer.parallel.master_weights import MasterWeights
from muster_components.trainer.parallel.mesh import RankMesh
from muster_components.trainer.parallel.symmetric_memory import symmetric_memory_available, use_symmetric_memory
from muster_components.trainer.parallel.tensor import apply_tensor_parallelism
from muster_components.trainer.plan import TrainPlan

MAX_UNSHARDED_BYTES: Final = 4 * 1024**3
"""On a GPU, smaller gathered weights are kept between forward and backward (`frees_weights`)."""

MAX_FUSED_BLOCKS: Final = 16
"""A model on one GPU with at most as many blocks is compiled as a whole, which takes time for each of them."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """The whole model on this rank, or one of its pipeline stages.

    `module` is called in training. Optimizer and checkpoints use the parameters of `model`, whose names are those in
    the whole model: `module` itself, what it wraps, or its float32 masters.
    """

    module: nn.Module
    model: nn.Module
    masters: MasterWeights | None = None
    float8_layers: int = 0
    """Linear layers that compute in float8."""
    gathers_float8: bool = False
    """Whether FSDP2 gathers the weights of these layers in float8."""
    sharded_over: DeviceMesh | None = None
    """What FSDP2 shards over. It cannot shard parameters without dimensions, such as CLIP's scale of logits."""

    def collect_gradients(self) -> None:
        """Give each parameter of `model` the gradient of what it is in `module`: call after each backward pass."""
        if self.masters is not None:
            self.masters.collect_gradients()
            return
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = redistributed(parameter.grad, parameter)
            if self.sharded_over is not None and parameter.dim() == 0 and parameter.requires_grad:
                # The average over micro-batches that are reduced already remains what it is.
                parameter.grad = average(parameter.grad, parameter, self.sharded_over)

    def require_gradients(self) -> None:
        """Raises InputError if DDP has not reduced all gradients, since forward does not use a parameter."""
        if not isinstance(self.module, DistributedDataParallel):
            return
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                raise InputError(
                    f"--parallel ddp requires that forward uses all parameters, but {name} has no gradient; "
                    "use --parallel fsdp, or set its requires_grad to False"
                )

    def publish_weights(self) -> None:
        """Use changed parameters of `model` in `module`: call after an update and after loading."""
        if self.masters is not None:
            self.masters.publish()
        if self.gathers_float8:
            update_scales(self.module)


@dataclass(frozen=True, slots=True)
class ParallelModel:
    """The parts of the model on this rank."""

    parts: tuple[ModelPart, ...]
    mesh: RankMesh
    device: torch.device
    parameter_count: int
    """Of the whole model."""
    autocast: bool
    tied: Mapping[str, str] = field(default_factory=dict)
    """Of each parameter's further names, the first one, by which checkpoints have it."""
    offload: ActivationOffload | None = None
    uncounted: frozenset[nn.Parameter] = frozenset()
    """Parameters that other parts count in the gradient norm: copies of tied ones in pipeline stages."""

    def parameters(self) -> list[nn.Parameter]:
        """Those of all parts that the optimizers update."""
        return [parameter for part in self.parts for parameter in part.model.parameters()]

    def forward_context(self) -> AbstractContextManager[object]:
        """The context of forward: autocast if the weights stay float32 (DDP in bf16), and activation offload."""
        stack = contextlib.ExitStack()
        if self.autocast:
            stack.enter_context(torch.autocast(self.device.type, dtype=torch.bfloat16))
        if self.offload is not None:
            stack.enter_context(self.offload.context())
        return stack

    def gradient_sync_context(self, *, last_micro_batch: bool) -> AbstractContextManager[object]:
        """The context of a micro-step: DDP and the replicas of HSDP reduce gradients only in the last one of a step.

        The shards reduce in every micro-step, since otherwise each rank would store the gradients of the whole model.
        """
        stack = contextlib.ExitStack()
        for part in self.parts:
            if isinstance(part.module, FSDPModule):
                part.module.set_requires_all_reduce(last_micro_batch)
            elif isinstance(part.module, DistributedDataParallel) and not last_micro_batch:
                stack.enter_context(part.module.no_sync())
        return stack


def parallelize(model: TrainModel, plan: TrainPlan, device: torch.device, mesh: RankMesh) -> ParallelModel:
    """Apply the steps of this module's docstring in their order."""
    with torch.device("meta"):
        module = model.build()
    count, tied = parameter_count(module), tied_names(module)
    part = parallelize_part(model, module, plan, device, mesh)
    autocast = plan.precision == "bf16" and isinstance(part.module, DistributedDataParallel)
    return ParallelModel((part,), mesh, device, count, autocast, tied, activation_offload(plan, [part], device))


def activation_offload(plan: TrainPlan, parts: Sequence[ModelPart], device: torch.device) -> ActivationOffload | None:
    """What moves the activations of these parts to the host; None if the plan does not."""
    if not plan.config.parallel.offload_activations:
        return None
    return ActivationOffload([part.module for part in parts], device)


def parallelize_part(
    model: TrainModel, module: nn.Module, plan: TrainPlan, device: torch.device, mesh: RankMesh
) -> ModelPart:
    """One part of the model, on the meta device: the whole module or a pipeline stage."""
    parallel, float8 = plan.config.parallel, plan.config.float8
    wraps_with_ddp = mesh.mesh is None and (mesh.shape.data_ranks > 1 or plan.config.compile.autograd)
    uses_fsdp = mesh.shape.data_ranks > 1 and not wraps_with_ddp
    layers, gathers_float8 = 0, uses_fsdp and float8.recipe == "tensorwise"
    if float8.recipe is not None:
        layers = convert_to_float8(module, model.blocks(module), float8, gathers=gathers_float8, tp=mesh.shape.tp)
    if mesh.shape.tp > 1:
        apply_tensor_parallelism(module, mesh.dimension("tp"), overlap=parallel.async_tp)
    blocks = model.blocks(module)
    apply_activation_checkpointing(blocks, parallel.recompute)
    if (budget := memory_budget(parallel.recompute)) is not None:
        torch._functorch.config.activation_memory_budget = budget
    one_gpu = device.type == "cuda" and mesh.shape.world_size == 1
    compiled_autograd = plan.config.compile.autograd
    if compiled_autograd or plan.compile_backend is None:
        pass  # compiled autograd compiles what DDP wraps
    elif one_gpu and len(blocks) <= MAX_FUSED_BLOCKS and not parallel.offload_activations:
        model.compile_whole(module, find_backend(plan.compile_backend))
    else:
        backend = find_backend(plan.compile_backend)
        for compiled in model.compiled_modules(module):
            compile_in_place(compiled, backend)
    if uses_fsdp:
        apply_fsdp(model, module, plan, device, mesh)
    model.initialize(module, device, plan.config.seed)
    if wraps_with_ddp:
        return ModelPart(apply_ddp(module, plan, device), module, None, layers)
    if mesh.shape.data_ranks == 1 and plan.precision == "bf16":
        masters = MasterWeights(module)
        return ModelPart(module, masters.masters, masters, layers)
    return ModelPart(module, module, None, layers, gathers_float8, mesh.fsdp_mesh if uses_fsdp else None)


def apply_activation_checkpointing(blocks: Sequence[nn.Module], recompute: Recompute) -> None:
    """The backward pass of each block computes its activations again: all ("full"), or only cheap ones ("selective").

    Blocks of one class get the same class, so that they still share one compiled graph; names of parameters do not
    change. A memory budget is left to the compiler.
    """
    if recompute not in ("selective", "full"):
        return
    classes = {block_class: _recomputing_class(block_class, recompute) for block_class in set(map(type, blocks))}
    for block in blocks:
        block.__class__ = classes[type(block)]


def _recomputing_class(block_class: type[nn.Module], recompute: Recompute) -> type[nn.Module]:
    contexts: dict[str, Any] = {"context_fn": _selective_contexts} if recompute == "selective" else {}

    # The method of a class: Dynamo guards each function of an instance by itself, and would compile every block.
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        def without_checkpoint(*args: Any, **kwargs: Any) -> Any:
            return block_class.forward(self, *args, **kwargs)

        return checkpoint(without_checkpoint, *args, use_reentrant=False, **contexts, **kwargs)

    return type(f"Recomputed{block_class.__name__}", (block_class,), {"forward": forward})


def frees_weights(gathered_bytes: float, pp: int) -> bool:
    """Whether FSDP2 frees gathered weights of this size after forward on a GPU, unless `--reshard` says so.

    Stages of a pipeline keep them: from a step's first backward on they keep them anyway, and would gather them again
    for each micro-batch.
    """
    return pp == 1 and gathered_bytes > MAX_UNSHARDED_BYTES


def apply_fsdp(model: TrainModel, module: nn.Module, plan: TrainPlan, device: torch.device, mesh: RankMesh) -> None:
    """FSDP2: one group per block, one for the head, one for the rest; bf16 weights, float32 gradients and masters."""
    shards, blocks = mesh.fsdp_mesh, model.blocks(module)
    bf16 = plan.precision == "bf16"
    if bf16:
        use_float32_in_batch_norms(module)
    group = shards.get_group(shards.mesh_dim_names[-1] if shards.mesh_dim_names else None)
    symmetric = bf16 and plan.config.parallel.symmetric_memory and symmetric_memory_available(group, device)
    # Inputs are not cast: activations already have the weights' dtype, and the rotary table must stay float32.
    policy = MixedPrecisionPolicy(torch.bfloat16 if bf16 else None, torch.float32, cast_forward_inputs=False)
    block_policy = dataclasses.replace(policy, reduce_dtype=torch.bfloat16) if symmetric else policy
    reshard = plan.config.parallel.reshard
    if reshard is None:
        reshard = device.type == "cuda" and frees_weights(_gathered_bytes(module, plan), plan.mesh.pp)
    scalars = {parameter for parameter in module.parameters() if parameter.dim() == 0}
    for block in blocks:
        fully_shard(block, mesh=shards, mp_policy=block_policy, reshard_after_forward=reshard, ignored_params=scalars)
    for other in _without_shared_parameters(module, model.compiled_modules(module)):
        if not isinstance(other, FSDPModule):
            # Its gradients are reduced first, while the blocks' are computed, instead of last with the embedding's.
            fully_shard(other, mesh=shards, mp_policy=policy, reshard_after_forward=False, ignored_params=scalars)
    fully_shard(module, mesh=shards, mp_policy=policy, reshard_after_forward=False, ignored_params=scalars)
    if symmetric:
        use_symmetric_memory(blocks, group, device)


def use_float32_in_batch_norms(module: nn.Module) -> None:
    """Kernels of batch normalization take weight and bias in the type of the running statistics, which FSDP2 does not
    cast: they are gathered in bf16 as all weights, and cast to float32 where they are used."""
    norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm)]
    classes = {norm_class: _float32_class(norm_class) for norm_class in set(map(type, norms))}
    for norm in norms:
        norm.__class__ = classes[type(norm)]


def _float32_class(norm_class: type[_BatchNorm]) -> type[_BatchNorm]:
    def in_float32(name: str) -> property:
        def read(self: nn.Module) -> torch.Tensor | None:
            parameter = self._parameters[name]
            return None if parameter is None else parameter.float()

        return property(read)

    members = {name: in_float32(name) for name in ("weight", "bias")}
    return type(f"Float32{norm_class.__name__}", (norm_class,), members)


def _without_shared_parameters(module: nn.Module, children: Sequence[nn.Module]) -> list[nn.Module]:
    """Those of `children` that have no parameter in common with the rest of `module`, as a tied head has."""
    users: Counter[nn.Parameter] = Counter(
        parameter for part in module.modules() for parameter in part.parameters(recurse=False)
    )
    return [child for child in children if all(users[parameter] == 1 for parameter in child.parameters())]


def apply_ddp(module: nn.Module, plan: TrainPlan, device: torch.device) -> nn.Module:
    """DDP; compiled autograd captures the whole step, with the all-reduces of the gradients."""
    devices = [device.index] if device.type == "cuda" else None
    if not plan.config.compile.autograd or plan.compile_backend is None:
        return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
    torch._dynamo.config.optimize_ddp = "python_reducer"
    torch._dynamo.config.compiled_autograd = True
    replicated = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)
    replicated.compile(dynamic=False, backend=find_backend(plan.compile_backend))
    return replicated


def tied_names(module: nn.Module) -> dict[str, str]:
    """The further names of tied parameters, and their first name."""
    first: dict[nn.Parameter, str] = {}
    names = {
        name: first.setdefault(parameter, name) for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    return {name: canonical for name, canonical in names.items() if name != canonical}


def parameter_count(module: nn.Module) -> int:
    """Parameters of the whole module, sharded or not; tied ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _gathered_bytes(module: nn.Module, plan: TrainPlan) -> int:
    return parameter_count(module) * (2 if plan.precision == "bf16" else 4)


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(selective_policy)  # type: ignore[no-untyped-call]


_SAVED_OPERATORS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",  # of a linear layer with a bias
        "_scaled_mm",
        "max",  # the scale of a tensor in float8
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
) | {torch.ops._c10d_functional.reduce_scatter_tensor.default}


def selective_policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """Save the results of matrix products, attention and reduce-scatters (tensor parallelism), which cost most to
    recompute; recompute the rest."""
    return CheckpointPolicy.MUST_SAVE if operator in _SAVED_OPERATORS else CheckpointPolicy.PREFER_RECOMPUTE
