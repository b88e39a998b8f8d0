"""What is checked before a job is submitted: that its ranks could run with their flags, before they take a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from muster_components.trainer.config import Device, TrainConfig
from muster_components.trainer.errors import InputError
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.plan import HostCapabilities, require_plan


@dataclass(frozen=True, slots=True)
class PodLayout:
    """`min_pods` (elastic jobs) to `pods` pods, each with so many processes, on one of `devices`."""

    min_pods: int
    pods: int
    processes: int
    devices: tuple[Device, ...]


def rejection(
    arguments: Sequence[str],
    min_pods: int,
    pods: int,
    processes: int | None,
    *,
    on_gpus: bool,
    has_trace_variable: bool = True,
) -> str | None:
    """Why the trainer rejects these flags in such a job, None if it accepts them. `processes` of each pod None: not
    known. Pods that request no GPU may find one on this host. `has_trace_variable`: they may have MUSTER_TRACE_STEPS.
    """
    if {"-h", "--help"}.intersection(arguments):
        return None  # argparse would print the help and exit
    try:
        if not has_trace_variable:
            parse_train_config(arguments, {})
        if processes is None:
            _require_checkpoints(parse_train_config(arguments, None), min_pods, pods)
        else:
            devices: tuple[Device, ...] = ("cuda",) if on_gpus else ("cpu", "cuda")
            check_submission(arguments, PodLayout(min_pods, pods, processes, devices))
    except InputError as error:
        return str(error)
    return None


def check_submission(arguments: Sequence[str], layout: PodLayout) -> None:
    """Raises InputError if the trainer would reject the flags with one of the sizes of the job, or if no GPU of the
    kind that `--device` names can hold the plan."""
    config = parse_train_config(arguments, None)
    if config.planning.layout is not None:
        return  # --plan trains nothing
    _require_checkpoints(config, layout.min_pods, layout.pods)
    for pods in range(layout.min_pods, layout.pods + 1):
        require_plan(config, pods * layout.processes, layout.devices)
    _check_memory(config, layout)


def _require_checkpoints(config: TrainConfig, min_pods: int, pods: int) -> None:
    if config.planning.layout is None and config.checkpoint.keep == 0 and min_pods < pods:
        raise InputError(
            "--keep must be at least 1 in an elastic job, which continues from a checkpoint when its size changes; "
            "got 0"
        )


def _check_memory(config: TrainConfig, layout: PodLayout) -> None:
    """Raises InputError if no GPU of the kind that `--device` names can hold the plan, on the fewest pods.

    Only for recipes and where torch can be imported (and torchao for --float8): other models may exist on the nodes
    alone. The trainer checks again.
    """
    device = config.planning.device
    checks = config.planning.check or config.parallel.auto
    if device is None or not checks or not isinstance(config.model, ModelConfig) or find_spec("torch") is None:
        return
    if config.float8.recipe is not None and find_spec("torchao") is None:
        return
    try:  # here: torch takes seconds to import
        from muster_components.trainer.planning.command import planner_for
    except (ImportError, OSError):  # OSError: a library of torch cannot be loaded
        return

    world_size = layout.min_pods * layout.processes
    host = HostCapabilities(
        device="cuda", world_size=world_size, has_compiler=True, has_bf16=True, has_float8=device.float8
    )
    planner, _, plan = planner_for(config, host, device, layout.processes)
    if config.parallel.auto:
        planner.choose(config)
    else:
        planner.check(plan)
