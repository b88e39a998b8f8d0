"""Builds the AppDef of a component: pods, their command, and metadata for Muster's schedulers.

Invalid arguments are rejected here, before anything is submitted.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from torchx import specs
from torchx.specs.finder import ComponentValidationException

from muster_components.titan.config import TitanLayout
from muster_components.titan.submission import check_titan
from muster_components.trainer.config import Device, parse_trace_config
from muster_components.trainer.errors import EXIT_BAD_INPUT, EXIT_DIVERGED, EXIT_IMPORT, InputError, TrainerError
from muster_components.trainer.submission import PodLayout, check_submission

GRACE_PERIOD = "60s"
"""Time to save a checkpoint when the job is preempted or stopped."""
TRAINER_RULES: list[dict[str, object]] = [
    {"onExitCodes": [EXIT_BAD_INPUT, EXIT_DIVERGED, EXIT_IMPORT], "action": "FailJob"}
]
"""Exit codes for which a retry would fail again: invalid input, a loss that is not finite (the sample order is fixed),
or no torch."""
SCRIPT_RULES: list[dict[str, object]] = [{"onExitCodes": [EXIT_BAD_INPUT, EXIT_IMPORT], "action": "FailJob"}]
"""The exit code of argparse, Python and the launcher for a usage error, and that without torch: a retry would fail
again."""


class InvalidArgument(ComponentValidationException, ValueError):  # type: ignore[misc]  # TorchX is not typed
    """An argument of a component; TorchX prints this kind without a traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArgs:
    """Arguments of the trainer, as given."""

    parallel: str
    pipeline_schedule: str | None
    micro_batch: int | None
    model: str
    data: str
    steps: int
    seq_len: int | None
    global_batch: int | None
    lr: float | None
    precision: str
    float8: str
    compile: bool
    checkpoint_every: int | None
    extra_args: Sequence[str]
    """Flags of the trainer after the `--`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptArgs:
    """The script to run, as given: either a path or a module."""

    path: str | None
    module: str | None
    args: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodArgs:
    """Arguments of the pods, as given."""

    j: str
    cpu: int | None
    gpu: int | None
    memMB: int | None
    env: dict[str, str] | None
    image: str
    max_restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingArgs:
    """Arguments of scheduling and tracing, as given."""

    name: str | None
    queue: str | None
    priority: int | None
    max_runtime: str | None
    trace_steps: str | None
    trace_ranks: str | None
    trace_every: int | None
    trace_when_slower: float | None


A = TypeVar("A", TrainerArgs, PodArgs, SchedulingArgs)
P = ParamSpec("P")


def _select(kind: type[A], arguments: Mapping[str, Any]) -> A:
    return kind(**{field.name: arguments[field.name] for field in fields(kind)})


def alias(
    component: Callable[P, specs.AppDef], **defaults: str
) -> Callable[[Callable[..., specs.AppDef]], Callable[P, specs.AppDef]]:
    """Decorates another name for `component`, with these defaults of its arguments. A job without a name is called
    after the alias. TorchX finds a function in the file's text, and reads its arguments from the signature and their
    help from the docstring, which are those of the component."""
    signature = inspect.signature(component)
    parameters = [
        parameter.replace(default=defaults.get(parameter.name, parameter.default))
        for parameter in signature.parameters.values()
    ]
    _, heading, help_of_arguments = (component.__doc__ or "").partition("Args:")

    def decorate(function: Callable[..., specs.AppDef]) -> Callable[P, specs.AppDef]:
        @functools.wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> specs.AppDef:
            arguments = {**defaults, **given}
            arguments["name"] = arguments.get("name") or f"{function.__name__}-{arguments.get('model')}"
            return function(*args, **arguments)

        call.__doc__ = f"{function.__doc__}\n    {heading}{help_of_arguments}"
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def training_app(extra_args: Sequence[str], arguments: Mapping[str, Any]) -> specs.AppDef:
    """The app of `trainer`. `arguments` are those of the component by name. Raises InvalidArgument."""
    pods, scheduling = _select(PodArgs, arguments), _select(SchedulingArgs, arguments)
    compiled = _parse_switch("compile", arguments["compile"])
    trainer = _select(TrainerArgs, {**arguments, "compile": compiled, "extra_args": extra_args})
    return specs.AppDef(
        name=scheduling.name or f"trainer-{trainer.model}",
        roles=[_role(_trainer_command(trainer, pods, scheduling.trace_steps), pods)],
        metadata=_metadata(scheduling, TRAINER_RULES),
    )


def _parse_switch(name: str, text: str | bool) -> bool:
    """`True` or `False` in any case, since TorchX reads any other word as False. Raises InvalidArgument."""
    values = {"true": True, "false": False}
    if str(text).lower() not in values:
        raise InvalidArgument(f"--{name} must be True or False; got {text!r}")
    return values[str(text).lower()]


def script_app(program_args: ScriptArgs, arguments: Mapping[str, Any]) -> specs.AppDef:
    """The app of `script`. `arguments` are those of the component by name. Raises InvalidArgument."""
    pods, scheduling = _select(PodArgs, arguments), _select(SchedulingArgs, arguments)
    path, module = program_args.path, program_args.module
    if path is not None and module is None:
        target, stem = [path], Path(path).stem
    elif module is not None and path is None:
        target, stem = ["-m", module], module.rpartition(".")[2]
    else:
        raise InvalidArgument("must give either --script PATH or -m MODULE")
    program = ["-m", "muster_components.trainer.instrument", *target, *program_args.args]
    return specs.AppDef(
        name=scheduling.name or stem, roles=[_role(program, pods)], metadata=_metadata(scheduling, SCRIPT_RULES)
    )


def titan_app(titan_args: Sequence[str], arguments: Mapping[str, Any]) -> specs.AppDef:
    """The app of `titan`. `arguments` are those of the component by name. Raises InvalidArgument."""
    layout = _parse_layout(arguments["j"])
    restarts = _check_integer("max_restarts", arguments["max_restarts"], 0)
    scheduling = _select(SchedulingArgs, arguments)
    try:
        checked = check_titan(
            titan_args,
            TitanLayout(layout.min_nodes, layout.nodes, layout.nproc),
            restarts=restarts or 0,
            has_trace=scheduling.trace_steps is not None,
        )
    except TrainerError as error:
        raise InvalidArgument(str(error)) from error
    pods = _select(PodArgs, {**arguments, "max_restarts": checked.restarts if restarts is None else restarts})
    metadata = _metadata(scheduling, SCRIPT_RULES)
    if checked.checkpoint_dir:
        metadata["muster.dev/checkpoint-dir"] = checked.checkpoint_dir
    program = ["-m", "muster_components.titan", *titan_args]
    return specs.AppDef(name=scheduling.name or checked.name, roles=[_role(program, pods)], metadata=metadata)


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The value of `-j`."""

    min_nodes: int
    nodes: int
    nproc: int


def _parse_layout(j: str) -> NodeLayout:
    """`2x8`, `1:4x8` (1 to 4 nodes), or `8` for one node. Raises InvalidArgument."""
    match = re.fullmatch(r"(?:(?:(\d{1,18}):)?(\d{1,18})x)?(\d{1,18})", j)
    if not match:
        raise InvalidArgument(f"-j must be NODESxPROCESSES, such as 1x2, or 1:4x8 for 1 to 4 nodes; got {j!r}")
    nodes = int(match[2] or 1)
    layout = NodeLayout(min_nodes=int(match[1] or nodes), nodes=nodes, nproc=int(match[3]))
    if min(layout.min_nodes, layout.nodes, layout.nproc) < 1:
        raise InvalidArgument(f"-j must have at least one node and one process, such as 1x1; got {j!r}")
    if layout.min_nodes > layout.nodes:
        raise InvalidArgument(f"-j must be MIN:MAXxPROCESSES with MIN not above MAX; got {j!r}")
    return layout


def _role(program: list[str], pods: PodArgs) -> specs.Role:
    """Pods that start `program` once per process. The scheduler fills in resources that are not given; the values set
    here for them suit a cluster without GPUs."""
    layout = _parse_layout(pods.j)
    cpu, gpu, memory = (
        _check_integer("cpu", pods.cpu, 1),
        _check_integer("gpu", pods.gpu, 0),
        _check_integer("memMB", pods.memMB, 1),
    )
    metadata = {"muster.dev/nproc": str(layout.nproc)}
    if gpu is None:
        metadata["muster.dev/accelerator"] = "auto"
    if cpu is None:
        metadata["muster.dev/cores"] = "auto"
    return specs.Role(
        name="trainer",
        image=pods.image,
        entrypoint="python",
        args=["-m", "muster_components.launch", "--nproc", str(layout.nproc), "--", *program],
        env=dict(pods.env or {}),
        num_replicas=layout.nodes,
        min_replicas=layout.min_nodes,
        max_retries=_check_integer("max_restarts", pods.max_restarts, 0) or 0,
        resource=specs.Resource(cpu=cpu or layout.nproc, gpu=gpu or 0, memMB=memory or -1),
        metadata=metadata,
    )


def _check_integer(argument: str, value: object | None, minimum: int) -> int | None:
    """The value as an integer; TorchX passes arguments of type `int | None` as text. Raises InvalidArgument."""
    if value is None:
        return None
    if not re.fullmatch(r"[+-]?\d{1,18}", str(value)):
        raise InvalidArgument(f"--{argument} must be an integer of at least {minimum}; got {value!r}")
    if int(str(value)) < minimum:
        raise InvalidArgument(f"--{argument} must be at least {minimum}; got {value}")
    return int(str(value))


def _metadata(scheduling: SchedulingArgs, rules: list[dict[str, object]]) -> dict[str, str]:
    """Metadata for Muster's schedulers; `-cfg` takes precedence. Raises InvalidArgument."""
    try:
        every = "" if scheduling.trace_every is None else str(scheduling.trace_every)
        when_slower = "" if scheduling.trace_when_slower is None else str(scheduling.trace_when_slower)
        parse_trace_config(scheduling.trace_steps or "", scheduling.trace_ranks or "", every, when_slower)
    except InputError as error:
        raise InvalidArgument(str(error)) from error
    for name, value in (
        ("trace_ranks", scheduling.trace_ranks),
        ("trace_every", every),
        ("trace_when_slower", when_slower),
    ):
        if value and not scheduling.trace_steps:
            raise InvalidArgument(f"--{name} {value} requires --trace_steps")
    values = {
        "queue": scheduling.queue,
        "priority": None if scheduling.priority is None else str(scheduling.priority),
        "max-runtime": scheduling.max_runtime,
        "trace-steps": scheduling.trace_steps,
        "trace-ranks": scheduling.trace_ranks,
        "trace-every": every or None,
        "trace-when-slower": when_slower or None,
        "grace": GRACE_PERIOD,
        "pod-security": "restricted",
        "failure-rules": json.dumps(rules),
    }
    return {f"muster.dev/{key}": value for key, value in values.items() if value is not None}


def _trainer_command(trainer: TrainerArgs, pods: PodArgs, trace_steps: str | None) -> list[str]:
    """The trainer's command; flags that are not given have the trainer's defaults. Raises InvalidArgument for flags
    that the trainer would reject."""
    layout, gpus = _parse_layout(pods.j), _check_integer("gpu", pods.gpu, 0)
    devices: tuple[Device, ...] = ("cpu", "cuda") if gpus is None else ("cuda",) if gpus else ("cpu",)
    given = {
        "model": trainer.model,
        "data": trainer.data,
        "steps": trainer.steps,
        "pipeline_schedule": trainer.pipeline_schedule,
        "micro_batch": trainer.micro_batch,
        "seq_len": trainer.seq_len,
        "global_batch": trainer.global_batch,
        "lr": trainer.lr,
        "precision": None if trainer.precision == "auto" else trainer.precision,
        "float8": None if trainer.float8 == "none" else trainer.float8,
        "checkpoint_every": trainer.checkpoint_every,
    }
    flags = [
        "--parallel",
        trainer.parallel,
        *(f"--{name}={value}" for name, value in given.items() if value is not None),
    ]
    flags += [] if trainer.compile else ["--no_compile"]
    for flag in trainer.extra_args:
        _reject_misplaced_flag(flag)
    try:
        # The scheduler passes the steps to trace in the environment, so they are not in the command.
        traced = [f"--trace_steps={trace_steps}"] if trace_steps else []
        check_submission(
            [*flags, *traced, *trainer.extra_args],
            PodLayout(layout.min_nodes, layout.nodes, layout.nproc, devices),
        )
    except InputError as error:
        raise InvalidArgument(str(error)) from error
    return ["-m", "muster_components.trainer", *flags, *trainer.extra_args]


_COMPONENT_FLAGS = ("queue", "priority", "max_runtime", "name", "max_restarts", "cpu", "gpu", "memMB", "env", "image")
_LAUNCHER_FLAGS = ("nproc", "nprocs", "nproc_per_node", "nnodes", "nodes", "num_nodes", "j")
"""Names for the number of processes and nodes in torchrun, Muster's launcher and others."""


def _reject_misplaced_flag(flag: str) -> None:
    """Raises InvalidArgument for a flag after the `--` that is an argument of the component."""
    name = flag.lstrip("-").partition("=")[0].replace("-", "_")
    if not flag.startswith("-"):
        return
    if name in _LAUNCHER_FLAGS:
        raise InvalidArgument(f"{flag!r} is not a flag of the trainer; use -j NODESxPROCESSES before the `--`")
    if name in _COMPONENT_FLAGS:
        raise InvalidArgument(f"{flag!r} is not a flag of the trainer; use --{name} before the `--`")
