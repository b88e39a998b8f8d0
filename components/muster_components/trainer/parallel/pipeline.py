"""Pipeline parallelism: this rank's stages, and the gradients of one step by a schedule of torch.

Every stage is a part of the model, sharded, compiled and initialized as a whole model is. Stages on different ranks
send hidden states and their gradients to each other. All ranks of a pipeline read the same samples, since each stage
computes masks and position ids itself; the last stage also computes the loss.

A parameter that several stages use (tied embeddings) has a copy in each. All start from the value in the first of these
stages, and their gradients are summed after the backward pass, so that the optimizers change all of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.profiler import record_function

from muster_components.trainer.models.interface import Batch, TrainModel, forward_arguments
from muster_components.trainer.parallel.balance import partition
from muster_components.trainer.parallel.call_graph import record_calls
from muster_components.trainer.parallel.gradients import local
from muster_components.trainer.parallel.mesh import RankMesh
from muster_components.trainer.parallel.schedules import Schedule, build_schedule
from muster_components.trainer.parallel.sharding import (
    ModelPart,
    ParallelModel,
    activation_offload,
    parallelize_part,
    parameter_count,
    tied_names,
)
from muster_components.trainer.parallel.split import (
    SharedParameter,
    build_stage,
    plan_stages,
    sent_tensors,
    shared_parameters,
)
from muster_components.trainer.parallel.split_backward import can_split_backward
from muster_components.trainer.plan import TrainPlan


@dataclass(frozen=True, slots=True)
class LocalStage:
    """A stage of this rank: what it receives and sends, as tensors on the meta device."""

    index: int
    part: ModelPart
    receives: tuple[Tensor, ...]
    sends: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class SharedCopies:
    """This rank's copies of a parameter that several stages use, and the process group of all ranks with copies (None:
    this rank alone). `counts`: this rank counts it in the gradient norm."""

    copies: tuple[nn.Parameter, ...]
    group: dist.ProcessGroup | None
    first_rank: int
    counts: bool


@dataclass(frozen=True, slots=True)
class PipelineModel:
    """The stages of this rank, as the parts of `parallel`, and the parameters that they share with other stages."""

    parallel: ParallelModel
    schedule: Schedule
    stages: tuple[LocalStage, ...]
    shared: tuple[SharedCopies, ...]


def parallelize_stages(
    model: TrainModel, plan: TrainPlan, device: torch.device, mesh: RankMesh, example: Batch
) -> PipelineModel:
    """Split the model into balanced stages, and build those of this rank. `example`: a micro-batch on the CPU.

    Every rank must call this. Raises InputError for a model that cannot be split.
    """
    schedule = plan.schedule
    with torch.device("meta"):
        module = model.build()
    graph = record_calls(
        module, forward_arguments(model, example), dtype=torch.bfloat16 if plan.precision == "bf16" else None
    )
    costs = graph.block_costs()
    if mesh.shape.tp > 1:
        graph = graph.split_sequences(mesh.shape.tp)
    plans = plan_stages(graph, partition(costs, mesh.shape.pp * schedule.stages_per_rank))
    # On the meta device all stages are small, and each rank needs them to find the shared parameters.
    modules = [build_stage(module, graph, stage, model.loss, model.targets) for stage in plans]
    sent = [sent_tensors(graph, stage) for stage in plans]
    shared = shared_parameters(module, modules)
    stages = tuple(
        LocalStage(
            index,
            parallelize_part(model, modules[index], plan, device, mesh),
            sent[index - 1] if index > 0 else (),
            sent[index],
        )
        for index in schedule.stage_indices(mesh.pp_rank, mesh.shape.pp)
    )
    copies = _connect_copies(shared, stages, schedule, mesh)
    uncounted = frozenset(copy for found in copies for copy in (found.copies[1:] if found.counts else found.copies))
    parallel = ParallelModel(
        tuple(stage.part for stage in stages),
        mesh,
        device,
        parameter_count(module),
        autocast=False,
        tied=tied_names(module),
        offload=activation_offload(plan, [stage.part for stage in stages], device),
        uncounted=uncounted,
    )
    return PipelineModel(parallel, schedule, stages, copies)


def _connect_copies(
    shared: Sequence[SharedParameter], stages: Sequence[LocalStage], schedule: Schedule, mesh: RankMesh
) -> tuple[SharedCopies, ...]:
    """The shared parameters of this rank, with the value of their first stage in all copies.

    Creates process groups, in the same order on all ranks.
    """
    ranks_of_stages = {
        stage: rank for rank in range(mesh.shape.pp) for stage in schedule.stage_indices(rank, mesh.shape.pp)
    }
    own = {stage.index: dict(stage.part.model.named_parameters()) for stage in stages}
    found = []
    groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
    for parameter in shared:
        pp_ranks = tuple(sorted({ranks_of_stages[stage] for stage, _ in parameter.copies}))
        if pp_ranks not in groups:
            groups[pp_ranks] = _pipeline_group(pp_ranks, mesh)
        copies = tuple(own[stage][name] for stage, name in parameter.copies if stage in own)
        if not copies:
            continue
        first = ranks_of_stages[parameter.copies[0][0]]
        # The first copy of the rank with the first stage is that of the first stage.
        found.append(SharedCopies(copies, groups[pp_ranks], _same_place(first, mesh), first == mesh.pp_rank))
    for same in found:
        _use_first_value(same)
    return tuple(found)


def _pipeline_group(pp_ranks: tuple[int, ...], mesh: RankMesh) -> dist.ProcessGroup | None:
    """The group of these ranks of this rank's pipeline, None for one rank. Every rank of the mesh must call this."""
    if len(pp_ranks) == 1:
        return None
    # Not that of the mesh, whose thread blocks are limited for what stages send.
    width = mesh.shape.world_size // mesh.shape.pp
    lists = [[pp_rank * width + place for pp_rank in pp_ranks] for place in range(width)]
    group, _ = dist.new_subgroups_by_enumeration(lists)  # type: ignore[no-untyped-call]
    return cast(dist.ProcessGroup, group)


def _same_place(pp_rank: int, mesh: RankMesh) -> int:
    """The global rank of another rank of this rank's pipeline."""
    width = mesh.shape.world_size // mesh.shape.pp
    return pp_rank * width + mesh.rank % width


@torch.no_grad()
def _use_first_value(shared: SharedCopies) -> None:
    value = local(shared.copies[0])
    if shared.group is not None:
        dist.broadcast(value, src=shared.first_rank, group=shared.group)
    for copy in shared.copies[1:]:
        local(copy).copy_(value)


@torch.no_grad()
def sum_shared_gradients(shared: Sequence[SharedCopies]) -> None:
    """Give all copies of a parameter the sum of their gradients. Every rank of the pipeline must call this."""
    for found in shared:
        for copy in found.copies:
            if copy.grad is None:
                copy.grad = torch.zeros_like(copy)
        first, *others = (local(copy.grad) for copy in found.copies if copy.grad is not None)
        for other in others:
            first += other
        if found.group is not None:
            dist.all_reduce(first, group=found.group)
        for other in others:
            other.copy_(first)


class _CollectingStage(PipelineStage):
    """Adds the bf16 gradients of each micro-batch to the float32 ones of the master weights.

    Schedules with split backward compute the gradients of parameters later than those of inputs; a stage where torch
    cannot do that (`can_split_backward`) computes both at once.
    """

    part: ModelPart
    splits_backward: bool
    _can_split: bool | None = None  # by the graph of the first micro-batch; those of the others are like it

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """Where backward is split, torch detaches what the stage sends in place, which must not be a view."""
        output = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        if not self.splits_backward or isinstance(output, Tensor):  # a tensor is the loss
            return output
        return tuple(tensor.clone() if tensor._is_view() else tensor for tensor in output)

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """The gradients of inputs without those of parameters ("input"), then those ("weight"), or both ("full")."""
        outputs = bwd_kwargs["stage_output"]
        if backward_type == "input" and self._can_split is None:
            self._can_split = can_split_backward(outputs, bwd_kwargs["input_values"], self.submod.parameters())
        if backward_type == "weight" and self._can_split is False:
            return (), None
        if backward_type == "input" and self._can_split is False:
            backward_type = "full"
            if bwd_kwargs["output_grads"] is None:  # of the last stage; torch takes a loss in no tuple here
                bwd_kwargs = {**bwd_kwargs, "stage_output": outputs[0]}
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, *args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        super().backward_one_chunk(*args, **kwargs)
        self._collect()

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> None:
        super().backward_weight_one_chunk(*args, **kwargs)
        self._collect()

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Without those between stages of this rank, which torch 2.11 has for V schedules: gloo has no such pair."""
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != self.group_rank]

    def _collect(self) -> None:
        if self.part.masters is not None:
            self.part.collect_gradients()


class PipelinedForwardBackward:
    """Forward and backward of all micro-batches of a step, in the order of a schedule. See ForwardBackward."""

    def __init__(self, plan: TrainPlan, pipeline: PipelineModel, gradient_scale: float) -> None:
        """`gradient_scale`: the factor between the summed loss of a micro-batch and what is differentiated."""
        self._micro_batches = plan.gradient_accumulation_steps
        self._pipeline = pipeline
        self._gradient_scale = gradient_scale
        self._device = pipeline.parallel.device
        mesh = pipeline.parallel.mesh
        count = mesh.shape.pp * pipeline.schedule.stages_per_rank
        group = mesh.dimension("pp").get_group()
        stages = []
        for local_stage in pipeline.stages:
            last = local_stage.index == count - 1
            stage = _CollectingStage(
                local_stage.part.module,
                local_stage.index,
                count,
                self._device,
                input_args=_with_gradients(local_stage.receives),
                output_args=_with_gradients((torch.empty((), device="meta"),) if last else local_stage.sends),
                group=group,
            )
            stage.part, stage.splits_backward = local_stage.part, pipeline.schedule.splits_backward
            stages.append(stage)
        self._schedule = build_schedule(pipeline.schedule, stages, self._micro_batches, self._scaled)

    def run(self, batches: Sequence[Batch]) -> Tensor:
        # The schedule divides it again along the first dimension.
        batch: dict[str, Any] = {name: torch.cat([one[name] for one in batches]) for name in batches[0]}
        losses: list[Tensor] = []
        with record_function("forward and backward"):
            targets = torch.zeros(self._micro_batches, device=self._device)  # not used: the batch has the targets
            with self._pipeline.parallel.forward_context():
                self._schedule.step(target=targets, losses=losses, return_outputs=False, **batch)
            for part in self._pipeline.parallel.parts:
                part.collect_gradients()
            sum_shared_gradients(self._pipeline.shared)
        loss_sum = torch.zeros((), device=self._device)
        for loss in losses:  # on the rank with the last stage
            loss_sum += loss.detach() / self._gradient_scale
        return loss_sum

    def _scaled(self, loss: Tensor, _target: Tensor) -> Tensor:
        return loss * self._gradient_scale


def _with_gradients(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().requires_grad_() for tensor in tensors)
