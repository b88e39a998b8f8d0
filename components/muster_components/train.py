"""TorchX components: training jobs as typed functions.

`torchx run -s muster_local muster.train.fsdp -j 1x2 --model gpt:10m --data DIR` and the like. A component only
describes the job; what a scheduler other than Muster's does not know (queue, traces) is metadata and ignored there.

TorchX reads this file's text: every argument needs an annotation that it knows (Optional[...], no `from __future__`),
and a line in the docstring.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

import torchx
from torchx import specs
from torchx.specs.finder import ComponentValidationException

from muster_components.trainer.config import trace_config
from muster_components.trainer.errors import EXIT_BAD_INPUT, EXIT_DIVERGED, InputError
from muster_components.trainer.flags import parse

GRACE = "60s"
"""Time to save a checkpoint when the job has to leave."""
TRAINER_RULES: List[Dict[str, object]] = [{"onExitCodes": [EXIT_BAD_INPUT, EXIT_DIVERGED], "action": "FailJob"}]
"""A retry ends the same way: bad input, or numbers that are no longer finite (the order of samples is fixed)."""


class BadArgument(ComponentValidationException, ValueError):  # type: ignore[misc]  # TorchX is not typed
    """An argument of a component; TorchX prints this kind without a traceback."""


def fsdp(
    *trainer_args: str,
    model: str,
    data: str,
    steps: int = 100,
    j: str = "1x1",
    seq_len: Optional[int] = None,
    global_batch: Optional[int] = None,
    lr: Optional[float] = None,
    precision: str = "auto",
    compile: bool = True,
    checkpoint_every: Optional[int] = None,
    trace_steps: Optional[str] = None,
    trace_ranks: Optional[str] = None,
    queue: Optional[str] = None,
    priority: Optional[int] = None,
    max_runtime: Optional[str] = None,
    name: Optional[str] = None,
    max_restarts: int = 3,
    cpu: Optional[int] = None,
    gpu: Optional[int] = None,
    memMB: Optional[int] = None,
    env: Optional[Dict[str, str]] = None,
    image: str = torchx.IMAGE,
) -> specs.AppDef:
    """Trains a language model on text with FSDP2: each rank keeps a part of the weights.

    Usage: torchx run -s muster_local muster.train.fsdp -j 1x2 --model gpt:10m --data DIR --steps 60

    Args:
        trainer_args: more flags of the trainer, after `--` (python -m muster_components.trainer --help lists them)
        model: recipe of the model, such as gpt:10m
        data: folder, file or glob of text to train on
        steps: optimizer steps
        j: NODESxPROCESSES, or MIN:MAXxPROCESSES for a job that may shrink and grow
        seq_len: tokens in a sequence (default: 128 on CPU, 1024 on GPU)
        global_batch: sequences a step over all ranks (default: 16 on CPU, 64 on GPU)
        lr: peak learning rate (default: the recipe's)
        precision: auto, bf16 or fp32; auto is bf16 where the GPU has it
        compile: whether to compile the blocks; False for eager
        checkpoint_every: steps between checkpoints, 0 for one at the end (default: a quarter, at most 500)
        trace_steps: FIRST:END steps to profile, such as 20:25 for steps 20 to 24
        trace_ranks: ranks to profile, such as 0,3 (default: all)
        queue: queue that the job waits in
        priority: higher goes first within the queue
        max_runtime: longest time from admission, such as 2h
        name: name of the job (default: fsdp- and the model)
        max_restarts: how often the gang is started again after a failure
        cpu: CPU cores of a node (default: one a process, or the GPUs' share of the node)
        gpu: GPUs of a node (default: one a process where a node has that many, else none)
        memMB: memory of a node in MB (default: not limited)
        env: environment variables, such as A=1,B=2
        image: container image; not used by muster_local
    """
    flags = _trainer_flags(
        model=model, data=data, steps=steps, seq_len=seq_len, global_batch=global_batch, lr=lr,
        precision=precision, compile=compile, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    program = _trainer(["--parallel", "fsdp", *flags, *trainer_args])
    return specs.AppDef(
        name=name or f"fsdp-{model}",
        roles=[_role(program, _Pods(j, cpu, gpu, memMB, env, image, max_restarts))],
        metadata=_metadata(queue, priority, max_runtime, trace_steps, trace_ranks, rules=TRAINER_RULES),
    )


def ddp(
    *trainer_args: str,
    model: str,
    data: str,
    steps: int = 100,
    j: str = "1x1",
    seq_len: Optional[int] = None,
    global_batch: Optional[int] = None,
    lr: Optional[float] = None,
    precision: str = "auto",
    compile: bool = True,
    checkpoint_every: Optional[int] = None,
    trace_steps: Optional[str] = None,
    trace_ranks: Optional[str] = None,
    queue: Optional[str] = None,
    priority: Optional[int] = None,
    max_runtime: Optional[str] = None,
    name: Optional[str] = None,
    max_restarts: int = 3,
    cpu: Optional[int] = None,
    gpu: Optional[int] = None,
    memMB: Optional[int] = None,
    env: Optional[Dict[str, str]] = None,
    image: str = torchx.IMAGE,
) -> specs.AppDef:
    """Trains a language model on text with DDP: each rank keeps all of the weights.

    Usage: torchx run -s muster_local muster.train.ddp -j 1x2 --model gpt:10m --data DIR --steps 60
    """
    flags = _trainer_flags(
        model=model, data=data, steps=steps, seq_len=seq_len, global_batch=global_batch, lr=lr,
        precision=precision, compile=compile, checkpoint_every=checkpoint_every,
    )  # fmt: skip
    program = _trainer(["--parallel", "ddp", *flags, *trainer_args])
    return specs.AppDef(
        name=name or f"ddp-{model}",
        roles=[_role(program, _Pods(j, cpu, gpu, memMB, env, image, max_restarts))],
        metadata=_metadata(queue, priority, max_runtime, trace_steps, trace_ranks, rules=TRAINER_RULES),
    )


# Same arguments, same words: TorchX reads them from the function when it is asked for help.
ddp.__doc__ = f"{ddp.__doc__}\n    Args:{(fsdp.__doc__ or '').partition('Args:')[2]}"


def script(
    *script_args: str,
    script: Optional[str] = None,
    m: Optional[str] = None,
    j: str = "1x1",
    trace_steps: Optional[str] = None,
    trace_ranks: Optional[str] = None,
    queue: Optional[str] = None,
    priority: Optional[int] = None,
    max_runtime: Optional[str] = None,
    name: Optional[str] = None,
    max_restarts: int = 0,
    cpu: Optional[int] = None,
    gpu: Optional[int] = None,
    memMB: Optional[int] = None,
    env: Optional[Dict[str, str]] = None,
    image: str = torchx.IMAGE,
) -> specs.AppDef:
    """Runs your own script as torchrun would; tracing and a heartbeat are added without a change to it.

    Usage: torchx run -s muster_local muster.train.script -j 1x2 --script train.py -- --lr 0.1

    Args:
        script_args: arguments of the script, after `--`
        script: path of the script
        m: module to run instead, as python -m does
        j: NODESxPROCESSES, or MIN:MAXxPROCESSES for a job that may shrink and grow
        trace_steps: FIRST:END steps to profile, such as 20:25 for steps 20 to 24; a step is an optimizer step
        trace_ranks: ranks to profile, such as 0,3 (default: all)
        queue: queue that the job waits in
        priority: higher goes first within the queue
        max_runtime: longest time from admission, such as 2h
        name: name of the job (default: that of the script)
        max_restarts: how often the gang is started again after a failure
        cpu: CPU cores of a node (default: one a process, or the GPUs' share of the node)
        gpu: GPUs of a node (default: one a process where a node has that many, else none)
        memMB: memory of a node in MB (default: not limited)
        env: environment variables, such as A=1,B=2
        image: container image; not used by muster_local
    """
    if script is not None and m is None:
        target, stem = [script], Path(script).stem
    elif m is not None and script is None:
        target, stem = ["-m", m], m.rpartition(".")[2]
    else:
        raise BadArgument("write one of --script PATH and -m MODULE")
    program = ["-m", "muster_components.trainer.attach", *target, *script_args]
    return specs.AppDef(
        name=name or stem,
        roles=[_role(program, _Pods(j, cpu, gpu, memMB, env, image, max_restarts))],
        metadata=_metadata(queue, priority, max_runtime, trace_steps, trace_ranks, rules=[]),
    )


@dataclass(frozen=True)
class _Pods:
    """What a component was asked of its pods, as it was written."""

    j: str
    cpu: Optional[int]
    gpu: Optional[int]
    mem_mb: Optional[int]
    env: Optional[Dict[str, str]]
    image: str
    max_restarts: int


@dataclass(frozen=True)
class _Shape:
    """What `-j` says."""

    min_nodes: int
    nodes: int
    nproc: int


def _shape(j: str) -> _Shape:
    """`2x8`, `1:4x8` (1 to 4 nodes), or `8` for one node. Raises BadArgument."""
    match = re.fullmatch(r"(?:(?:(\d+):)?(\d+)x)?(\d+)", j)
    if not match:
        raise BadArgument(f"-j {j!r} is no NODESxPROCESSES; write one such as 1x2, or 1:4x8 for 1 to 4 nodes")
    nodes = int(match[2] or 1)
    shape = _Shape(min_nodes=int(match[1] or nodes), nodes=nodes, nproc=int(match[3]))
    if min(shape.min_nodes, shape.nodes, shape.nproc) < 1:
        raise BadArgument(f"-j {j!r} asks for none; write at least one node and one process, as 1x1")
    if shape.min_nodes > shape.nodes:
        raise BadArgument(f"-j {j!r}: {shape.min_nodes} nodes at least, {nodes} at most; write MIN:MAXxPROCESSES")
    return shape


def _role(program: List[str], pods: _Pods) -> specs.Role:
    """Pods that start `program` once a process. What the user leaves open is for the scheduler to fill in; what stands
    in the resource meanwhile suits a cluster without GPUs."""
    shape = _shape(pods.j)
    cpu, gpu, memory = _whole("cpu", pods.cpu, 1), _whole("gpu", pods.gpu, 0), _whole("memMB", pods.mem_mb, 1)
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


def _whole(argument: str, value: Optional[object], least: int) -> Optional[int]:
    """The number; TorchX hands over what is Optional[int] as the text that was written. Raises BadArgument."""
    if value is None:
        return None
    if not re.fullmatch(r"[+-]?\d+", str(value)):
        raise BadArgument(f"--{argument} {value!r} is no whole number; write one from {least} up")
    if int(str(value)) < least:
        raise BadArgument(f"--{argument} {value} is too small; write at least {least}")
    return int(str(value))


def _metadata(
    queue: Optional[str], priority: Optional[int], max_runtime: Optional[str],
    trace_steps: Optional[str], trace_ranks: Optional[str], rules: List[Dict[str, object]],
) -> Dict[str, str]:  # fmt: skip
    """What Muster's schedulers read beside the roles; `-cfg` wins over it. Raises BadArgument."""
    try:
        trace_config(trace_steps or "", trace_ranks or "")
    except InputError as error:
        raise BadArgument(str(error)) from error
    if trace_ranks and not trace_steps:
        raise BadArgument(f"--trace_ranks {trace_ranks} without --trace_steps traces nothing; write both")
    said = {
        "queue": queue,
        "priority": None if priority is None else str(priority),
        "max-runtime": max_runtime,
        "trace-steps": trace_steps,
        "trace-ranks": trace_ranks,
        "grace": GRACE,
        "failure-rules": json.dumps(rules) if rules else None,
    }
    return {f"muster.dev/{key}": value for key, value in said.items() if value is not None}


def _trainer_flags(
    *, model: str, data: str, steps: int, seq_len: Optional[int], global_batch: Optional[int], lr: Optional[float],
    precision: str, compile: bool, checkpoint_every: Optional[int],
) -> List[str]:  # fmt: skip
    """Flags of the trainer; what the user leaves open is left to it."""
    given = {
        "model": model,
        "data": data,
        "steps": steps,
        "seq_len": seq_len,
        "global_batch": global_batch,
        "lr": lr,
        "precision": None if precision == "auto" else precision,
        "checkpoint_every": checkpoint_every,
    }
    flags = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return flags if compile else [*flags, "--no_compile"]


def _trainer(flags: List[str]) -> List[str]:
    """The trainer with these flags, if it would take them. Raises BadArgument."""
    try:
        parse(flags, {})
    except InputError as error:
        raise BadArgument(str(error)) from error
    return ["-m", "muster_components.trainer", *flags]
