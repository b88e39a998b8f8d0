"""The configuration of a training run: frozen values, validated early.

Values that depend on the device or the model (None here) are set once, by `resolve_plan`. Values that affect the sample
order or a checkpoint never depend on the number of ranks, since a job may resume with another world size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from muster_components.trainer.errors import InputError
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.models.selection import HuggingFaceSource, ModelSource
from muster_components.trainer.parallel.schedules import DEFAULT_SCHEDULE, Schedule, find_schedule, refusal
from muster_components.trainer.parallel.spec import MeshShape, ParallelSpec

Precision = Literal["bf16", "fp32"]
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The data and its sequences. `global_batch` is the number of sequences per step over all ranks.

    `tokenizer`: a file, for text (None: tokens are bytes); `token_dtype`: of `.bin` files (None: uint16).
    """

    path: str
    tokenizer: str | None = None
    token_dtype: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW with linear warm-up over `warmup` steps, then cosine decay to a tenth of `lr`."""

    lr: float | None = None
    warmup: int | None = None
    weight_decay: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Parallelism and compilation.

    `schedule`: of pipelines (None: 1F1B). `reshard`: free gathered weights after forward (None: by size).
    `symmetric_memory`: instead of NCCL within a host. `cuda_graph`: of whole steps, where that helps.
    """

    spec: ParallelSpec = ParallelSpec()
    schedule: str | None = None
    compile: bool | None = None
    compiled_autograd: bool = False
    cuda_graph: bool = True
    symmetric_memory: bool = False
    precision: Precision | None = None
    recompute: Recompute = "none"
    reshard: bool | None = None
    async_tp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Checkpoint after every `every` steps (0: only at the end), keep the newest `keep`."""

    every: int | None = None
    keep: int = 2
    resume: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """Trace steps `start` <= k < `end` on `ranks` (empty: all). `start == end`: no trace."""

    start: int = 0
    end: int = 0
    ranks: tuple[int, ...] = ()
    shapes: bool = True
    stack: bool = False

    def covers(self, rank: int) -> bool:
        """Whether this rank records a trace."""
        return self.end > self.start and (not self.ranks or rank in self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run."""

    model: ModelSource
    data: DataConfig
    steps: int
    seed: int = 0
    output: str | None = None
    save_pretrained: str | None = None
    """The folder where an `hf:` model is saved after the last step."""
    log_every: int | None = None
    deterministic: bool = False
    optim: OptimConfig = OptimConfig()
    parallel: ParallelConfig = ParallelConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    trace: TraceConfig = TraceConfig()


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
    compile: bool
    cuda_graph: bool
    precision: Precision
    checkpoint_every: int
    log_every: int

    @property
    def padding(self) -> int:
        """Positions of a step beyond the global batch."""
        return self.mesh.data_ranks * self.micro_batch * self.gradient_accumulation_steps - self.global_batch

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step over all ranks, without padding."""
        return self.global_batch * self.seq_len


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCapabilities:
    """The properties of the host that `resolve_plan` needs."""

    device: Literal["cpu", "cuda"]
    world_size: int
    has_compiler: bool
    has_bf16: bool


def validate_config(config: TrainConfig) -> TrainConfig:
    """The config itself if all values are valid. Raises InputError with the first that is not."""
    data, optim = config.data, config.optim
    _require_at_least("--steps", config.steps, 1)
    _require_at_least("--seq_len", data.seq_len, 8)
    _require_at_least("--global_batch", data.global_batch, 1)
    _require_at_least("--micro_batch", data.micro_batch, 1)
    _require_at_least("--warmup", optim.warmup, 0)
    _require_at_least("--checkpoint_every", config.checkpoint.every, 0)
    _require_at_least("--keep", config.checkpoint.keep, 1)
    _require_at_least("--log_every", config.log_every, 1)
    _require_at_least("--seed", config.seed, 0)
    for flag, value, positive in (
        ("--lr", optim.lr, True),
        ("--clip", optim.clip, True),
        ("--weight_decay", optim.weight_decay, False),
    ):
        if value is not None and not (math.isfinite(value) and (value > 0 or (value == 0 and not positive))):
            raise InputError(f"{flag} must be finite and {'above 0' if positive else 'at least 0'}; got {value}")
    if config.save_pretrained is not None and not isinstance(config.model, HuggingFaceSource):
        raise InputError(f"--save_pretrained is for hf: models; got --model {config.model.name}")
    if optim.warmup is not None and optim.warmup >= config.steps:
        raise InputError(f"--warmup must be less than --steps {config.steps}; got {optim.warmup}")
    spec = config.parallel.spec
    if isinstance(config.model, ModelConfig):
        config.model.require_divisible(spec.tp)
    elif spec.tp > 1:
        raise InputError(f"--parallel tp=N is for recipes; got --parallel {spec} with --model {config.model.name}")
    if config.parallel.async_tp and (spec.tp == 1 or config.parallel.compile is False):
        raise InputError("--async_tp requires --parallel tp=N and compilation")
    if config.parallel.schedule is not None:
        find_schedule(config.parallel.schedule)
        if spec.pp == 1:
            raise InputError(
                f"--schedule requires pipeline parallelism, such as --parallel pp=2; got --parallel {spec}"
            )
    if config.parallel.compiled_autograd and (spec.data != "ddp" or spec.tp * spec.pp > 1):
        raise InputError(f"--compiled_autograd requires --parallel ddp; got --parallel {spec}")
    if config.parallel.compiled_autograd and config.parallel.compile is False:
        raise InputError("--compiled_autograd requires compilation; remove --no_compile")
    return config


def resolve_plan(config: TrainConfig, host: HostCapabilities) -> TrainPlan:
    """Resolve all defaults. Raises InputError for flags that the host does not support."""
    on_gpu = host.device == "cuda"
    seq_len = config.data.seq_len or (1024 if on_gpu else 128)
    global_batch = config.data.global_batch or (64 if on_gpu else 16)
    mesh = config.parallel.spec.shape(host.world_size)
    if mesh.pp > 1 and mesh.tp > 1:
        raise InputError(f"--parallel with both pp and tp is not supported; got {mesh}")
    if seq_len % mesh.tp:
        raise InputError(f"--seq_len must be a multiple of {mesh.tp} for --parallel {mesh}; got {seq_len}")
    if global_batch < mesh.data_ranks:
        ranks = "ranks" if mesh.data_ranks == mesh.world_size else "data-parallel ranks"
        raise InputError(
            f"--global_batch must be at least the number of {ranks}, {mesh.data_ranks}; got {global_batch}"
        )
    share = math.ceil(global_batch / mesh.data_ranks)
    # In a pipeline, so many micro-batches that ranks wait less than a fifth of the time with the default schedule.
    micro_batch = min(config.data.micro_batch or (share if mesh.pp == 1 else max(1, share // (4 * mesh.pp))), share)
    micro_steps = math.ceil(share / micro_batch)
    compile_ = config.parallel.compile
    if compile_ and not host.has_compiler:
        raise InputError(
            "--compile requires a C++ compiler; none of $CXX, c++, g++, clang++ was found; use --no_compile"
        )
    compiles = host.has_compiler if compile_ is None else compile_
    if compiles and mesh.tp > 1 and config.parallel.recompute == "full":
        raise InputError(
            "--activation_checkpointing full with --parallel tp=N cannot be compiled by torch; "
            "use --activation_checkpointing selective or --no_compile"
        )
    if config.parallel.async_tp and not (on_gpu and host.has_compiler):
        raise InputError("--async_tp requires GPUs and a C++ compiler")
    precision = config.parallel.precision
    if precision == "bf16" and not host.has_bf16:
        raise InputError("--precision bf16 is not supported by this device; use --precision fp32 or auto")
    schedule = find_schedule(config.parallel.schedule or DEFAULT_SCHEDULE)
    backend = "inductor" if compiles else None
    if mesh.pp > 1 and (reason := refusal(schedule, ranks=mesh.pp, micro_batches=micro_steps, compile_backend=backend)):
        raise InputError(reason)
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
        compile=compiles,
        cuda_graph=config.parallel.cuda_graph,
        precision=precision or ("bf16" if on_gpu and host.has_bf16 else "fp32"),
        checkpoint_every=min(500, max(1, config.steps // 4)) if every is None else every,
        log_every=config.log_every or max(1, min(10, config.steps // 10)),
    )


def parse_trace_config(steps: str, ranks: str, *, shapes: bool = True, stack: bool = False) -> TraceConfig:
    """Parse steps `20:25` (empty: no trace) and ranks `0,3` (empty: all). Raises InputError."""
    if not steps:
        return TraceConfig(shapes=shapes, stack=stack)
    start, colon, end = steps.partition(":")
    if not (colon and start.isdecimal() and end.isdecimal() and int(start) < int(end)):
        raise InputError(f"--trace_steps must be FIRST:END, such as 20:25 for steps 20 to 24; got {steps!r}")
    if int(start) < 1:
        raise InputError(f"--trace_steps must start at 1 or later, such as 1:6; got {steps!r}")
    parts = [part.strip() for part in ranks.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--trace_ranks must be a list of ranks such as 0,3, or empty for all; got {ranks!r}")
    return TraceConfig(start=int(start), end=int(end), ranks=tuple(sorted(map(int, parts))), shapes=shapes, stack=stack)


def _require_at_least(flag: str, value: int | None, minimum: int) -> None:
    if value is not None and value < minimum:
        raise InputError(f"{flag} must be at least {minimum}; got {value}")
