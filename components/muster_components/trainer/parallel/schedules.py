"""Pipeline schedules by name: what each needs, what torch cannot do, and its ideal bubble.

The schedules are those of torch.distributed.pipelining. torch is imported only where a schedule is built, so that a
combination that cannot run is refused before a job is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from muster_components.trainer.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineSchedule


@dataclass(frozen=True, slots=True)
class Schedule:
    """A pipeline schedule.

    `placement`: rank r of p has stage r ("single"), stages r, r + p ("loop"), or stages r, 2p - 1 - r ("v").
    `splits_backward`: gradients of inputs and of weights are computed at different times.
    """

    name: str
    placement: Literal["single", "loop", "v"]
    splits_backward: bool = False

    @property
    def stages_per_rank(self) -> int:
        return 1 if self.placement == "single" else 2

    def stage_indices(self, rank: int, ranks: int) -> tuple[int, ...]:
        """The stages of a pipeline rank, in order."""
        if self.placement == "single":
            return (rank,)
        return (rank, rank + ranks) if self.placement == "loop" else (rank, 2 * ranks - 1 - rank)

    def bubble(self, ranks: int, micro_batches: int) -> float:
        """The share of a step in which a rank waits, if all stages take the same time and sending takes none.

        A backward is taken to last twice as long as a forward: as long for the inputs as for the weights. With p ranks,
        m micro-batches and v stages per rank:

        - GPipe and 1F1B: (p - 1) / (m + p - 1); Interleaved1F1B: (p - 1) / (vm + p - 1). Narayanan et al., Efficient
          Large-Scale Language Model Training on GPU Clusters, 2021, section 2.2.
        - with split backward: (p - 1) / (3vm + p - 1), since weights fill two thirds of the bubble. Qi et al., Zero
          Bubble Pipeline Parallelism, 2023, section 2.3. ZBVZeroBubble needs 2p - 1 micro-batches for it.
        """
        parts = 3 if self.splits_backward else 1
        return (ranks - 1) / (parts * self.stages_per_rank * micro_batches + ranks - 1)

    def record(self, ranks: int, micro_batches: int) -> dict[str, object]:
        """The schedule of a run as its traces have it (docs/reference/run-folder.md)."""
        bubble = self.bubble(ranks, micro_batches)
        return {"schedule": self.name, "ranks": ranks, "micro_batches": micro_batches, "ideal_bubble": round(bubble, 6)}

    def in_flight(self, rank: int, ranks: int, micro_batches: int) -> float:
        """How many micro-batches' activations a pipeline rank stores at most, in units of all of its stages.

        GPipe stores all. 1F1B stores one for each stage from here to the end, Interleaved1F1B as many forwards as
        come before its first backward (Narayanan et al., 2021, section 2.2), and those with split backward as many as
        there are ranks (Qi et al., 2023); DualPipeV overlaps a forward with the backward that would free another.
        """
        if self.name == "GPipe":
            return micro_batches
        if self.placement == "single":
            return min(micro_batches, ranks - rank)
        if not self.splits_backward:
            forwards = 2 * (ranks - rank - 1) + (self.stages_per_rank - 1) * ranks + 1
            return min(micro_batches, forwards / self.stages_per_rank)
        return min(micro_batches, ranks + (0.5 if self.name == "DualPipeV" else 0))


SCHEDULES: Final = {
    schedule.name: schedule
    for schedule in (
        Schedule("GPipe", "single"),
        Schedule("1F1B", "single"),
        Schedule("Interleaved1F1B", "loop"),
        Schedule("InterleavedZeroBubble", "loop", splits_backward=True),
        Schedule("ZBVZeroBubble", "v", splits_backward=True),
        Schedule("DualPipeV", "v", splits_backward=True),
    )
}
DEFAULT_SCHEDULE: Final = "1F1B"


def invalid_because(
    schedule: Schedule, *, ranks: int, micro_batches: int, compile_backend: str | None, recompute: str = "none"
) -> str | None:
    """Why torch cannot run this schedule so, and what to use instead; None if it can.

    `micro_batches`: those of one step; `compile_backend`: that of torch.compile, None without compilation; `recompute`:
    what the backward pass computes again.
    """
    name, stages = schedule.name, ranks * schedule.stages_per_rank
    if ranks < 2:
        return f"--pipeline_schedule {name} needs at least 2 pipeline ranks; got pp={ranks}"
    if schedule.splits_backward and compile_backend not in (None, "eager"):
        return (
            f"--pipeline_schedule {name} computes gradients of inputs and of weights at different times, which"
            f" torch cannot do for compiled modules (backend {compile_backend});"
            " use --pipeline_schedule Interleaved1F1B, or --no_compile"
        )
    if schedule.splits_backward and recompute == "selective":
        return (
            f"--pipeline_schedule {name} computes gradients of inputs and of weights at different times, and torch"
            " keeps what selective recomputation computed again for one of them only; use"
            " --activation_checkpointing full or none, or --pipeline_schedule Interleaved1F1B; got selective"
        )
    if name in ("1F1B", "DualPipeV") and micro_batches < stages:
        return (
            f"--pipeline_schedule {name} needs at least as many micro-batches as stages, {stages}; got"
            f" {micro_batches}; use a smaller --micro_batch, or --pipeline_schedule GPipe"
        )
    rounds = max(1, micro_batches // ranks)
    if schedule.placement == "loop" and micro_batches % rounds:
        divisible = micro_batches // ranks * ranks
        return (
            f"--pipeline_schedule {name} runs {ranks} pipeline ranks in rounds of equal numbers of micro-batches;"
            f" {micro_batches} micro-batches do not divide into {rounds} rounds; use {divisible} or"
            f" {divisible + ranks}, or --pipeline_schedule 1F1B"
        )
    return None


def find_schedule(name: str) -> Schedule:
    """The schedule of this name, in any case. Raises InputError."""
    for known, schedule in SCHEDULES.items():
        if known.lower() == name.lower():
            return schedule
    raise InputError(f"--pipeline_schedule must be one of {', '.join(SCHEDULES)}; got {name!r}")


def build_schedule(
    schedule: Schedule, stages: Sequence[PipelineStage], micro_batches: int, loss: Callable[..., Any]
) -> _PipelineSchedule:
    """torch's schedule for the stages of this rank. It sums gradients over micro-batches and does not scale them."""
    from torch.distributed.pipelining import schedules

    schedule_class: Any = schedules.get_schedule_class(schedule.name)
    argument = stages[0] if schedule.placement == "single" else list(stages)
    built: _PipelineSchedule = schedule_class(argument, micro_batches, loss_fn=loss, scale_grads=False)
    return built
