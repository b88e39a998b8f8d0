"""The time of an optimizer step, from the work of each part and the speed that kernels reach.

Constants are what was measured on H200s (docs/reference/performance.md, "Planning"), as shares of the data sheet's
figures, so that they carry over to other GPUs. They are meant to rank choices, not to be exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from muster_components.trainer.planning.cost import Work
from muster_components.trainer.planning.devices import GpuKind
from muster_components.trainer.planning.memory import Candidate, gathered_bytes, is_resharded, tensor_parallel, unique
from muster_components.trainer.planning.profile_model import ModelProfile, Part

MATMUL_SHARE: Final = 0.70
"""Of the peak: 704 to 715 TFLOP/s of 989 in the blocks of Llama 8B and GPT-2 124M, limited by power."""
FLOAT32_SHARE: Final = 0.5 * MATMUL_SHARE
"""TF32 has half the peak of bf16."""
ATTENTION_SHARE: Final = 0.515
"""cuDNN's attention, forward and backward: 509 TFLOP/s."""
ATTENTION_DROPOUT: Final = 2.0
"""The time of attention with dropout beside that without: fitted to nanogpt:10m."""
UPDATE_SHARE: Final = 0.72
"""Of the bandwidth of HBM, in the optimizer: AdamW with 28 bytes per parameter takes 8.1 ms for 1e9 parameters."""
TRAFFIC_SHARE: Final = 0.52
"""The same of all other kernels, with the gaps between them: fitted to the compiled rows."""
TENSOR_PARALLEL_SHARE: Final = 0.28
"""Of NVLink's bandwidth, where nothing else can run: Llama 8B with tp=2."""
COLLECTIVE_SHARE: Final = 0.8
"""Of NVLink's bandwidth in one direction. Collectives run beside computation, but take as much of its speed as if they
ran alone: of Llama 8B on 4 H200s, a step takes 98 ms longer than without the 36 GB that each GPU exchanges."""
NETWORK_SHARE: Final = 0.8
"""Of the network's bandwidth. Its collectives take little of a GPU's speed, and are hidden behind computation as far as
that lasts."""
HIDDEN_SHARE: Final = 0.8
"""Of the computation that can hide the network's collectives: the first gather and the last reduction cannot."""
HOST_SHARE: Final = 0.8
"""Of the bandwidth to host memory; not measured."""
PIPELINE_STALLS: Final = 0.14
"""Of the computation, what a pipeline waits beside its ideal bubble: stages that are not equal, and messages that come
late. Fitted to TorchTitan's pipelines of Llama 8B on 2, 4 and 8 H200s."""
KERNEL_S: Final = 3e-6
"""Between two kernels of the GPU, also in a CUDA graph: fitted to models of 10M parameters."""
LAUNCH_S: Final = 6e-6
"""CPU time for each kernel that is not in a CUDA graph."""
FSDP_GROUP_S: Final = 2.5e-3
"""CPU time of FSDP2's hooks for each group and micro-batch: gpt:10m, 8 groups, took 25.3 ms per step on one GPU."""
_UPDATE_BYTES: Final = 40
"""Per parameter: AdamW reads four float32 numbers and writes three; clipping reads the gradient twice, writes once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeEstimate:
    """Seconds of one step on the slowest rank."""

    matmuls: float = 0.0
    attention: float = 0.0
    other_kernels: float = 0.0
    optimizer: float = 0.0
    communication: float = 0.0
    """What it adds to the step."""
    bubble: float = 0.0
    """Waiting in a pipeline."""
    launches: float = 0.0
    """Waiting for the CPU, where kernels are short."""
    offload: float = 0.0
    """Waiting for activations to be copied to the host and back."""

    @property
    def total(self) -> float:
        return float(sum(getattr(self, field.name) for field in fields(self)))


def estimate_step_time(
    profile: ModelProfile,
    candidate: Candidate,
    stages: Sequence[Sequence[Part]],
    device: GpuKind,
    gpus_per_host: int,
    *,
    cuda_graph: bool = False,
) -> StepTimeEstimate:
    """The rank that takes longest. `stages`: as for `estimate_memory`; `cuda_graph`: a step is launched at once."""
    mesh, schedule = candidate.mesh, candidate.schedule
    ranks = [
        [part for index in schedule.stage_indices(rank, mesh.pp) for part in stages[index]] for rank in range(mesh.pp)
    ]
    times = [_rank_time(profile, parts, candidate, device, gpus_per_host, cuda_graph=cuda_graph) for parts in ranks]
    return max(times, key=lambda time: time.total)


def _rank_time(
    profile: ModelProfile,
    parts: Sequence[Part],
    candidate: Candidate,
    device: GpuKind,
    gpus_per_host: int,
    *,
    cuda_graph: bool,
) -> StepTimeEstimate:
    mesh, steps = candidate.mesh, candidate.micro_steps
    work = Work()
    hidden = retained = 0.0
    for part in parts:
        cost = profile.cost(part, candidate.recompute, candidate.micro_batch)
        hidden = max(hidden, cost.output)
        cost = tensor_parallel(cost, part, mesh.tp)
        work = work + cost.forward + cost.backward
        retained += cost.retained
    matmuls = steps * work.matmul_flops / (device.flops * (MATMUL_SHARE if candidate.bf16 else FLOAT32_SHARE))
    attention = steps * work.attention_flops / (device.flops * ATTENTION_SHARE)
    if profile.attention_dropout:
        attention *= ATTENTION_DROPOUT
    other = steps * (work.traffic / (device.hbm * TRAFFIC_SHARE) + work.kernels * KERNEL_S)
    own = sum(parameter.shard(mesh.shard) for parameter in unique(parts)) / mesh.tp
    optimizer = own * _UPDATE_BYTES / (device.hbm * UPDATE_SHARE)
    compute = matmuls + attention + other
    launches = 0.0
    if not cuda_graph:
        groups = 1 + sum(part.sharded_alone for part in parts) if candidate.uses_fsdp else 0
        launches = max(0.0, steps * (work.kernels * LAUNCH_S + groups * FSDP_GROUP_S) - compute)
    bubble = 0.0
    if mesh.pp > 1:
        share = candidate.schedule.bubble(mesh.pp, steps)
        bubble = compute * (share / (1 - share) + PIPELINE_STALLS)
    copies = 2 * steps * retained / (device.host_link * HOST_SHARE) if candidate.offloads else 0.0
    return StepTimeEstimate(
        matmuls=matmuls,
        attention=attention,
        other_kernels=other,
        optimizer=optimizer,
        communication=_communication(parts, candidate, device, gpus_per_host, compute, hidden),
        bubble=bubble,
        launches=launches,
        offload=max(0.0, copies - compute),
    )


def _communication(
    parts: Sequence[Part], candidate: Candidate, device: GpuKind, gpus_per_host: int, compute: float, hidden: float
) -> float:
    """Seconds that collectives add to the step. `hidden`: bytes of what a block returns for a micro-batch."""
    mesh, steps = candidate.mesh, candidate.micro_steps
    parameters = unique(parts)
    numel = sum(parameter.numel for parameter in parameters) / mesh.tp
    blocks = [part for part in parts if part.is_block]
    sent: list[tuple[float, int]] = []  # bytes that each rank sends, and the ranks that the group reaches over

    # Neighbouring ranks differ in tp, then in shard, replicate and pp.
    if mesh.tp > 1:  # forward and backward of a block each gather and reduce the hidden states twice
        exposed = COLLECTIVE_SHARE / TENSOR_PARALLEL_SHARE
        sent.append((exposed * 8 * len(blocks) * hidden * steps * _ring(mesh.tp), mesh.tp))
    if candidate.uses_ddp:
        sent.append((2 * _ring(mesh.data_ranks) * 4 * numel, mesh.data_ranks))
    elif candidate.uses_fsdp:
        reach = mesh.tp * mesh.shard
        frees = is_resharded(parameters, candidate)
        if mesh.pp > 1:  # gradients are reduced once; freed weights are gathered for each forward or backward after it
            gathers = gathered_bytes(parts, candidate, times_in_blocks=1 + steps if frees else 1)
            sent.append((_ring(mesh.shard) * (gathers + 4 * numel), reach))
        else:
            gathers = gathered_bytes(parts, candidate, times_in_blocks=2 if frees else 1)
            sent.append((_ring(mesh.shard) * steps * (gathers + 4 * numel), reach))
        if mesh.replicate > 1:
            sent.append((2 * _ring(mesh.replicate) * 4 * numel / mesh.shard, reach * mesh.replicate))
    if mesh.pp > 1:  # hidden states forward, their gradients backward
        stages = candidate.schedule.stages_per_rank
        sent.append((2 * stages * hidden * steps, mesh.world_size))
    within = sum(size for size, reach in sent if reach <= gpus_per_host) / (device.link * COLLECTIVE_SHARE)
    between = sum(size for size, reach in sent if reach > gpus_per_host) / (device.network * NETWORK_SHARE)
    return within + max(0.0, between - HIDDEN_SHARE * compute)


def _ring(ranks: int) -> float:
    """The share of a tensor that each rank sends when it is gathered or reduced."""
    return (ranks - 1) / ranks
