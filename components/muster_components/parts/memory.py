"""Which ways to shard a model fit on a kind of GPU, and how long a step takes: the planner of `--parallel auto`.

The model runs on tensors without values, so this needs neither a GPU nor memory for the model. It predicts float32
master weights, AdamW, and bf16 in forward and backward under FSDP2, HSDP or DDP, compiled by torch.compile or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from muster_components.trainer.config import CompileConfig, DataConfig, ParallelConfig, TrainConfig
from muster_components.trainer.models.factory import FactoryModel
from muster_components.trainer.models.selection import FactorySource
from muster_components.trainer.plan import HostCapabilities
from muster_components.trainer.planning.devices import parse_device
from muster_components.trainer.planning.planner import Planner, Prediction

__all__ = ["Prediction", "predict_memory"]


def predict_memory(
    build: Callable[[], nn.Module],
    batch: Callable[[int], Mapping[str, Tensor]],
    *,
    device: str,
    gpus: int,
    gpus_per_node: int = 8,
    global_batch: int,
    compiled: bool = False,
) -> list[Prediction]:
    """The ways to train on `gpus` of a kind, those that fit first, each group from the fastest to the slowest.

    `build` returns the model: its forward returns the mean loss, or an object or a dictionary with `loss`. `batch(n)`
    are the arguments of forward by name, on the CPU, the first dimension of each n. `device`: such as `h100`, or
    `l40s:48GiB` with its memory. Of each prediction `fits`, `needed` and `capacity` (bytes per GPU), `step_s` (seconds)
    and `flags` (the choices) are of interest. Raises InputError; and what the model raises on tensors without values.
    """
    config = TrainConfig(
        model=FactorySource(name="the model"),
        data=DataConfig(path="", global_batch=global_batch),
        steps=1,
        parallel=ParallelConfig(auto=frozenset({"parallel", "micro_batch", "recompute"})),
        compile=CompileConfig(enabled=compiled),
    )
    kind = parse_device(device)
    host = HostCapabilities(device="cuda", world_size=gpus, has_compiler=True, has_bf16=True, has_float8=kind.float8)
    model = FactoryModel("the model", {}, build)
    planner = Planner(model, lambda count: dict(batch(count)), host, kind, min(gpus, gpus_per_node))
    return planner.predictions(config)
