"""`--plan NODESxGPUS`: print what plans need and how fast they are, and choose one, without training."""

from __future__ import annotations

import os

import torch

from muster_components.trainer.config import TrainConfig
from muster_components.trainer.data.cache_folder import token_cache_dir
from muster_components.trainer.data.samples import Samples
from muster_components.trainer.data.training_data import open_data
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.parallel.float8 import require_torchao
from muster_components.trainer.plan import HostCapabilities, TrainPlan, resolve_plan
from muster_components.trainer.planning.devices import GIB, GpuKind, gpu_kind
from muster_components.trainer.planning.examples import example_batches
from muster_components.trainer.planning.planner import Planner
from muster_components.trainer.planning.report import plan_json, plan_table, report_progress
from muster_components.trainer.session import train_model

_SHOWN = 10
"""Plans in the table; JSON has all."""


def print_plan(config: TrainConfig) -> None:
    """Print the chosen plan, or that of the flags, and the next best ones. Raises InputError if none fits."""
    assert config.planning.layout is not None
    nodes, gpus = config.planning.layout
    try:
        config.parallel.spec.shape(nodes * gpus)
    except InputError as error:
        raise InputError(f"--plan {nodes}x{gpus} has {nodes * gpus} ranks, one for each GPU: {error}") from error
    device = config.planning.device or _own_device()
    host = HostCapabilities(
        device="cuda", world_size=nodes * gpus, has_compiler=True, has_bf16=True, has_float8=device.float8
    )
    planner, model, plan = planner_for(config, host, device, gpus)
    if config.parallel.auto:
        predictions = planner.predictions(config)
    else:
        prediction = planner.predict(plan)
        predictions = [] if prediction is None else [prediction]
        if prediction is not None and not prediction.fits:
            predictions += [changed for _, changed in planner.fitting_changes(prediction)]
    if config.planning.as_json:
        print(plan_json(predictions))
    else:
        flops = model.flops_per_sample()
        memory = f"{device.memory_bytes / GIB:.1f} GiB each"
        print(f"{model.name} ({model.summary}) on {nodes} x {gpus} {device.name}, {memory}")
        print(plan_table(predictions[:_SHOWN], None if flops is None else flops * plan.global_batch, device.flops))
        if len(predictions) > _SHOWN:
            print(f"... and {len(predictions) - _SHOWN} more; --json prints all")
    if not predictions or not predictions[0].fits:
        raise InputError(
            planner.why_too_large(predictions[0])
            if predictions
            else f"--plan: no mesh of {host.world_size} ranks is valid"
        )


def planner_for(
    config: TrainConfig, host: HostCapabilities, device: GpuKind, gpus_per_host: int
) -> tuple[Planner, TrainModel, TrainPlan]:
    """A planner for the model of a run that is not started, and the plan before anything is chosen.

    Raises InputError.
    """
    plan = resolve_plan(config, host)
    require_torchao(config.float8)
    model = train_model(plan)
    samples: Samples | None = None
    if config.data.path and model.sample_spec.kind == "fields":
        samples = open_data(config.data, model.sample_spec, token_cache_dir(os.environ)).samples
    return Planner(model, example_batches(model, samples), host, device, gpus_per_host, report_progress), model, plan


def _own_device() -> GpuKind:
    if not torch.cuda.is_available():
        raise InputError("--plan needs --device on a machine without a GPU, such as --device h100")
    name = torch.cuda.get_device_name()
    kind = gpu_kind(name, torch.cuda.get_device_properties(0).total_memory)
    if kind is None:
        raise InputError(f"--plan does not know {name}; give --device with a similar GPU and its memory: l40s:44GiB")
    return kind
