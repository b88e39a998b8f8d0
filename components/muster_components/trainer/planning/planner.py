"""Predicts what plans need and how fast they are, chooses the best, and says what would make one fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

import torch

from muster_components.trainer.config import DEFAULT_BACKEND, RECOMPUTE_MODES, Float8Config, TrainConfig, memory_budget
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.interface import Batch, TrainModel
from muster_components.trainer.parallel.balance import partition
from muster_components.trainer.parallel.sharding import MAX_FUSED_BLOCKS
from muster_components.trainer.parallel.spec import ParallelSpec
from muster_components.trainer.plan import HostCapabilities, TrainPlan
from muster_components.trainer.planning.candidates import plan_or_none, valid_plans, with_choices
from muster_components.trainer.planning.devices import GIB, GpuKind
from muster_components.trainer.planning.memory import Candidate, MemoryEstimate, estimate_memory, is_resharded, unique
from muster_components.trainer.planning.profile_model import ModelProfile, Part, ProfileOptions, profile_model
from muster_components.trainer.planning.step_time import StepTimeEstimate, estimate_step_time

CONTEXT_BYTES: Final = int(0.75 * GIB)
"""Of the CUDA context and the code that was loaded, outside of tensors."""
NCCL_BYTES: Final = 1 * GIB
"""Of NCCL's communicators, with more than one rank."""
FRAGMENTATION: Final = 0.03
"""Of the tensors: what the allocator cannot use."""
SHARDED_FRAGMENTATION: Final = 0.17
"""With FSDP2 that frees weights after forward, of the tensors: what the allocator holds beside them if it has never
released anything. Llama 8B on 2 H200s (2 x 8192, selective): 98.5 GiB in tensors, 115.5 reserved."""
GATHERED_FRAGMENTATION: Final = 0.07
"""The same where the weights stay gathered until backward: Llama 8B (float8) ran with 128.1 GiB in tensors of 139.5
without releasing memory."""
TIGHT_SLOWDOWN: Final = 1.19
"""How much longer a step takes with less memory: the same job without recomputation, with 129.5 GiB of tensors in
139.5, took 1,841 ms where 1,550 were predicted."""
TOLERANCE: Final = 0.1
"""How far predictions may be off. A plan that the user chose is refused only if it does not fit by more."""
_MAX_GROWTH: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What one plan needs on its fullest GPU, and the time of a step."""

    plan: TrainPlan
    memory: MemoryEstimate
    time: StepTimeEstimate
    reserved: float
    """Bytes outside of tensors."""
    capacity: float
    """Bytes of the GPU."""
    reshards: bool
    """Whether FSDP2 frees gathered weights after forward, and gathers them again for backward."""

    @property
    def needed(self) -> float:
        """All bytes of the GPU that are used."""
        return self.memory.total + self.reserved

    @property
    def fits(self) -> bool:
        """Whether it needs at most what the GPU has."""
        return self.needed <= self.capacity

    @property
    def is_tight(self) -> bool:
        """Whether it fits, but with less memory than the allocator would hold beside the tensors."""
        tensors = self.memory.total
        keeps_gathered = self.plan.mesh.pp == 1 and not self.reshards  # pipelines were not measured
        fragmentation = GATHERED_FRAGMENTATION if keeps_gathered else SHARDED_FRAGMENTATION
        held = self.needed - FRAGMENTATION * tensors + fragmentation * tensors
        return self.fits and self.plan.mesh.shard > 1 and held > self.capacity

    @property
    def step_s(self) -> float:
        return self.time.total * (TIGHT_SLOWDOWN if self.is_tight else 1.0)

    @property
    def cannot_fit(self) -> bool:
        """Whether it would not fit even if the prediction were too high by TOLERANCE."""
        return self.memory.total * (1 - TOLERANCE) + CONTEXT_BYTES > self.capacity

    @property
    def tokens_per_s(self) -> float:
        return self.plan.tokens_per_step / self.step_s

    @property
    def flags(self) -> str:
        return " ".join(self.flag_list())

    def flag_list(self) -> list[str]:
        """The same as a list."""
        plan = self.plan
        flags = [f"--parallel={plan.mesh}"] if plan.mesh.world_size > 1 else []
        if plan.mesh.pp > 1:
            flags.append(f"--pipeline_schedule={plan.schedule.name}")
        return [
            *flags,
            f"--micro_batch={plan.micro_batch}",
            f"--activation_checkpointing={plan.config.parallel.recompute}",
            *(["--offload_activations"] if plan.config.parallel.offload_activations else []),
            *([] if plan.config.parallel.reshard is None else [f"--reshard={_reshard_value(plan)}"]),
        ]


class Planner:
    """Predictions for one model on one kind of GPU."""

    def __init__(
        self,
        model: TrainModel,
        batch: Callable[[int], Batch],
        host: HostCapabilities,
        device: GpuKind,
        gpus_per_host: int,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """`batch(n)`: n samples on the CPU, as the trainer gives them to the model; `report` gets a line before each
        step that takes seconds."""
        self.device = device
        self.host = host
        self.gpus_per_host = gpus_per_host
        self._model = model
        self._batch = batch
        self._report = report
        self._profiles: dict[ProfileOptions, ModelProfile] = {}
        self._stages: dict[tuple[int, int], Sequence[Sequence[Part]] | None] = {}

    def predict(self, plan: TrainPlan) -> Prediction | None:
        """Memory and time of a plan; None if the model has too few blocks for its pipeline."""
        candidate = Candidate(
            mesh=plan.mesh,
            micro_batch=plan.micro_batch,
            micro_steps=plan.gradient_accumulation_steps,
            recompute=plan.config.parallel.recompute,
            schedule=plan.schedule,
            bf16=plan.precision == "bf16",
            reshard=plan.config.parallel.reshard,
            offloads=plan.config.parallel.offload_activations,
            gathers_float8=plan.config.float8.recipe == "tensorwise",
        )
        profile = self._profile(plan, candidate)
        count = plan.mesh.pp * plan.schedule.stages_per_rank if plan.mesh.pp > 1 else 1
        if (id(profile), count) not in self._stages:
            self._stages[id(profile), count] = split_stages(profile, count)
        stages = self._stages[id(profile), count]
        if stages is None:
            return None
        memory = estimate_memory(profile, candidate, stages)
        time = estimate_step_time(
            profile,
            candidate,
            stages,
            self.device,
            self.gpus_per_host,
            cuda_graph=plan.graphs_steps(profile.parameter_count),
        )
        reserved = CONTEXT_BYTES + (NCCL_BYTES if plan.mesh.world_size > 1 else 0) + FRAGMENTATION * memory.total
        return Prediction(
            plan=plan,
            memory=memory,
            time=time,
            reserved=reserved,
            capacity=float(self.device.memory_bytes),
            reshards=candidate.uses_fsdp and any(is_resharded(unique(stage), candidate) for stage in stages),
        )

    def predictions(self, config: TrainConfig) -> list[Prediction]:
        """All valid plans, those that fit first, each group from the fastest to the slowest."""
        plans = valid_plans(
            config,
            self.host,
            gpus_per_host=self.gpus_per_host,
            allows_padding=self._model.sample_spec.allows_padding,
        )
        tries_reshard = "parallel" in config.parallel.auto and config.parallel.reshard is None
        variants = ", some of them also with --reshard never or always" if tries_reshard else ""
        self._report(f"predicting memory and step time of {len(plans)} plans{variants}")
        found = [prediction for plan in plans if (prediction := self.predict(plan)) is not None]
        if tries_reshard:
            sharded = [one for one in found if one.plan.mesh.shard > 1 and one.plan.mesh.pp == 1]
            resharded = [one.plan for one in sharded if one.reshards]
            too_large = [one.plan for one in sharded if not (one.reshards or one.fits)]
            others = [self.predict(_with_reshard(plan, False)) for plan in resharded]
            others += [self.predict(_with_reshard(plan, True)) for plan in too_large]
            found += [prediction for prediction in others if prediction is not None]
        return sorted(found, key=lambda p: (not p.fits, p.step_s if p.fits else p.needed, p.flags))

    def choose(self, config: TrainConfig) -> Prediction:
        """The fastest plan that fits. Raises InputError if none does."""
        found = self.predictions(config)
        if not found:
            raise InputError(
                f"--parallel auto: no mesh of {self.host.world_size} ranks suits --global_batch and {self._model.name}"
            )
        if not found[0].fits:
            raise InputError(self.why_too_large(found[0]))
        return found[0]

    def check(self, plan: TrainPlan) -> Prediction | None:
        """The prediction for a plan that the user chose. Raises InputError if it cannot fit."""
        prediction = self.predict(plan)
        if prediction is not None and prediction.cannot_fit:
            raise InputError(self.why_too_large(prediction))
        return prediction

    def why_too_large(self, prediction: Prediction) -> str:
        """Why a plan does not fit, and the smallest changes that would make it fit."""
        changes = " or ".join(change for change, _ in self.fitting_changes(prediction))
        return (
            f"the plan needs {prediction.needed / GIB:.0f} GiB per GPU, {prediction.capacity / GIB:.0f} available "
            f"({prediction.flags}); "
            + (f"fits with {changes}" if changes else f"does not fit on {_MAX_GROWTH} times as many GPUs either")
        )

    def fitting_changes(self, prediction: Prediction) -> list[tuple[str, Prediction]]:
        """Flags that make the plan fit, with the plan that they give.

        Of each kind of change that does, the one that costs least time: recomputation, the micro-batch, FSDP over all
        ranks, gathered weights not kept; only if none of them does, both of the first two, then as few more GPUs as
        possible.
        """
        config, world = prediction.plan.config, self.host.world_size
        given = config.parallel.recompute
        modes = RECOMPUTE_MODES[RECOMPUTE_MODES.index(given) + 1 :] if given in RECOMPUTE_MODES else ("full",)
        sizes = [2**power for power in range(prediction.plan.micro_batch.bit_length())]
        sharded = ParallelSpec(data="fsdp", data_ranks=world)
        single: list[dict[str, TrainConfig]] = [
            {f"--activation_checkpointing {mode}": with_choices(config, recompute=mode) for mode in modes},
            {
                f"--micro_batch {size}": with_choices(config, micro_batch=size)
                for size in sizes
                if size < prediction.plan.micro_batch
            },
            {f"--parallel {sharded}": with_choices(config, spec=sharded)} if world > 1 else {},
            self._freed_weights(prediction),
        ]
        found = [best for options in single if (best := self._fastest_fitting(options, world)) is not None]
        if found:
            return found
        both = {
            f"--activation_checkpointing {mode} --micro_batch 1": with_choices(config, recompute=mode, micro_batch=1)
            for mode in modes
        }
        if best := self._fastest_fitting(both, world):
            return [best]
        growth = 2
        while growth <= _MAX_GROWTH:
            ranks = growth * world
            spec = ParallelSpec(data="fsdp", data_ranks=ranks)
            for options in ({"": config}, both):
                grown = {
                    f"{name} --parallel {spec} (on {ranks} GPUs)".strip(): with_choices(changed, spec=spec)
                    for name, changed in options.items()
                }
                if best := self._fastest_fitting(grown, ranks):
                    return [best]
            growth *= 2
        return []

    def _freed_weights(self, prediction: Prediction) -> dict[str, TrainConfig]:
        """The flag that frees gathered weights which the plan keeps, if any. Pipelines always keep them in backward."""
        plan = prediction.plan
        if prediction.reshards or plan.mesh.shard == 1 or plan.mesh.pp > 1:
            return {}
        by_size = self.predict(_with_reshard(plan, None))
        if by_size is not None and by_size.reshards:
            return {"--reshard auto": _config_with_reshard(plan.config, None)}
        return {"--reshard always": _config_with_reshard(plan.config, True)}

    def _fastest_fitting(self, options: Mapping[str, TrainConfig], ranks: int) -> tuple[str, Prediction] | None:
        host = dataclasses.replace(self.host, world_size=ranks)
        fitting = []
        for name, config in options.items():
            plan = plan_or_none(config, host)
            prediction = None if plan is None else self.predict(plan)
            if prediction is not None and prediction.fits:
                fitting.append((name, prediction))
        return min(fitting, key=lambda pair: (pair[1].step_s, pair[0]), default=None)

    def _profile(self, plan: TrainPlan, candidate: Candidate) -> ModelProfile:
        config = plan.config
        one_gpu = plan.mesh.world_size == 1 and not (config.compile.autograd or config.parallel.offload_activations)
        # Other backends are taken to save what eager execution does.
        compiled = plan.compile_backend == DEFAULT_BACKEND
        options = ProfileOptions(
            compiled=compiled,
            dtype=torch.bfloat16 if candidate.bf16 else torch.float32,
            autocast=candidate.bf16 and candidate.uses_ddp,
            # The kernel of the loss needs Triton also to be run without values; a laptop may have none.
            fused=compiled and one_gpu and find_spec("triton") is not None,
            float8=plan.config.float8 if compiled else Float8Config(),
            memory_budget=memory_budget(candidate.recompute) if compiled else None,
        )
        if options not in self._profiles:
            mode = f"{'compiled' if compiled else 'eager'}, {'bf16' if candidate.bf16 else 'fp32'}"
            self._report(f"measuring {self._model.name} on tensors without values ({mode})")
            profile = profile_model(self._model, self._batch, options)
            blocks = sum(part.is_block for part in profile.parts)
            if options.fused and blocks > MAX_FUSED_BLOCKS:
                profile = profile_model(self._model, self._batch, dataclasses.replace(options, fused=False))
            self._profiles[options] = profile
        return self._profiles[options]


def _with_reshard(plan: TrainPlan, reshard: bool | None) -> TrainPlan:
    return dataclasses.replace(plan, config=_config_with_reshard(plan.config, reshard))


def _config_with_reshard(config: TrainConfig, reshard: bool | None) -> TrainConfig:
    return dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, reshard=reshard))


def _reshard_value(plan: TrainPlan) -> str:
    return "always" if plan.config.parallel.reshard else "never"


def split_stages(profile: ModelProfile, stages: int) -> Sequence[Sequence[Part]] | None:
    """The parts of each stage, as the trainer splits the model; None if there are fewer blocks than stages.

    What runs before the first block belongs to it, anything else outside of blocks to the block before it.
    """
    parts = profile.parts
    if stages == 1:
        return [parts]
    blocks = [index for index, part in enumerate(parts) if part.is_block]
    if len(blocks) < stages:
        return None
    starts, ends = [0, *blocks[1:]], [*blocks[1:], len(parts)]
    flops = []
    for start, end in zip(starts, ends, strict=True):
        works = [profile.cost(part, "none", 1).forward for part in parts[start:end]]
        flops.append(sum(work.matmul_flops + work.attention_flops for work in works))
    split, first = [], 0
    for length in partition(flops, stages):
        split.append(parts[starts[first] : ends[first + length - 1]])
        first += length
    return split
