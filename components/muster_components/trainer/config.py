"""The configuration of a training run: frozen values, validated early.

Values that depend on the device or the model (None here) are set once, by `resolve_plan` (plan.py). Values that affect
the sample order or a checkpoint never depend on the number of ranks, since a job may resume with another world size.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from muster_components.counts import is_count
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.models.selection import HuggingFaceSource, ModelSource
from muster_components.trainer.parallel.schedules import find_schedule
from muster_components.trainer.parallel.spec import ParallelSpec
from muster_components.trainer.planning.devices import GpuKind

Precision = Literal["bf16", "fp32"]
Recompute = str
"""`none`, `selective`, `full`, or `budget:FRACTION`: see `memory_budget`."""
Float8Recipe = Literal["tensorwise", "rowwise"]
Device = Literal["cpu", "cuda"]
Choice = Literal["parallel", "micro_batch", "recompute"]
"""What the planner can choose."""

DEFAULT_BACKEND: Final = "inductor"
"""Of torch.compile."""

MAX_SEED: Final = 2**32 - 1
"""As NumPy's."""


RECOMPUTE_MODES: Final[tuple[Recompute, ...]] = ("none", "selective", "full")
"""Those without a number."""
_BUDGET: Final = "budget:"


def memory_budget(recompute: Recompute) -> float | None:
    """The fraction of `budget:0.5`: of the activations that a compiled module would save, those that it may save. None
    for other values. Raises InputError for one that is not valid."""
    if recompute in RECOMPUTE_MODES:
        return None
    try:
        budget = float(recompute.removeprefix(_BUDGET)) if recompute.startswith(_BUDGET) else math.nan
    except ValueError:
        budget = math.nan
    if not 0 <= budget <= 1:
        raise InputError(
            f"--activation_checkpointing must be {', '.join(RECOMPUTE_MODES)}, auto, or budget:FRACTION with a "
            f"fraction from 0 to 1, such as budget:0.5; got {recompute!r}"
        )
    return budget


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The data and its sequences. `global_batch` is the number of sequences per step over all ranks.

    `tokenizer`: a file, for text (None: tokens are bytes); `token_dtype`: of `.bin` files (None: uint16); `workers`:
    processes that read ahead (None: 2 for data sets of dictionaries, none for tokens).
    """

    path: str
    tokenizer: str | None = None
    token_dtype: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW with linear warm-up over `warmup` steps, then cosine decay to a tenth of `lr`."""

    lr: float | None = None
    warmup: int | None = None
    weight_decay: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Parallelism, precision and activation checkpointing.

    `auto`: what the planner chooses instead of the values here (planning/planner.py). `schedule`: of pipelines (None:
    1F1B). `reshard`: free gathered weights after forward (None: by size). `symmetric_memory`: instead of NCCL within a
    host. `offload_activations`: to host memory, until backward.
    """

    spec: ParallelSpec = ParallelSpec()
    schedule: str | None = None
    symmetric_memory: bool = False
    precision: Precision | None = None
    recompute: Recompute = "none"
    offload_activations: bool = False
    reshard: bool | None = None
    async_tp: bool = False
    auto: frozenset[Choice] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Float8Config:
    """Linear layers in float8 (None: none). `emulate`: with float32 matrix products, on any device."""

    recipe: Float8Recipe | None = None
    emulate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningConfig:
    """Predictions of memory and step time.

    `device`: the kind of GPU to plan for (None: that of this rank). `layout`: nodes and GPUs of each, to print a plan
    for them instead of training. `check`: refuse a plan that cannot fit into memory.
    """

    device: GpuKind | None = None
    layout: tuple[int, int] | None = None
    as_json: bool = False
    check: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileConfig:
    """torch.compile and CUDA graphs.

    `enabled` None: if `backend` was chosen or there is a C++ compiler. `backend` None: inductor. `autograd`: compiled
    autograd. `cuda_graph`: of whole steps (None: of small recipes).
    """

    enabled: bool | None = None
    backend: str | None = None
    autograd: bool = False
    cuda_graph: bool | None = None
    cache: str | None = None
    """Folder or URL for compiled code, or "none"; None: in the run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Checkpoint after every `every` steps (0: only at the end; auto: by cost and failures), keep the newest `keep` (0:
    save none).

    `memory`: bytes of host memory for the copies of a pod's ranks (None: two copies if they fit, 0: one).
    `write_every`: steps between saves that are written to the volume (0: only the last; None: if the writer is free).
    """

    every: int | Literal["auto"] | None = None
    write_every: int | None = None
    keep: int = 2
    resume: bool = True
    memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """Trace steps `start` <= k < `end` on `ranks` (empty: all). `start == end`: no trace. With `every`, trace as many
    steps again `every` steps later, and so on."""

    start: int = 0
    end: int = 0
    ranks: tuple[int, ...] = ()
    shapes: bool = True
    stack: bool = False
    every: int = 0
    when_slower: float | None = None
    """Trace as many steps also after a step that takes so many times the median of the last 100."""

    def window(self, step: int) -> tuple[int, int] | None:
        """The earliest configured trace that has not ended before `step`: its first step, and the step after it."""
        if self.end <= self.start:
            return None
        later = self.every * max(0, -((self.end - 1 - step) // self.every)) if self.every else 0
        return (self.start + later, self.end + later) if self.end + later > step else None

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
    """The folder where a recipe or an `hf:` model is saved after the last step."""
    init_from: str | None = None
    """A run folder, a checkpoint or a folder of safetensors with the first weights."""
    log_every: int | None = None
    deterministic: bool = False
    optim: OptimConfig = OptimConfig()
    parallel: ParallelConfig = ParallelConfig()
    float8: Float8Config = Float8Config()
    compile: CompileConfig = CompileConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    trace: TraceConfig = TraceConfig()
    planning: PlanningConfig = PlanningConfig()


def validate_config(config: TrainConfig) -> TrainConfig:
    """The config itself if all values are valid. Raises InputError with the first that is not."""
    data, optim = config.data, config.optim
    _require_at_least("--steps", config.steps, 1)
    _require_at_least("--seq_len", data.seq_len, 8)
    _require_at_least("--global_batch", data.global_batch, 1)
    _require_at_least("--micro_batch", data.micro_batch, 1)
    _require_at_least("--data_workers", data.workers, 0)
    _require_at_least("--warmup", optim.warmup, 0)
    if config.checkpoint.every != "auto":
        _require_at_least("--checkpoint_every", config.checkpoint.every, 0)
    _require_at_least("--checkpoint_write_every", config.checkpoint.write_every, 0)
    _require_at_least("--keep", config.checkpoint.keep, 0)
    if config.checkpoint.keep == 0 and config.checkpoint.every:
        raise InputError(
            f"--keep must be at least 1 with --checkpoint_every {config.checkpoint.every}; got 0, which saves none"
        )
    _require_at_least("--log_every", config.log_every, 1)
    if not 0 <= config.seed <= MAX_SEED:
        raise InputError(f"--seed must be from 0 to {MAX_SEED}; got {config.seed}")
    for flag, value, positive in (
        ("--lr", optim.lr, True),
        ("--clip", optim.clip, True),
        ("--weight_decay", optim.weight_decay, False),
    ):
        if value is not None and not (math.isfinite(value) and (value > 0 or (value == 0 and not positive))):
            raise InputError(f"{flag} must be finite and {'above 0' if positive else 'at least 0'}; got {value}")
    if config.save_pretrained is not None and not isinstance(config.model, HuggingFaceSource | ModelConfig):
        raise InputError(f"--save_pretrained is for recipes and hf: models; got --model {config.model.name}")
    if config.init_from == "":
        raise InputError("--init_from must be a run folder, a checkpoint or a folder of safetensors; got ''")
    if optim.warmup is not None and optim.warmup >= config.steps:
        raise InputError(f"--warmup must be less than --steps {config.steps}; got {optim.warmup}")
    spec = config.parallel.spec
    if memory_budget(config.parallel.recompute) is not None and config.compile.enabled is False:
        raise InputError(f"--activation_checkpointing {config.parallel.recompute} requires compilation; use full")
    validate_mesh(config)
    if config.parallel.schedule is not None:
        find_schedule(config.parallel.schedule)
        if spec.pp == 1 and "parallel" not in config.parallel.auto:
            raise InputError(
                f"--pipeline_schedule requires pipeline parallelism, such as --parallel pp=2; got --parallel {spec}"
            )
    if config.planning.as_json and config.planning.layout is None:
        raise InputError("--json prints the plan, and requires --plan NODESxGPUS")
    _validate_float8(config)
    _validate_offload(config)
    if config.compile.backend is not None and config.compile.enabled is False:
        raise InputError(f"--backend {config.compile.backend} requires compilation; remove --no_compile")
    if config.compile.autograd and config.compile.cuda_graph:
        raise InputError("--compiled_autograd uses the default stream, which is not captured; remove --cuda_graph")
    cache = config.compile.cache or ""
    if "::" in cache and "://" in cache:
        raise InputError(f"--compile_cache must be a folder, a URL such as s3://bucket/compile, or none; got {cache!r}")
    if cache not in ("", "none") and config.compile.enabled is False:
        raise InputError("--compile_cache requires compilation; remove --no_compile")
    if config.compile.autograd and config.compile.enabled is False:
        raise InputError("--compiled_autograd requires compilation; remove --no_compile")
    return config


def validate_mesh(config: TrainConfig) -> None:
    """Raises InputError for a model or for flags that do not fit `--parallel`, which the user or the planner chose."""
    parallel, spec = config.parallel, config.parallel.spec
    if isinstance(config.model, ModelConfig):
        config.model.require_divisible(spec.tp)
    elif spec.tp > 1:
        raise InputError(f"--parallel tp=N is for recipes; got --parallel {spec} with --model {config.model.name}")
    is_auto = "parallel" in parallel.auto
    got = f"got --parallel {'auto' if is_auto else spec}"
    if parallel.async_tp and spec.tp == 1:
        raise InputError(f"--async_tp requires --parallel tp=N; {got}{_choose_rest('tp=N') if is_auto else ''}")
    if parallel.async_tp and config.compile.enabled is False:
        raise InputError("--async_tp requires compilation; remove --no_compile")
    if parallel.reshard is not None and spec.data == "ddp":
        raise InputError(f"--reshard is for fsdp and hsdp, which gather weights; {got}")
    if parallel.symmetric_memory and (spec.data == "ddp" or parallel.precision == "fp32"):
        raise InputError(
            f"--symmetric_memory is for --parallel fsdp or hsdp in bf16; {got}, "
            f"--precision {parallel.precision or 'auto'}"
        )
    if parallel.offload_activations and spec.tp > 1:
        raise InputError(f"--offload_activations is not for weights that are split by tp; {got}")
    if config.compile.autograd and (spec.data != "ddp" or spec.tp * spec.pp > 1):
        raise InputError(f"--compiled_autograd requires --parallel ddp; {got}{_choose_rest('ddp') if is_auto else ''}")


def _choose_rest(mesh: str) -> str:
    """What to use instead of `--parallel auto`, which `validate_mesh` refuses with a flag of one kind of mesh."""
    return f"; to choose the rest, use --parallel {mesh} --micro_batch auto --activation_checkpointing auto"


def _validate_float8(config: TrainConfig) -> None:
    float8, parallel = config.float8, config.parallel
    if float8.recipe is None:
        if float8.emulate:
            raise InputError("--float8_emulate requires --float8 tensorwise or rowwise; got --float8 none")
        return
    if parallel.precision == "fp32" and not float8.emulate:
        raise InputError(f"--float8 {float8.recipe} requires --precision bf16 or auto; got fp32")
    if parallel.symmetric_memory and float8.recipe == "tensorwise":
        raise InputError("--symmetric_memory copies bf16 weights; use --float8 rowwise, or remove it; got tensorwise")
    if parallel.async_tp:
        raise InputError(f"--async_tp is for matrix products in bf16; remove it; got --float8 {float8.recipe}")
    if config.compile.autograd:
        raise InputError(f"--compiled_autograd is for layers in bf16; remove it; got --float8 {float8.recipe}")


def _validate_offload(config: TrainConfig) -> None:
    parallel, compiled = config.parallel, config.compile
    if not parallel.offload_activations:
        return
    flag = "--offload_activations"
    if compiled.cuda_graph:
        raise InputError(f"{flag} copies on a stream of its own, which is not captured; remove --cuda_graph")
    if compiled.backend == "cudagraphs":
        raise InputError(
            f"{flag} needs memory that is not part of a CUDA graph; use --backend inductor; got cudagraphs"
        )
    if compiled.autograd:
        raise InputError(f"{flag} does not move what compiled autograd saves; remove --compiled_autograd")
    if config.float8.recipe == "tensorwise":
        raise InputError(f"{flag} is not for weights that are gathered in float8; use --float8 rowwise; got tensorwise")


def parse_checkpoint_memory(text: str) -> int | None:
    """Bytes of `64GiB`; None for `auto`, 0 for `none`. Raises InputError."""
    if text in ("auto", "none"):
        return None if text == "auto" else 0
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([MGT])iB", text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"--checkpoint_memory must be auto, none or a size such as 64GiB; got {text!r}")
    return int(float(match[1]) * {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[match[2]])


def parse_trace_config(
    steps: str, ranks: str, every: str = "", when_slower: str = "", *, shapes: bool = True, stack: bool = False
) -> TraceConfig:
    """Parse steps `20:25` (empty: no trace), ranks `0,3` (empty: all), the interval `500` (empty: once) and the factor
    `1.5` (empty: none). Raises InputError."""
    if not steps:
        return TraceConfig(shapes=shapes, stack=stack)
    start, colon, end = steps.partition(":")
    if not (colon and is_count(start) and is_count(end) and int(start) < int(end)):
        raise InputError(f"--trace_steps must be FIRST:END, such as 20:25 for steps 20 to 24; got {steps!r}")
    if int(start) < 1:
        raise InputError(f"--trace_steps must start at 1 or later, such as 1:6; got {steps!r}")
    parts = [part.strip() for part in ranks.split(",") if part.strip()]
    if not all(is_count(part) for part in parts):
        raise InputError(f"--trace_ranks must be a list of ranks such as 0,3, or empty for all; got {ranks!r}")
    count = int(end) - int(start)
    if every and not (is_count(every) and int(every) > count):
        raise InputError(f"--trace_every must be a number of steps above {count}, the steps of a trace; got {every!r}")
    return TraceConfig(
        start=int(start),
        end=int(end),
        ranks=tuple(sorted(map(int, parts))),
        shapes=shapes,
        stack=stack,
        every=int(every or 0),
        when_slower=_slower_factor(when_slower),
    )


def _slower_factor(text: str) -> float | None:
    if not text:
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1.1 <= factor <= 100:
        raise InputError(f"--trace_when_slower must be from 1.1 to 100, such as 1.5; got {text!r}")
    return factor


def _require_at_least(flag: str, value: int | None, minimum: int) -> None:
    if value is not None and value < minimum:
        raise InputError(f"{flag} must be at least {minimum}; got {value}")
