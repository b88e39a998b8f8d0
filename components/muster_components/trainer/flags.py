"""The command line of the trainer: flags to a checked TrainConfig.

Flags may be written with underscores or dashes. An invalid flag ends with exit code 2 and one line with flag, value and
valid values, printed by rank 0 only, since all ranks have the same flags.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import NoReturn

from muster_components.trainer.config import (
    CheckpointConfig,
    DataConfig,
    OptimConfig,
    ParallelConfig,
    TrainConfig,
    parse_trace_config,
    validate_config,
)
from muster_components.trainer.data.token_files import TOKEN_DTYPES
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.recipes import RECIPES
from muster_components.trainer.models.selection import model_source
from muster_components.trainer.parallel.schedules import DEFAULT_SCHEDULE, SCHEDULES
from muster_components.trainer.parallel.spec import parse_parallel

TRACE_STEPS_VARIABLE = "MUSTER_TRACE_STEPS"
TRACE_RANKS_VARIABLE = "MUSTER_TRACE_RANKS"


class FlagParser(argparse.ArgumentParser):
    """argparse that raises InputError with the nearest known flag instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exit."""
        raise InputError(f"{message}; --help lists the flags")

    def parse_strict(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse, and reject unknown flags."""
        namespace, unknown = self.parse_known_args([with_underscores(argument) for argument in arguments])
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
            hint = f"; did you mean {near[0]}" if near else ""
            self.error(f"{unknown[0]!r} is not a flag of this command{hint}")
        return namespace


def with_underscores(argument: str) -> str:
    """`--seq-len=8` as `--seq_len=8`; values are unchanged."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument[2:].partition("=")
    return "--" + flag.replace("-", "_") + equals + value


def parse_train_config(arguments: Sequence[str], environ: Mapping[str, str]) -> TrainConfig:
    """The config from flags; MUSTER_TRACE_STEPS and MUSTER_TRACE_RANKS are defaults. Raises InputError."""
    flags = _flag_parser().parse_strict(arguments)
    return validate_config(
        TrainConfig(
            model=model_source(flags.model, model_args=flags.model_args, vocab_size=flags.vocab_size),
            data=DataConfig(
                path=flags.data,
                tokenizer=flags.tokenizer,
                token_dtype=flags.token_dtype,
                seq_len=flags.seq_len,
                global_batch=flags.global_batch,
                micro_batch=flags.micro_batch,
            ),
            steps=flags.steps,
            seed=flags.seed,
            output=flags.output,
            save_pretrained=flags.save_pretrained,
            log_every=flags.log_every,
            deterministic=flags.deterministic,
            optim=OptimConfig(lr=flags.lr, warmup=flags.warmup, weight_decay=flags.weight_decay, clip=flags.clip),
            parallel=ParallelConfig(
                spec=parse_parallel(flags.parallel),
                schedule=flags.schedule,
                compile=flags.compile,
                compiled_autograd=flags.compiled_autograd,
                cuda_graph=flags.cuda_graph,
                symmetric_memory=flags.symmetric_memory,
                precision=None if flags.precision == "auto" else flags.precision,
                recompute=flags.activation_checkpointing,
                async_tp=flags.async_tp,
                reshard={"auto": None, "always": True, "never": False}[flags.reshard],
            ),
            checkpoint=CheckpointConfig(every=flags.checkpoint_every, keep=flags.keep, resume=flags.resume == "auto"),
            trace=parse_trace_config(
                environ.get(TRACE_STEPS_VARIABLE, "") if flags.trace_steps is None else flags.trace_steps,
                environ.get(TRACE_RANKS_VARIABLE, "") if flags.trace_ranks is None else flags.trace_ranks,
                shapes=flags.trace_shapes,
                stack=flags.trace_stack,
            ),
        )
    )


def add_trace_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that the trainer and `instrument` share."""
    group = parser.add_argument_group("traces")
    group.add_argument("--trace_steps", metavar="A:B", help=f"trace steps A to B-1 (default: ${TRACE_STEPS_VARIABLE})")
    group.add_argument(
        "--trace_ranks", metavar="R,R", help=f"only these ranks (default: ${TRACE_RANKS_VARIABLE}, or all)"
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
        required=True,
        metavar="PATH",
        help="text (folder, file or glob), .bin or .npy files of tokens, a saved data set, or my.module:dataset",
    )
    add("--steps", type=_integer, default=100, help="optimizer steps (default: 100)")
    add("--output", metavar="FOLDER", help="run folder if MUSTER_RUN_DIR is not set (default: muster-run)")
    add("--save_pretrained", metavar="FOLDER", help="save an hf: model here after the last step")
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
        help="fields of the configuration of an hf: model, or arguments of the factory",
    )
    group.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json or its folder (default: tokens are bytes)")
    group.add_argument("--token_dtype", choices=TOKEN_DTYPES, help="of .bin files (default: uint16)")
    group.add_argument("--vocab_size", type=_integer, help="at least 256 (default: the recipe's)")
    group.add_argument("--seq_len", type=_integer, help="tokens per sequence (default: 128 on CPU, 1024 on GPU)")
    group.add_argument(
        "--global_batch", type=_integer, help="sequences per step over all ranks (default: 16 on CPU, 64 on GPU)"
    )
    group.add_argument(
        "--micro_batch", type=_integer, help="sequences per micro-step (default: all of the rank; with pp=N, a 4N-th)"
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
        "layer), pp=N (pipeline of N ranks); =N is a number of ranks",
    )
    group.add_argument("--schedule", help=f"of a pipeline: {', '.join(SCHEDULES)} (default: {DEFAULT_SCHEDULE})")
    _add_switch(group, "compile", default=None, help_text="torch.compile (default: if there is a C++ compiler)")
    _add_switch(group, "symmetric_memory", default=False, help_text="fsdp, bf16: copy between a host's GPUs, not NCCL")
    _add_switch(
        group,
        "cuda_graph",
        default=True,
        help_text="recipes on one GPU, below 500M parameters: a CUDA graph of each step",
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
        "--activation_checkpointing",
        choices=("none", "selective", "full"),
        default="none",
        help="recompute activations in the backward pass (default: none)",
    )
    group.add_argument(
        "--reshard",
        choices=("auto", "always", "never"),
        default="auto",
        help="fsdp: free gathered weights after forward (auto: if they are large)",
    )
    group = parser.add_argument_group("checkpoints")
    group.add_argument(
        "--checkpoint_every",
        type=_integer,
        metavar="STEPS",
        help="0: only at the end (default: a quarter, at most 500)",
    )
    group.add_argument("--keep", type=_integer, default=2, help="number of newest checkpoints to keep (default: 2)")
    group.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="auto",
        help="auto (the default): resume from the newest readable checkpoint",
    )
    add_trace_flags(parser)
    return parser


def _add_switch(group: argparse._ActionsContainer, name: str, *, default: bool | None, help_text: str) -> None:
    """A pair of flags, --name and --no_name."""
    group.add_argument(f"--{name}", dest=name, action="store_true", default=default, help=help_text)
    group.add_argument(f"--no_{name}", dest=name, action="store_false", default=default, help="the opposite")


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
