"""The command line of the trainer: flags to a checked TrainConfig.

Flags may be written with underscores or dashes. An invalid flag ends with exit code 2 and one line with flag, value and
valid values, printed by rank 0 only, since all ranks have the same flags.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Final

from muster_components.trainer.config import (
    CheckpointConfig,
    Choice,
    CompileConfig,
    DataConfig,
    Float8Config,
    OptimConfig,
    ParallelConfig,
    PlanningConfig,
    TraceConfig,
    TrainConfig,
    parse_checkpoint_memory,
    parse_trace_config,
    validate_config,
)
from muster_components.trainer.data.token_files import TOKEN_DTYPES
from muster_components.trainer.errors import InputError
from muster_components.trainer.flag_parser import FlagParser
from muster_components.trainer.models.recipes import RECIPES
from muster_components.trainer.models.selection import model_source
from muster_components.trainer.parallel.schedules import DEFAULT_SCHEDULE, SCHEDULES
from muster_components.trainer.parallel.spec import ParallelSpec, parse_parallel
from muster_components.trainer.planning.devices import GPU_KINDS, parse_device

TRACE_STEPS_VARIABLE = "MUSTER_TRACE_STEPS"
TRACE_RANKS_VARIABLE = "MUSTER_TRACE_RANKS"
_AUTO: Final = "auto"
TRACE_EVERY_VARIABLE = "MUSTER_TRACE_EVERY"
TRACE_WHEN_SLOWER_VARIABLE = "MUSTER_TRACE_WHEN_SLOWER"


def parse_train_config(arguments: Sequence[str], environ: Mapping[str, str] | None) -> TrainConfig:
    """The config from flags; for traces, variables are defaults (`trace_config`). `environ` None: that of the ranks is
    not known yet. Raises InputError."""
    flags = _flag_parser().parse_strict(arguments)
    if flags.data is None and flags.plan is None:
        raise InputError("the following arguments are required: --data; --help lists the flags")
    if flags.data == "":
        raise InputError("--data must be a path, a glob or my.module:dataset; got ''")
    trace = trace_config(flags, environ)
    if flags.trace_steps and trace.start > flags.steps >= 1:
        raise InputError(
            f"--trace_steps must start at a step of the run, which has --steps {flags.steps}; got {flags.trace_steps!r}"
        )
    return validate_config(
        TrainConfig(
            model=model_source(flags.model, model_args=flags.model_args, vocab_size=flags.vocab_size),
            data=DataConfig(
                path=flags.data or "",
                tokenizer=flags.tokenizer,
                token_dtype=flags.token_dtype,
                seq_len=flags.seq_len,
                global_batch=flags.global_batch,
                micro_batch=None if flags.micro_batch == _AUTO else flags.micro_batch,
                workers=flags.data_workers,
            ),
            steps=flags.steps,
            seed=flags.seed,
            output=flags.output,
            save_pretrained=flags.save_pretrained,
            init_from=flags.init_from,
            log_every=flags.log_every,
            deterministic=flags.deterministic,
            optim=OptimConfig(lr=flags.lr, warmup=flags.warmup, weight_decay=flags.weight_decay, clip=flags.clip),
            parallel=ParallelConfig(
                spec=ParallelSpec() if flags.parallel == _AUTO else parse_parallel(flags.parallel),
                schedule=flags.pipeline_schedule,
                symmetric_memory=flags.symmetric_memory,
                precision=None if flags.precision == "auto" else flags.precision,
                recompute="none" if flags.activation_checkpointing in (None, _AUTO) else flags.activation_checkpointing,
                auto=_automatic_choices(flags),
                offload_activations=flags.offload_activations,
                async_tp=flags.async_tp,
                reshard={"auto": None, "always": True, "never": False}[flags.reshard],
            ),
            float8=Float8Config(recipe=None if flags.float8 == "none" else flags.float8, emulate=flags.float8_emulate),
            compile=CompileConfig(
                enabled=flags.compile,
                backend=flags.backend,
                autograd=flags.compiled_autograd,
                cuda_graph=flags.cuda_graph,
                cache=flags.compile_cache,
            ),
            checkpoint=CheckpointConfig(
                every=flags.checkpoint_every,
                write_every=flags.checkpoint_write_every,
                keep=flags.keep,
                resume=flags.resume == "auto",
                memory=parse_checkpoint_memory(flags.checkpoint_memory),
            ),
            trace=trace,
            planning=PlanningConfig(
                device=None if flags.device is None else parse_device(flags.device),
                layout=None if flags.plan is None else _parse_layout(flags.plan),
                as_json=flags.json,
                check=flags.memory_check,
            ),
        )
    )


def _automatic_choices(flags: argparse.Namespace) -> frozenset[Choice]:
    """What `auto` stands for: with --parallel auto, also micro-batch and recomputation that are not given."""
    everything = flags.parallel == _AUTO
    given = {"micro_batch": flags.micro_batch, "recompute": flags.activation_checkpointing}
    chosen: list[Choice] = ["parallel"] if everything else []
    names: tuple[Choice, ...] = ("micro_batch", "recompute")
    chosen += [name for name in names if given[name] == _AUTO or (everything and given[name] is None)]
    return frozenset(chosen)


def _parse_layout(text: str) -> tuple[int, int]:
    """`2x8` as 2 nodes of 8 GPUs."""
    match = re.fullmatch(r"(\d{1,18})x(\d{1,18})", text)
    if match is None or min(int(match[1]), int(match[2])) < 1:
        raise InputError(f"--plan must be NODESxGPUS, such as 1x8; got {text!r}")
    return int(match[1]), int(match[2])


def trace_config(flags: argparse.Namespace, environ: Mapping[str, str] | None) -> TraceConfig:
    """The steps to trace, from flags or else MUSTER_TRACE_STEPS, _RANKS, _EVERY and _WHEN_SLOWER. The last two apply
    only to the steps of the variable. `environ` None: not known yet. Raises InputError."""
    by_variable = flags.trace_steps is None
    variables = environ or {}
    if by_variable and environ is not None and not environ.get(TRACE_STEPS_VARIABLE):
        for name in ("trace_ranks", "trace_every", "trace_when_slower"):
            if value := getattr(flags, name):
                raise InputError(f"--{name} {value} requires --trace_steps")
    return parse_trace_config(
        variables.get(TRACE_STEPS_VARIABLE, "") if by_variable else flags.trace_steps,
        variables.get(TRACE_RANKS_VARIABLE, "") if flags.trace_ranks is None else flags.trace_ranks,
        (variables.get(TRACE_EVERY_VARIABLE, "") if by_variable else "")
        if flags.trace_every is None
        else flags.trace_every,
        (variables.get(TRACE_WHEN_SLOWER_VARIABLE, "") if by_variable else "")
        if flags.trace_when_slower is None
        else flags.trace_when_slower,
        shapes=flags.trace_shapes,
        stack=flags.trace_stack,
    )


def add_trace_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that the trainer and `instrument` share."""
    group = parser.add_argument_group("traces")
    group.add_argument("--trace_steps", metavar="A:B", help=f"trace steps A to B-1 (default: ${TRACE_STEPS_VARIABLE})")
    group.add_argument(
        "--trace_ranks", metavar="R,R", help=f"only these ranks (default: ${TRACE_RANKS_VARIABLE}, or all)"
    )
    group.add_argument(
        "--trace_every",
        metavar="N",
        help=f"trace as many steps again every N steps (default: ${TRACE_EVERY_VARIABLE}, or once)",
    )
    group.add_argument(
        "--trace_when_slower",
        metavar="X",
        help="trace as many steps also after a step that takes X times the median of the last 100 "
        f"(default: ${TRACE_WHEN_SLOWER_VARIABLE}, or not)",
    )
    _add_switch(group, "trace_shapes", default=True, help_text="record the shapes of operators' inputs (default)")
    _add_switch(group, "trace_stack", default=False, help_text="record Python stacks (slow, large)")


def _flag_parser() -> FlagParser:
    parser = FlagParser(
        prog="python -m muster_components.trainer",
        description="Train a recipe, a model of Transformers, or a model of your own.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--model",
        required=True,
        help=f"a recipe ({', '.join(RECIPES)}), hf:TYPE or hf:FOLDER (Transformers), or my.module:factory",
    )
    add(
        "--data",
        metavar="PATH",
        help="text (folder, file or glob), .bin or .npy files of tokens, a saved data set, or my.module:dataset",
    )
    add("--steps", type=_integer, default=100, help="optimizer steps (default: 100)")
    add("--output", metavar="FOLDER", help="run folder if MUSTER_RUN_DIR is not set (default: muster-run)")
    add("--save_pretrained", metavar="FOLDER", help="save a recipe or an hf: model here after the last step")
    add(
        "--init_from",
        metavar="FOLDER",
        help="first weights: a run folder or checkpoint of the same model, or its safetensors (default: random ones)",
    )
    add("--seed", type=_integer, default=0, help="seed of weights and sample order (default: 0)")
    add(
        "--log_every",
        type=_integer,
        metavar="STEPS",
        help="steps between progress lines (default: a tenth of the steps, at most 10)",
    )
    _add_switch(parser, "deterministic", default=False, help_text="repeat a run bit by bit (slower on GPUs)")
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "--model_args",
        default="",
        metavar="KEY=VALUE,...",
        help="fields of a recipe or of the configuration of an hf: model, or arguments of the factory",
    )
    group.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json or its folder (default: tokens are bytes)")
    group.add_argument("--token_dtype", choices=TOKEN_DTYPES, help="of .bin files (default: uint16)")
    group.add_argument("--vocab_size", type=_integer, help="at least 256 (default: the recipe's)")
    group.add_argument("--seq_len", type=_integer, help="tokens per sequence (default: 128 on CPU, 1024 on GPU)")
    group.add_argument(
        "--global_batch", type=_integer, help="sequences per step over all ranks (default: 16 on CPU, 64 on GPU)"
    )
    group.add_argument(
        "--micro_batch",
        type=_integer_or_auto,
        metavar="N|auto",
        help="sequences per micro-step (default: all of the rank; with pp=N, a 4N-th)",
    )
    group.add_argument(
        "--data_workers",
        type=_integer,
        metavar="N",
        help="processes of each rank that read ahead (default: 2 for data sets of dictionaries; tokens need none)",
    )
    group = parser.add_argument_group("optimizer")
    group.add_argument("--lr", type=_float, help="peak learning rate (default: the recipe's)")
    group.add_argument("--warmup", type=_integer, metavar="STEPS", help="default: a sixth of the steps, at most 100")
    group.add_argument(
        "--weight_decay", type=_float, default=0.1, help="weight decay of matrices; vectors have none (default: 0.1)"
    )
    group.add_argument("--clip", type=_float, default=1.0, help="maximum gradient norm (default: 1.0)")
    group = parser.add_argument_group("parallelism")
    group.add_argument(
        "--parallel",
        default="fsdp",
        metavar="MESH",
        help="list of fsdp (shard, the default), ddp (replicate), hsdp=RxS (R replicas of S shards), tp=N (split each "
        "layer), pp=N (pipeline of N ranks); =N is a number of ranks; or auto: the fastest that fits into memory",
    )
    group.add_argument(
        "--pipeline_schedule", help=f"of a pipeline: {', '.join(SCHEDULES)} (default: {DEFAULT_SCHEDULE})"
    )
    _add_switch(group, "compile", default=None, help_text="torch.compile (default: if there is a C++ compiler)")
    group.add_argument(
        "--backend",
        metavar="NAME",
        help="of torch.compile: inductor (default), cudagraphs, eager, aot_eager, thunder, or any that is registered",
    )
    group.add_argument(
        "--compile_cache",
        metavar="FOLDER|URL",
        help="keep compiled code here for other jobs of the namespace, or none (default: in the run folder)",
    )
    _add_switch(group, "symmetric_memory", default=False, help_text="fsdp, bf16: copy between a host's GPUs, not NCCL")
    _add_switch(
        group,
        "cuda_graph",
        default=None,
        help_text="one GPU: a CUDA graph of each step (default: recipes below 500M parameters)",
    )
    _add_switch(group, "compiled_autograd", default=False, help_text="with ddp: also capture the backward pass")
    _add_switch(group, "async_tp", default=False, help_text="with tp on GPUs: overlap its communication and matmuls")
    group.add_argument(
        "--precision",
        choices=("auto", "bf16", "fp32"),
        default="auto",
        help="auto (the default): bf16 on GPUs, else fp32",
    )
    group.add_argument(
        "--float8",
        choices=("none", "tensorwise", "rowwise"),
        default="none",
        help="linear layers of blocks in float8, one scale per tensor or per row (needs torchao; default: none)",
    )
    _add_switch(group, "float8_emulate", default=False, help_text="float8 without such a GPU, for tests (slow)")
    group.add_argument(
        "--activation_checkpointing",
        metavar="none|selective|full|budget:F|auto",
        help="recompute activations in the backward pass; budget:0.5: compiled modules save half of what they would "
        "(default: none; with --parallel auto: auto)",
    )
    _add_switch(
        group,
        "offload_activations",
        default=False,
        help_text="keep activations in host memory between forward and backward",
    )
    group.add_argument(
        "--reshard",
        choices=("auto", "always", "never"),
        default="auto",
        help="fsdp: free gathered weights after forward (auto: if they are large and there is no pipeline)",
    )
    group = parser.add_argument_group("planning")
    group.add_argument(
        "--plan", metavar="NODESxGPUS", help="print predicted memory and speed on so many GPUs, and do not train"
    )
    _add_switch(group, "json", default=False, help_text="print the plan as JSON")
    group.add_argument(
        "--device",
        metavar="KIND[:MEMORY]",
        help=f"GPU to plan for: {', '.join(kind.flag for kind in GPU_KINDS)}; or l40s:44GiB (default: this rank's)",
    )
    _add_switch(group, "memory_check", default=True, help_text="refuse a plan that cannot fit into memory (default)")
    group = parser.add_argument_group("checkpoints")
    group.add_argument(
        "--checkpoint_every",
        type=_integer_or_auto,
        metavar="STEPS|auto",
        help="0: only at the end; auto: by the measured cost of a save and the failures so far (default: a quarter, "
        "at most 500)",
    )
    group.add_argument(
        "--checkpoint_write_every",
        type=_integer,
        metavar="STEPS",
        help="write one of these every STEPS to the volume, others to host memory only; 0: only the last (default: "
        "all for which the one before is written)",
    )
    group.add_argument(
        "--keep", type=_integer, default=2, help="number of newest checkpoints to keep (default: 2; 0: save none)"
    )
    group.add_argument(
        "--checkpoint_memory",
        default=_AUTO,
        metavar="auto|none|SIZE",
        help="host memory of a pod for two copies of its state, such as 64GiB; none: one copy, and each save waits "
        "until the one before is written (default: auto, up to half of the pod's free memory)",
    )
    group.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="auto",
        help="auto (the default): resume from the newest readable checkpoint; never: the first attempt does not",
    )
    add_trace_flags(parser)
    return parser


def _add_switch(group: argparse._ActionsContainer, name: str, *, default: bool | None, help_text: str) -> None:
    """A pair of flags, --name and --no_name."""
    group.add_argument(f"--{name}", dest=name, action="store_true", default=default, help=help_text)
    group.add_argument(f"--no_{name}", dest=name, action="store_false", default=default, help="the opposite")


def _integer_or_auto(text: str) -> int | str:
    return _AUTO if text == _AUTO else _integer(text)


def _integer(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer; got {text!r}") from None


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}") from None
