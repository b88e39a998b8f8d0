"""Resolves the defaults of a configuration, and refuses what the host or the number of ranks does not support."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from muster_components.trainer.config import (
    DEFAULT_BACKEND,
    Device,
    Precision,
    TrainConfig,
    memory_budget,
)
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.models.selection import FactorySource
from muster_components.trainer.parallel.schedules import DEFAULT_SCHEDULE, Schedule, find_schedule, invalid_because
from muster_components.trainer.parallel.spec import MeshShape

MAX_GRAPHED_PARAMETERS: Final = 500_000_000
"""Larger models are not bound by launches, and a graph's memory pool would take too much beside the allocator's."""

CAPTURED_BACKENDS: Final = ("inductor", "aot_eager", "eager")
"""Of torch.compile: those that neither record CUDA graphs of their own nor wait for the GPU."""

BUDGET_BACKENDS: Final = ("inductor", "aot_eager")
"""Of torch.compile: those that decide what is saved by AOTAutograd's partitioner, which knows memory budgets."""

FLOAT8_MULTIPLE: Final = 16
"""Of all dimensions of a matrix product in float8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """A TrainConfig with all defaults resolved.

    Each data-parallel rank processes `micro_batch` sequences at once, `gradient_accumulation_steps` times per step. If
    their product exceeds `global_batch`, the remaining positions are padding. A pipeline runs the micro-batches in the
    order of `schedule`.
    """

    config: TrainConfig
    mesh: MeshShape
    seq_len: int
    global_batch: int
    micro_batch: int
    gradient_accumulation_steps: int
    schedule: Schedule
    lr: float
    warmup: int
    compile_backend: str | None
    """That of torch.compile; None: not compiled."""
    cuda_graph: bool
    precision: Precision
    checkpoint_every: int | None
    """Steps between saves, 0: only at the end; None: as `checkpoint_interval` chooses."""
    log_every: int

    @property
    def compile(self) -> bool:
        return self.compile_backend is not None

    def graphs_steps(self, parameter_count: int) -> bool:
        """Whether a step of a model with so many parameters is one CUDA graph on a GPU: if requested, or if it is a
        compiled recipe small enough to be bound by launches. Other models may wait for the GPU in a step, which a
        capture does not allow."""
        if self.mesh.world_size > 1 or not self.cuda_graph:
            return False
        small_recipe = isinstance(self.config.model, ModelConfig) and parameter_count <= MAX_GRAPHED_PARAMETERS
        return self.config.compile.cuda_graph is True or (small_recipe and self.compile_backend in CAPTURED_BACKENDS)

    @property
    def padding(self) -> int:
        """Positions of a step beyond the global batch."""
        return self.mesh.data_ranks * self.micro_batch * self.gradient_accumulation_steps - self.global_batch

    @property
    def without_effect(self) -> str:
        """The given flags that do nothing on this mesh, since it gathers no weights; empty if there are none."""
        parallel = self.config.parallel
        flags = ["--reshard"] if parallel.reshard is not None else []
        flags += ["--symmetric_memory"] if parallel.symmetric_memory else []
        if not flags or self.mesh.shard > 1:
            return ""
        return f"{' and '.join(flags)} without effect: {str(self.mesh) or '1 rank'} gathers no weights"

    @property
    def untraced(self) -> str:
        """How much of the requested trace is after the end of the run; empty if nothing is."""
        trace, steps = self.config.trace, self.config.steps
        if not trace.start <= steps < trace.end - 1:
            return ""
        traced = steps - trace.start + 1
        return f"the run ends in the trace: {traced} of {trace.end - trace.start} steps are traced, up to step {steps}"

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step over all ranks, without padding."""
        return self.global_batch * self.seq_len


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCapabilities:
    """The properties of the host that `resolve_plan` needs."""

    device: Device
    world_size: int
    has_compiler: bool
    has_bf16: bool
    has_float8: bool = False


def resolve_plan(config: TrainConfig, host: HostCapabilities) -> TrainPlan:
    """Resolve all defaults. Raises InputError for flags that the host does not support."""
    on_gpu = host.device == "cuda"
    seq_len = config.data.seq_len or (1024 if on_gpu else 128)
    global_batch = config.data.global_batch or (64 if on_gpu else 16)
    mesh = config.parallel.spec.shape(host.world_size)
    if seq_len % mesh.tp:
        raise InputError(f"--seq_len must be a multiple of {mesh.tp} for --parallel {mesh}; got {seq_len}")
    if global_batch < mesh.data_ranks and "parallel" not in config.parallel.auto:
        ranks = "ranks" if mesh.data_ranks == mesh.world_size else "data-parallel ranks"
        raise InputError(
            f"--global_batch must be at least the number of {ranks}, {mesh.data_ranks}; got {global_batch}"
        )
    share = math.ceil(global_batch / mesh.data_ranks)
    # In a pipeline, so many micro-batches that ranks wait less than a fifth of the time with the default schedule.
    micro_batch = min(config.data.micro_batch or (share if mesh.pp == 1 else max(1, share // (4 * mesh.pp))), share)
    micro_steps = math.ceil(share / micro_batch)
    backend = compile_backend(config, host)
    if backend is not None and mesh.tp > 1 and config.parallel.recompute == "full":
        raise InputError(
            "--activation_checkpointing full with --parallel tp=N cannot be compiled by torch; "
            "use --activation_checkpointing selective or --no_compile"
        )
    recompute = config.parallel.recompute
    if memory_budget(recompute) is not None and backend not in BUDGET_BACKENDS:
        got = "a model that is not compiled" if backend is None else backend
        raise InputError(
            f"--activation_checkpointing {recompute} requires compilation with --backend "
            f"{' or '.join(BUDGET_BACKENDS)}; got {got}; use full"
        )
    if config.parallel.offload_activations and backend is None and recompute != "none":
        raise InputError(
            "--offload_activations does not move the inputs of blocks that are recomputed without compilation; "
            f"use --activation_checkpointing none; got {recompute}"
        )
    if config.parallel.async_tp and backend not in (None, DEFAULT_BACKEND):
        raise InputError(f"--async_tp requires --backend {DEFAULT_BACKEND}; got {backend}")
    if config.compile.cuda_graph and not (on_gpu and mesh.world_size == 1):
        raise InputError("--cuda_graph requires one rank on a GPU; it is used there by default for small recipes")
    if config.compile.cuda_graph and backend not in (None, *CAPTURED_BACKENDS):
        raise InputError(
            f"--cuda_graph requires --no_compile or --backend {', '.join(CAPTURED_BACKENDS)}; got {backend}"
        )
    has_dropout = isinstance(config.model, ModelConfig) and config.model.dropout > 0
    repeats_dropout = backend is not None and recompute == "full" and has_dropout
    if config.compile.cuda_graph and repeats_dropout:
        raise InputError(
            "--activation_checkpointing full of a compiled model with dropout sets the state of the random numbers, "
            "which is not captured; use selective, or remove --cuda_graph"
        )
    if config.parallel.symmetric_memory and not on_gpu:
        raise InputError("--symmetric_memory requires GPUs")
    if config.parallel.async_tp and not (on_gpu and host.has_compiler):
        raise InputError("--async_tp requires GPUs and a C++ compiler")
    precision = config.parallel.precision
    if precision == "bf16" and not host.has_bf16:
        raise InputError("--precision bf16 is not supported by this device; use --precision fp32 or auto")
    if config.float8.recipe is not None:
        _require_float8(config, host, rows=micro_batch * seq_len)
    schedule = find_schedule(config.parallel.schedule or DEFAULT_SCHEDULE)
    stages = mesh.pp * schedule.stages_per_rank
    if mesh.pp > 1 and isinstance(config.model, ModelConfig) and stages > config.model.layers:
        raise InputError(
            f"--parallel pp={mesh.pp} with --pipeline_schedule {schedule.name} has {stages} stages;"
            f" {config.model.name} has only {config.model.layers} blocks; use fewer ranks in pp"
        )
    reason = mesh.pp > 1 and invalid_because(
        schedule, ranks=mesh.pp, micro_batches=micro_steps, compile_backend=backend, recompute=recompute
    )
    if reason:
        raise InputError(reason)
    resolved = precision or ("bf16" if on_gpu and host.has_bf16 else "fp32")
    if backend == "cudagraphs" and mesh.pp > 1:
        raise InputError(
            f"--backend cudagraphs runs a backward pass after each forward pass, which a pipeline (pp={mesh.pp}) "
            f"does not; use --backend {DEFAULT_BACKEND}"
        )
    if backend == "cudagraphs" and mesh.data_ranks == 1 and resolved == "fp32" and micro_steps > 1:
        raise InputError(
            "--backend cudagraphs reuses the memory of gradients in each micro-step; on one data-parallel rank with "
            f"--precision fp32 use a --micro_batch of {share}, or --precision bf16; got --micro_batch {micro_batch}"
        )
    every = config.checkpoint.every
    return TrainPlan(
        config=config,
        mesh=mesh,
        seq_len=seq_len,
        global_batch=global_batch,
        micro_batch=micro_batch,
        gradient_accumulation_steps=micro_steps,
        schedule=schedule,
        lr=config.optim.lr or config.model.lr,
        warmup=min(100, config.steps // 6) if config.optim.warmup is None else config.optim.warmup,
        compile_backend=backend,
        cuda_graph=config.compile.cuda_graph is not False
        and not (config.parallel.offload_activations or config.compile.autograd or repeats_dropout),
        precision=resolved,
        checkpoint_every=min(500, max(1, config.steps // 4)) if every is None else None if every == "auto" else every,
        log_every=config.log_every or max(1, min(10, config.steps // 10)),
    )


def _require_float8(config: TrainConfig, host: HostCapabilities, *, rows: int) -> None:
    """`rows`: tokens of a micro-batch, which gradients of weights are summed over."""
    flag = f"--float8 {config.float8.recipe}"
    if not (host.has_float8 or config.float8.emulate):
        raise InputError(
            f"{flag} requires GPUs of compute capability 8.9 or higher (Ada, Hopper, Blackwell); "
            f"use --float8 none{' on this GPU' if host.device == 'cuda' else ' on CPUs'}"
        )
    if rows % FLOAT8_MULTIPLE:
        raise InputError(
            f"{flag} requires a multiple of {FLOAT8_MULTIPLE} tokens in a micro-batch; got {rows}; "
            "use another --micro_batch or --seq_len"
        )


def require_plan(config: TrainConfig, world_size: int, devices: Sequence[Device]) -> None:
    """Before a job is submitted: raises InputError if `world_size` ranks can run `config` on none of `devices`, with
    the reason for the last one. The pods are taken to have a C++ compiler."""
    refused: InputError | None = None
    for device in devices:
        try:
            resolve_plan(
                config,
                HostCapabilities(
                    device=device,
                    world_size=world_size,
                    has_compiler=True,
                    has_bf16=True,
                    has_float8=device == "cuda",
                ),
            )
        except InputError as error:
            refused = error
        else:
            return
    if refused is not None:
        raise refused


def compile_backend(config: TrainConfig, host: HostCapabilities) -> str | None:
    """The backend of torch.compile, None to not compile. Raises InputError if Inductor lacks a C++ compiler.

    Modules of users are compiled on request only: not each of them can be compiled as a full graph.
    """
    chosen = config.compile
    is_requested = bool(chosen.enabled or chosen.backend or chosen.autograd)
    if chosen.enabled is False or (isinstance(config.model, FactorySource) and not is_requested):
        return None
    backend = chosen.backend or DEFAULT_BACKEND
    if backend != DEFAULT_BACKEND or host.has_compiler:
        return backend
    if chosen.enabled or chosen.backend:
        raise InputError(
            "--compile requires a C++ compiler; none of $CXX, c++, g++, clang++ was found; use --no_compile"
        )
    return None
