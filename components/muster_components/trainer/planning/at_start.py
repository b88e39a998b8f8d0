"""What the trainer does with the planner before weights are allocated: choose, or refuse what cannot fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from muster_components.trainer.config import TrainConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.data.samples import Samples
from muster_components.trainer.errors import InputError, UserCodeError
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.plan import HostCapabilities, TrainPlan, resolve_plan
from muster_components.trainer.planning.devices import GpuKind, gpu_kind
from muster_components.trainer.planning.examples import example_batches


@dataclass(frozen=True, slots=True)
class PlanDecision:
    """The plan to train with; `summary` is for the console, empty if nothing was predicted."""

    plan: TrainPlan
    summary: str


def decide_plan(
    plan: TrainPlan,
    model: TrainModel,
    samples: Samples,
    device: torch.device,
    host: HostCapabilities,
    context: RunContext,
) -> PlanDecision:
    """Rank 0 predicts, and all ranks use its decision. Every rank calls this.

    Raises InputError on all ranks for a plan that cannot fit, and if the planner has to choose and cannot. Without a
    GPU to plan for, what it would choose is the default.
    """
    config = plan.config
    kind = planned_device(config, device)
    chooses = bool(config.parallel.auto)
    if kind is None and chooses and device.type != "cuda":  # a try on a laptop: there is no memory to fit into
        parallel = replace(config.parallel, auto=frozenset())
        plan = resolve_plan(replace(config, parallel=parallel), host)
        return PlanDecision(plan, f"plan: auto is for GPUs; on CPUs it is --parallel {str(plan.mesh) or 'fsdp'}")
    if kind is None and chooses:
        raise InputError(
            "--parallel auto plans for GPUs that it knows; add --device, such as --device h100, or choose a mesh"
        )
    if kind is None or not (chooses or config.planning.check):
        return PlanDecision(plan, "")
    decision: list[tuple[TrainConfig | None, str]] = [(None, "")]
    if context.is_rank0:
        decision = [_decide(plan, model, samples, kind, host, context.local_world_size)]
    dist.broadcast_object_list(decision)
    chosen, message = decision[0]
    if chosen is None:
        raise InputError(message)
    return PlanDecision(resolve_plan(chosen, host), message)


def planned_device(config: TrainConfig, device: torch.device) -> GpuKind | None:
    """That of `--device`, else this rank's; None if it is unknown, or no GPU."""
    if config.planning.device is not None:
        return config.planning.device
    if device.type != "cuda":
        return None
    memory = torch.cuda.get_device_properties(device).total_memory
    return gpu_kind(torch.cuda.get_device_name(device), memory)


def _decide(
    plan: TrainPlan,
    model: TrainModel,
    samples: Samples,
    kind: GpuKind,
    host: HostCapabilities,
    gpus_per_host: int,
) -> tuple[TrainConfig | None, str]:
    """The config to use and a line about it; None and the error for one that is refused."""
    # Imported late: it loads the compiler, which an eager run does not need.
    from muster_components.trainer.planning.candidates import with_choices
    from muster_components.trainer.planning.planner import Planner
    from muster_components.trainer.planning.report import report_progress, summary_line

    config = plan.config
    planner = Planner(model, example_batches(model, samples), host, kind, gpus_per_host, report_progress)
    try:
        prediction = planner.choose(config) if config.parallel.auto else planner.check(plan)
    except Exception as raised:  # whatever the model does that needs values
        if isinstance(raised, InputError) and not isinstance(raised, UserCodeError):
            return None, str(raised)
        error = raised.__cause__ if isinstance(raised, UserCodeError) and raised.__cause__ else raised
        cause = ": ".join((type(error).__name__, *str(error)[:200].splitlines()[:1]))  # some have no message
        reason = f"{model.name} cannot run without values ({cause})"
        if config.parallel.auto:
            return None, f"--parallel auto cannot predict memory: {reason}; choose a mesh and a micro-batch"
        return config, f"plan: memory is not predicted: {reason}"
    if prediction is None:
        return config, ""
    if config.parallel.auto:
        config = with_choices(prediction.plan.config)
    return config, summary_line(prediction)
