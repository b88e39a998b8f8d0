"""What the user asked for, as frozen values, each refused early with the flag, the value and what would be right.

What depends on the device or the model (None in the fields here) is filled in once, by `resolve`, so that everything
after it reads plain values. A value that the sample order or a checkpoint depends on is never chosen from the number of
ranks: a job may come back on another world size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from muster_components.trainer.errors import InputError
from muster_components.trainer.recipes import ModelConfig

Precision = Literal["bf16", "fp32"]
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the text is and how it is cut. `global_batch` counts sequences a step over all ranks."""

    path: str
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW with linear warm-up over `warmup` steps, then a cosine down to a tenth of `lr`."""

    lr: float | None = None
    warmup: int | None = None
    weight_decay: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How the model is spread and compiled. `reshard`: give gathered weights back after forward (None: by size)."""

    mode: Literal["fsdp", "ddp"] = "fsdp"
    compile: bool | None = None
    compiled_autograd: bool = False
    precision: Precision | None = None
    recompute: Recompute = "none"
    reshard: bool | None = None


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
        """Whether this rank records anything."""
        return self.end > self.start and (not self.ranks or rank in self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run."""

    model: ModelConfig
    data: DataConfig
    steps: int
    seed: int = 0
    output: str | None = None
    log_every: int | None = None
    optim: OptimConfig = OptimConfig()
    parallel: ParallelConfig = ParallelConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    trace: TraceConfig = TraceConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """A TrainConfig with every open choice made: what the loop runs.

    `micro_batch` sequences go through the model at once on each rank; `micro_steps` of them make a step. Where
    world_size x micro_batch x micro_steps exceeds `global_batch`, the slots beyond it are padding that counts nothing.
    """

    config: TrainConfig
    seq_len: int
    global_batch: int
    micro_batch: int
    gradient_accumulation_steps: int
    lr: float
    warmup: int
    compile: bool
    precision: Precision
    checkpoint_every: int
    log_every: int

    @property
    def tokens_per_step(self) -> int:
        """Tokens that count in one step, over all ranks."""
        return self.global_batch * self.seq_len


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCapabilities:
    """What `resolve` needs to know of where it runs."""

    device: Literal["cpu", "cuda"]
    world_size: int
    has_compiler: bool
    has_bf16: bool


def validate_config(config: TrainConfig) -> TrainConfig:
    """The config itself if every value is possible. Raises InputError with the first that is not."""
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
            raise InputError(
                f"{flag} {value} is out of range: give a number {'above 0' if positive else 'of at least 0'}"
            )
    if optim.warmup is not None and optim.warmup >= config.steps:
        raise InputError(f"--warmup {optim.warmup} leaves no step to train: it must be below --steps {config.steps}")
    if config.parallel.compiled_autograd and config.parallel.mode != "ddp":
        raise InputError("--compiled_autograd works with --parallel ddp only; with fsdp leave it out")
    if config.parallel.compiled_autograd and config.parallel.compile is False:
        raise InputError("--compiled_autograd needs compilation; leave out --no_compile")
    return config


def resolve_plan(config: TrainConfig, host: HostCapabilities) -> TrainPlan:
    """Make every open choice; CPU defaults are small enough to watch. Raises InputError if flags and machine clash."""
    on_gpu = host.device == "cuda"
    seq_len = config.data.seq_len or (1024 if on_gpu else 128)
    global_batch = config.data.global_batch or (64 if on_gpu else 16)
    if global_batch < host.world_size:
        raise InputError(
            f"--global_batch {global_batch} is less than the {host.world_size} ranks: "
            f"give at least {host.world_size}, or fewer ranks"
        )
    share = math.ceil(global_batch / host.world_size)
    micro_batch = min(config.data.micro_batch or share, share)
    compile_ = config.parallel.compile
    if compile_ and not host.has_compiler:
        raise InputError(
            "--compile needs a C++ compiler and none of $CXX, c++, g++, clang++ is there; use --no_compile"
        )
    precision = config.parallel.precision
    if precision == "bf16" and not host.has_bf16:
        raise InputError("--precision bf16 is not supported by this device; use --precision fp32 or leave it out")
    every = config.checkpoint.every
    return TrainPlan(
        config=config,
        seq_len=seq_len,
        global_batch=global_batch,
        micro_batch=micro_batch,
        gradient_accumulation_steps=math.ceil(share / micro_batch),
        lr=config.optim.lr or config.model.lr,
        warmup=min(100, config.steps // 6) if config.optim.warmup is None else config.optim.warmup,
        compile=host.has_compiler if compile_ is None else compile_,
        precision=precision or ("bf16" if on_gpu and host.has_bf16 else "fp32"),
        checkpoint_every=min(500, max(1, config.steps // 4)) if every is None else every,
        log_every=config.log_every or max(1, min(10, config.steps // 10)),
    )


def parse_trace_config(steps: str, ranks: str, *, shapes: bool = True, stack: bool = False) -> TraceConfig:
    """Read `20:25` and `0,3`. Both empty: no trace, all ranks. Raises InputError."""
    if not steps:
        return TraceConfig(shapes=shapes, stack=stack)
    start, colon, end = steps.partition(":")
    if not (colon and start.isdecimal() and end.isdecimal() and int(start) < int(end)):
        raise InputError(f"--trace_steps {steps!r} is no range: give first:end, as 20:25 for the steps 20 to 24")
    if int(start) < 1:
        raise InputError(f"--trace_steps {steps!r} begins before the first step: steps count from 1, as in 1:6")
    parts = [part.strip() for part in ranks.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--trace_ranks {ranks!r} is no list of ranks: give numbers as 0,3, or nothing for all")
    return TraceConfig(start=int(start), end=int(end), ranks=tuple(sorted(map(int, parts))), shapes=shapes, stack=stack)


def _require_at_least(flag: str, value: int | None, minimum: int) -> None:
    if value is not None and value < minimum:
        raise InputError(f"{flag} {value} is too small: give at least {minimum}")
