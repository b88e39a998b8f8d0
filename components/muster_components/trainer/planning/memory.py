"""The peak of GPU memory of a step, by what it is used for.

States: float32 parameters and two AdamW moments, sharded over the ranks of the mesh. Forward adds the activations that
each part retains; backward frees them from the last part to the first and adds gradients. The peak is the largest sum
over all places of this order, with the weights that FSDP2 has gathered there and its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Final

from muster_components.trainer.config import Recompute
from muster_components.trainer.parallel.schedules import Schedule
from muster_components.trainer.parallel.sharding import frees_weights
from muster_components.trainer.parallel.spec import MeshShape
from muster_components.trainer.planning.cost import Cost
from muster_components.trainer.planning.profile_model import ModelProfile, Parameter, Part

_FLOAT32: Final = 4
_MOMENTS: Final = 8
"""Bytes per parameter of AdamW's two moments."""
WORKSPACE_BYTES: Final = 64 * 1024**2
"""Of cuBLAS and cuBLASLt on Hopper GPUs."""

OFFLOAD_PARTS: Final = 3
"""Whose activations are on the GPU although they are offloaded: of the part that runs, and of those whose copies are
under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to train: the choices that the planner makes, and those that it is given."""

    mesh: MeshShape
    micro_batch: int
    micro_steps: int
    recompute: Recompute
    schedule: Schedule
    bf16: bool
    reshard: bool | None = None
    offloads: bool = False
    """Whether activations are in host memory between forward and backward."""
    gathers_float8: bool = False
    """Whether FSDP2 gathers the weights of blocks in float8."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight in forward and backward."""
        return 2 if self.bf16 else _FLOAT32

    def gathered_bytes(self, *, is_block: bool) -> int:
        """Bytes of a weight that FSDP2 gathers. Those in a block that stay bf16 (norms) are few."""
        return 1 if self.gathers_float8 and is_block and self.uses_fsdp else self.weight_bytes

    @property
    def uses_ddp(self) -> bool:
        """Whether DDP wraps the model, and not FSDP2."""
        return self.mesh.data == "ddp" and self.mesh.data_ranks > 1 and self.mesh.pp * self.mesh.tp == 1

    @property
    def uses_fsdp(self) -> bool:
        """Whether FSDP2 gathers weights and reduces gradients."""
        return self.mesh.data_ranks > 1 and not self.uses_ddp


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes on one rank at the peak of a step, in tensors (`torch.cuda.max_memory_allocated`)."""

    parameters: float = 0.0
    optimizer: float = 0.0
    gradients: float = 0.0
    activations: float = 0.0
    gathered: float = 0.0
    """Weights that FSDP2 gathered, or bf16 copies of the parameters on one rank."""
    buffers: float = 0.0
    """Of collectives."""
    temporary: float = 0.0
    """Of the part that runs at the peak."""

    @property
    def total(self) -> float:
        return float(sum(getattr(self, field.name) for field in fields(self)))


def estimate_memory(profile: ModelProfile, candidate: Candidate, stages: Sequence[Sequence[Part]]) -> MemoryEstimate:
    """The rank with the highest peak. `stages`: the parts of each pipeline stage; one for all without a pipeline."""
    mesh, schedule = candidate.mesh, candidate.schedule
    ranks = [
        [part for index in schedule.stage_indices(rank, mesh.pp) for part in stages[index]] for rank in range(mesh.pp)
    ]
    estimates = [_rank_memory(profile, parts, candidate, rank) for rank, parts in enumerate(ranks)]
    return max(estimates, key=lambda estimate: estimate.total)


def is_resharded(parameters: Sequence[Parameter], candidate: Candidate) -> bool:
    """Whether FSDP2 frees a block's gathered weights after forward: see `apply_fsdp`. It counts weights that tensor
    parallelism splits as a whole."""
    if candidate.reshard is not None:
        return candidate.reshard
    gathered = sum(parameter.numel for parameter in parameters) * candidate.weight_bytes
    return frees_weights(gathered, candidate.mesh.pp)


def gathered_bytes(parts: Sequence[Part], candidate: Candidate, *, times_in_blocks: int = 1) -> float:
    """The weights of all parts as FSDP2 gathers them, those of blocks `times_in_blocks` times."""
    numel, in_blocks = (
        sum(parameter.numel for parameter in unique(some)) / candidate.mesh.tp
        for some in (parts, [part for part in parts if part.is_block])
    )
    return (numel - in_blocks) * candidate.weight_bytes + times_in_blocks * in_blocks * candidate.gathered_bytes(
        is_block=True
    )


def unique(parts: Sequence[Part]) -> list[Parameter]:
    """The parameters of these parts, tied ones once."""
    return list({parameter.index: parameter for part in parts for parameter in part.parameters}.values())


def tensor_parallel(cost: Cost, part: Part, tp: int) -> Cost:
    """The cost on one of `tp` ranks: a share of everything, and of blocks the whole inputs of its two first products,
    which are gathered from all ranks."""
    if tp == 1:
        return cost
    share = Cost(
        retained=cost.retained / tp,
        forward_extra=cost.forward_extra / tp,
        backward_extra=cost.backward_extra / tp,
        output=cost.output / tp,
        forward=cost.forward.scaled(1 / tp),
        backward=cost.backward.scaled(1 / tp),
    )
    gathered = 2 * cost.output * (1 - 1 / tp) if part.is_block else 0.0
    return replace(share, retained=share.retained + gathered)


def _rank_memory(profile: ModelProfile, parts: Sequence[Part], candidate: Candidate, pp_rank: int) -> MemoryEstimate:
    mesh, schedule = candidate.mesh, candidate.schedule
    costs = [
        tensor_parallel(profile.cost(part, candidate.recompute, candidate.micro_batch), part, mesh.tp) for part in parts
    ]
    retained = [0.0, *accumulate(cost.retained for cost in costs)]
    if candidate.offloads:
        retained = [held - retained[max(0, number - OFFLOAD_PARTS)] for number, held in enumerate(retained)]
    state = _RankState(parts, candidate)
    base = MemoryEstimate(
        parameters=state.own * _FLOAT32,
        optimizer=state.own * _MOMENTS,
        activations=candidate.micro_batch * candidate.micro_steps * profile.sample_bytes,
        buffers=WORKSPACE_BYTES,
    )
    if mesh.pp > 1:
        others = 0 if candidate.offloads else schedule.in_flight(pp_rank, mesh.pp, candidate.micro_steps) - 1
        # Of each micro-batch, what is received from the stage before, and the gradient from the stage after.
        received = 2 * max(cost.output for cost in costs) * candidate.micro_steps * schedule.stages_per_rank
        base = replace(base, activations=base.activations + others * retained[-1], buffers=base.buffers + received)
    peak = replace(base, activations=0.0, gradients=state.gradients_at_end(), gathered=state.gathered_at_end())
    for number, cost in enumerate(costs):
        reducing = state.reduce_buffer(number + 1)
        forward = replace(
            base,
            gradients=state.gradients(None),
            activations=base.activations + retained[number],
            temporary=cost.forward_extra,
            gathered=state.gathered(number, forward=True),
            buffers=base.buffers + state.gather_buffer(number),
        )
        # While it runs, the gradient of what the part returned exists as well.
        backward = replace(
            forward,
            gradients=state.gradients(number + 1),
            activations=base.activations + retained[number + 1],
            temporary=max(0.0, cost.backward_extra) + cost.output,
            gathered=state.gathered(number, forward=False),
            buffers=base.buffers + state.gather_buffer(number) + reducing,
        )
        # Its own gradients are about to be reduced.
        reduction = replace(
            backward,
            activations=base.activations + retained[number],
            temporary=state.unreduced(number) + cost.output,
            buffers=base.buffers + state.reduce_buffer(number) + reducing,
        )
        peak = max(peak, forward, backward, reduction, key=lambda estimate: estimate.total)
    return peak


class _RankState:
    """Gradients, gathered weights and buffers of one rank, in bytes, at each place of a step."""

    def __init__(self, parts: Sequence[Part], candidate: Candidate) -> None:
        mesh = candidate.mesh
        self._candidate = candidate
        self._numel = [sum(p.numel for p in part.parameters) / mesh.tp for part in parts]
        self._own = [sum(p.shard(mesh.shard) for p in part.parameters) / mesh.tp for part in parts]
        self._gathered = [
            numel * candidate.gathered_bytes(is_block=part.is_block)
            for numel, part in zip(self._numel, parts, strict=True)
        ]
        self._alone = [part.sharded_alone for part in parts]
        self._blocks = [part.is_block for part in parts]
        parameters = unique(parts)
        self.total = sum(p.numel for p in parameters) / mesh.tp
        self.own = sum(p.shard(mesh.shard) for p in parameters) / mesh.tp
        root = unique([part for part in parts if not part.sharded_alone])
        self._root = sum(p.numel for p in root) / mesh.tp
        self._all_gathered = gathered_bytes(parts, candidate)
        self._reshard = is_resharded(parameters, candidate)
        # Pipelines reduce gradients after the last micro-batch, and keep gathered weights from the first backward on.
        self._whole = candidate.uses_fsdp and mesh.pp > 1

    def gradients(self, first: int | None) -> float:
        """When the parts from `first` on have run backward; None: none has."""
        following = len(self._numel) if first is None else first
        candidate, accumulates = self._candidate, self._candidate.micro_steps > 1
        if candidate.uses_ddp:
            return self.total * _FLOAT32  # its buckets are never freed
        if self._whole:
            return self.total * _FLOAT32
        if candidate.uses_fsdp:
            return _FLOAT32 * (self.own if accumulates else min(self.own, sum(self._own[following:])))
        done = min(self.total, sum(self._numel[following:]))
        if candidate.bf16:  # in bf16 until backward has ended
            return done * candidate.weight_bytes + (self.total * _FLOAT32 if accumulates else 0.0)
        return _FLOAT32 * (self.total if accumulates else done)

    def gradients_at_end(self) -> float:
        """When the optimizer runs, or before: when gradients are collected."""
        candidate = self._candidate
        if self._whole:
            return (self.total + self.own) * _FLOAT32
        if candidate.uses_fsdp or candidate.uses_ddp or not candidate.bf16:
            return self.own * _FLOAT32
        return self.total * (_FLOAT32 + candidate.weight_bytes)

    def gathered(self, number: int, *, forward: bool) -> float:
        """While a part runs."""
        if self._candidate.uses_ddp or not (self._candidate.uses_fsdp or self._candidate.bf16):
            return 0.0
        if not self._candidate.uses_fsdp or self._whole:
            return self._all_gathered
        neighbour = number + 1 if forward else number - 1
        held = {number, neighbour} if self._reshard else set(range(max(number, neighbour) + 1))
        # Only blocks are freed after forward.
        kept = {index for index, is_block in enumerate(self._blocks) if not is_block and index <= number}
        alone = [self._gathered[index] for index in held | kept if 0 <= index < len(self._alone) and self._alone[index]]
        return self._candidate.weight_bytes * self._root + sum(alone)

    def gathered_at_end(self) -> float:
        """When the optimizer runs: bf16 weights beside their float32 masters; FSDP2 has freed what it gathered."""
        candidate = self._candidate
        return self.total * candidate.weight_bytes if candidate.bf16 and candidate.mesh.data_ranks == 1 else 0.0

    def gather_buffer(self, number: int) -> float:
        """What an all-gather writes to, before it is copied to the weights."""
        if not self._candidate.uses_fsdp or self._whole:
            return 0.0
        return self._gathered[number] if self._alone[number] else 0.0

    def unreduced(self, number: int) -> float:
        """The gradients of a part before FSDP2 has reduced them."""
        if not self._candidate.uses_fsdp or self._whole:
            return 0.0
        return self._candidate.weight_bytes * self._numel[number]

    def reduce_buffer(self, number: int) -> float:
        """What a reduce-scatter reads, in float32; of what is not sharded by itself at the end of backward."""
        if not self._candidate.uses_fsdp or self._whole or number >= len(self._numel):
            return 0.0
        if self._alone[number]:
            return _FLOAT32 * self._numel[number]
        return _FLOAT32 * self._root if number == 0 else 0.0
