"""Which ways to train there are, under the choices that the user has made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from muster_components.trainer.config import RECOMPUTE_MODES, Recompute, TrainConfig, validate_mesh
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.parallel.schedules import SCHEDULES
from muster_components.trainer.parallel.spec import ParallelSpec
from muster_components.trainer.plan import HostCapabilities, TrainPlan, resolve_plan

SCHEDULE_CHOICES = tuple(
    schedule.name for schedule in SCHEDULES.values() if schedule.name != "GPipe" and not schedule.splits_backward
)
"""GPipe stores more than 1F1B and is no faster; those with split backward cannot be compiled."""


def valid_plans(
    config: TrainConfig, host: HostCapabilities, *, gpus_per_host: int, allows_padding: bool
) -> list[TrainPlan]:
    """All plans that the trainer accepts, with the values of `config` wherever they are not to be chosen."""
    auto = config.parallel.auto
    specs = list(_specs(config, host.world_size, gpus_per_host)) if "parallel" in auto else [config.parallel.spec]
    recomputes = RECOMPUTE_MODES if "recompute" in auto else (config.parallel.recompute,)
    plans = []
    for spec in specs:
        schedules: tuple[str | None, ...] = (config.parallel.schedule,)
        if "parallel" in auto and config.parallel.schedule is None and spec.pp > 1:
            schedules = SCHEDULE_CHOICES
        for schedule in schedules:
            for recompute in recomputes:
                chosen = with_choices(config, spec=spec, schedule=schedule, recompute=recompute)
                for plan in _micro_batches(chosen, host, choose="micro_batch" in auto):
                    if allows_padding or plan.padding == 0:
                        plans.append(plan)
    return plans


def with_choices(
    config: TrainConfig,
    *,
    spec: ParallelSpec | None = None,
    schedule: str | None = None,
    recompute: Recompute | None = None,
    micro_batch: int | None = None,
) -> TrainConfig:
    """The config with these choices made; None: as before."""
    parallel = dataclasses.replace(
        config.parallel,
        spec=spec or config.parallel.spec,
        schedule=schedule or config.parallel.schedule,
        recompute=recompute or config.parallel.recompute,
        auto=frozenset(),
    )
    data = dataclasses.replace(config.data, micro_batch=micro_batch or config.data.micro_batch)
    return dataclasses.replace(config, parallel=parallel, data=data)


def plan_or_none(config: TrainConfig, host: HostCapabilities) -> TrainPlan | None:
    """The plan; None if the trainer would refuse it."""
    try:
        validate_mesh(config)
        return resolve_plan(config, host)
    except InputError:
        return None


def _micro_batches(config: TrainConfig, host: HostCapabilities, *, choose: bool) -> Iterator[TrainPlan]:
    """Powers of two up to the rank's share of the global batch, and the share."""
    plan = plan_or_none(dataclasses.replace(config, data=dataclasses.replace(config.data, micro_batch=1)), host)
    if not choose or plan is None:
        plan = plan_or_none(config, host)
        if plan is not None:
            yield plan
        return
    share = plan.micro_batch * plan.gradient_accumulation_steps
    for size in sorted({share, *(2**power for power in range(share.bit_length()))}):
        chosen = plan_or_none(with_choices(config, micro_batch=size), host)
        if chosen is not None:
            yield chosen


def _specs(config: TrainConfig, world_size: int, gpus_per_host: int) -> Iterator[ParallelSpec]:
    """Meshes of all ranks: fsdp and hsdp, of which a group of shards has at least a host; ddp; fsdp as a pipeline. All
    but ddp also with tp within a host."""
    tensor_parallel = [1]
    if isinstance(config.model, ModelConfig):
        tensor_parallel += [size for size in _divisors(world_size) if 1 < size <= gpus_per_host]
    for tp in tensor_parallel:
        ranks = world_size // tp
        yield ParallelSpec(data="fsdp", data_ranks=ranks, tp=tp)
        for shards in _divisors(ranks):
            if shards > 1 and ranks > shards and shards * tp >= min(gpus_per_host, ranks * tp):
                yield ParallelSpec(data="hsdp", data_ranks=ranks, replicate=ranks // shards, tp=tp)
        if tp == 1 and ranks > 1:
            yield ParallelSpec(data="ddp", data_ranks=ranks)
    for pp in _divisors(world_size):
        for tp in tensor_parallel if pp > 1 else ():
            if world_size % (pp * tp) == 0:
                yield ParallelSpec(data="fsdp", data_ranks=world_size // (pp * tp), tp=tp, pp=pp)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
