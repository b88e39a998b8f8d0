"""What a component was asked, as an AppDef: the pods, what each of them runs, and what Muster's schedulers read beside
that. What is wrong is refused here, before anything is submitted."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchx import specs
from torchx.specs.finder import ComponentValidationException

from muster_components.trainer.config import trace_config
from muster_components.trainer.errors import EXIT_BAD_INPUT, EXIT_DIVERGED, InputError
from muster_components.trainer.flags import parse

GRACE = "60s"
"""Time to save a checkpoint when the job has to leave."""
TRAINER_RULES: list[dict[str, object]] = [{"onExitCodes": [EXIT_BAD_INPUT, EXIT_DIVERGED], "action": "FailJob"}]
"""A retry ends the same way: bad input, or numbers that are no longer finite (the order of samples is fixed)."""
SCRIPT_RULES: list[dict[str, object]] = [{"onExitCodes": [EXIT_BAD_INPUT], "action": "FailJob"}]
"""What argparse, Python and our launcher end with when they are called wrongly: a retry would be called alike."""


class BadArgument(ComponentValidationException, ValueError):  # type: ignore[misc]  # TorchX is not typed
    """An argument of a component; TorchX prints this kind without a traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a component was asked of the trainer, as it was written."""

    parallel: str
    model: str
    data: str
    steps: int
    seq_len: int | None
    global_batch: int | None
    lr: float | None
    precision: str
    compile: bool
    checkpoint_every: int | None
    more: Sequence[str]
    """Flags of the trainer that stood behind the `--`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Which script a component was asked to run, as it was written: one of a path and a module."""

    path: str | None
    module: str | None
    args: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """What a component was asked of its pods, as it was written."""

    j: str
    cpu: int | None
    gpu: int | None
    memMB: int | None
    env: dict[str, str] | None
    image: str
    max_restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a component was asked of the cluster, as it was written."""

    name: str | None
    queue: str | None
    priority: int | None
    max_runtime: str | None
    trace_steps: str | None
    trace_ranks: str | None


def training(recipe: Recipe, pods: Pods, asked: Asked) -> specs.AppDef:
    """The app of `fsdp` and `ddp`. Raises BadArgument."""
    return specs.AppDef(
        name=asked.name or f"{recipe.parallel}-{recipe.model}",
        roles=[_role(_trainer(recipe), pods)],
        metadata=_metadata(asked, TRAINER_RULES),
    )


def script(wanted: Script, pods: Pods, asked: Asked) -> specs.AppDef:
    """The app of `script`. Raises BadArgument."""
    path, module = wanted.path, wanted.module
    if path is not None and module is None:
        target, stem = [path], Path(path).stem
    elif module is not None and path is None:
        target, stem = ["-m", module], module.rpartition(".")[2]
    else:
        raise BadArgument("write one of --script PATH and -m MODULE")
    program = ["-m", "muster_components.trainer.attach", *target, *wanted.args]
    return specs.AppDef(name=asked.name or stem, roles=[_role(program, pods)], metadata=_metadata(asked, SCRIPT_RULES))


@dataclass(frozen=True, slots=True)
class Shape:
    """What `-j` says."""

    min_nodes: int
    nodes: int
    nproc: int


def _shape(j: str) -> Shape:
    """`2x8`, `1:4x8` (1 to 4 nodes), or `8` for one node. Raises BadArgument."""
    match = re.fullmatch(r"(?:(?:(\d+):)?(\d+)x)?(\d+)", j)
    if not match:
        raise BadArgument(f"-j {j!r} is no NODESxPROCESSES; write one such as 1x2, or 1:4x8 for 1 to 4 nodes")
    nodes = int(match[2] or 1)
    shape = Shape(min_nodes=int(match[1] or nodes), nodes=nodes, nproc=int(match[3]))
    if min(shape.min_nodes, shape.nodes, shape.nproc) < 1:
        raise BadArgument(f"-j {j!r} asks for none; write at least one node and one process, as 1x1")
    if shape.min_nodes > shape.nodes:
        raise BadArgument(f"-j {j!r}: {shape.min_nodes} nodes at least, {nodes} at most; write MIN:MAXxPROCESSES")
    return shape


def _role(program: list[str], pods: Pods) -> specs.Role:
    """Pods that start `program` once a process. What the user leaves open is for the scheduler to fill in; what stands
    in the resource meanwhile suits a cluster without GPUs."""
    shape = _shape(pods.j)
    cpu, gpu, memory = _whole("cpu", pods.cpu, 1), _whole("gpu", pods.gpu, 0), _whole("memMB", pods.memMB, 1)
    metadata = {"muster.dev/nproc": str(shape.nproc)}
    if gpu is None:
        metadata["muster.dev/accelerator"] = "auto"
    if cpu is None:
        metadata["muster.dev/cores"] = "auto"
    return specs.Role(
        name="trainer",
        image=pods.image,
        entrypoint="python",
        args=["-m", "muster_components.launch", "--nproc", str(shape.nproc), "--", *program],
        env=dict(pods.env or {}),
        num_replicas=shape.nodes,
        min_replicas=shape.min_nodes,
        max_retries=_whole("max_restarts", pods.max_restarts, 0) or 0,
        resource=specs.Resource(cpu=cpu or shape.nproc, gpu=gpu or 0, memMB=memory or -1),
        metadata=metadata,
    )


def _whole(argument: str, value: object | None, least: int) -> int | None:
    """The number; TorchX hands over what is int | None as the text that was written. Raises BadArgument."""
    if value is None:
        return None
    if not re.fullmatch(r"[+-]?\d+", str(value)):
        raise BadArgument(f"--{argument} {value!r} is no whole number; write one from {least} up")
    if int(str(value)) < least:
        raise BadArgument(f"--{argument} {value} is too small; write at least {least}")
    return int(str(value))


def _metadata(asked: Asked, rules: list[dict[str, object]]) -> dict[str, str]:
    """What Muster's schedulers read beside the roles; `-cfg` wins over it. Raises BadArgument."""
    try:
        trace_config(asked.trace_steps or "", asked.trace_ranks or "")
    except InputError as error:
        raise BadArgument(str(error)) from error
    if asked.trace_ranks and not asked.trace_steps:
        raise BadArgument(f"--trace_ranks {asked.trace_ranks} without --trace_steps traces nothing; write both")
    said = {
        "queue": asked.queue,
        "priority": None if asked.priority is None else str(asked.priority),
        "max-runtime": asked.max_runtime,
        "trace-steps": asked.trace_steps,
        "trace-ranks": asked.trace_ranks,
        "grace": GRACE,
        "failure-rules": json.dumps(rules),
    }
    return {f"muster.dev/{key}": value for key, value in said.items() if value is not None}


def _trainer(recipe: Recipe) -> list[str]:
    """The trainer with these flags, if it would take them; what the user leaves open is left to it. Raises
    BadArgument."""
    given = {
        "model": recipe.model,
        "data": recipe.data,
        "steps": recipe.steps,
        "seq_len": recipe.seq_len,
        "global_batch": recipe.global_batch,
        "lr": recipe.lr,
        "precision": None if recipe.precision == "auto" else recipe.precision,
        "checkpoint_every": recipe.checkpoint_every,
    }
    flags = [
        "--parallel",
        recipe.parallel,
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
    ]
    flags += [] if recipe.compile else ["--no_compile"]
    for flag in recipe.more:
        _refuse_misplaced(flag)
    try:
        parse([*flags, *recipe.more], {})
    except InputError as error:
        raise BadArgument(str(error)) from error
    return ["-m", "muster_components.trainer", *flags, *recipe.more]


_OF_THE_COMPONENT = ("queue", "priority", "max_runtime", "name", "max_restarts", "cpu", "gpu", "memMB", "env", "image")
_OF_LAUNCHERS = ("nproc", "nprocs", "nproc_per_node", "nnodes", "nodes", "num_nodes", "j")
"""As torchrun, our launcher and others call the number of processes and of nodes."""


def _refuse_misplaced(flag: str) -> None:
    """What the component is told, not the trainer behind the `--`. Raises BadArgument."""
    name = flag.lstrip("-").partition("=")[0].replace("-", "_")
    if not flag.startswith("-"):
        return
    if name in _OF_LAUNCHERS:
        raise BadArgument(f"{flag!r} is no flag of the trainer; write -j NODESxPROCESSES before the `--`")
    if name in _OF_THE_COMPONENT:
        raise BadArgument(f"{flag!r} is no flag of the trainer; write --{name} before the `--`")
