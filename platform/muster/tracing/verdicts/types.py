"""What a rule claims, the verdict that it becomes, the causes, and the sentence of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from muster.tracing.account.rank_record import RankRecord
from muster.tracing.formatting import format_list, format_percent, format_seconds
from muster.tracing.ranks.attribution import Float64
from muster.tracing.work.operator_stats import short_name


class Cause(StrEnum):
    """The causes; docs/concepts/analysis.md describes each."""

    DATA_LOADING = "data-loading"
    CHECKPOINT = "checkpoint"
    HOST_BLOCKED = "host-blocked"
    RECOMPILATION = "recompilation"
    ALLOCATOR_RETRIES = "allocator-retries"
    EXTRA_KERNELS = "extra-kernels"
    SLOW_DEVICE = "slow-device"
    STAGE_IMBALANCE = "stage-imbalance"
    PIPELINE_BUBBLE = "pipeline-bubble"
    GRAPH_BREAK = "graph-break"
    EXPOSED_ALL_GATHER = "exposed-all-gather"
    EXPOSED_REDUCE_SCATTER = "exposed-reduce-scatter"
    EXPOSED_ALL_REDUCE = "exposed-all-reduce"
    EXPOSED_COMMUNICATION = "exposed-communication"
    SLOW_NETWORK = "slow-network"
    LAUNCH_BOUND = "launch-bound"
    COPY = "copy"
    HOST_SYNC = "host-sync"
    SLOW_HOST = "slow-host"
    LARGER_INPUT = "larger-input"
    INPUT_PREPROCESSING = "input-preprocessing"
    GARBAGE_COLLECTION = "garbage-collection"
    REDUNDANT_ALL_REDUCE = "redundant-all-reduce"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cause of lost time.

    `ranks` are those that cause it; empty if all ranks are equally affected. `stage` is their pipeline stage. `cost_ms`
    is the time per step, averaged over the steps. `confidence` is from 0 to 1. `place` is where the time is lost: an
    annotation, a module where stacks are recorded, an operator, a kernel or a kind of copy; empty if it is nowhere in
    particular.
    """

    ranks: tuple[int, ...]
    stage: int | None
    cause: Cause
    cost_ms: float
    evidence: str
    confidence: float
    place: str = ""

    @property
    def advice(self) -> str:
        """What to try."""
        return _ADVICE[self.cause]

    @property
    def work(self) -> str:
        """The operator, kernel or kind of copy that is the place; empty if it is an annotation or a module."""
        name = self.place.partition(" (")[0]
        return name if _OPERATOR.search(name) or self.cause in _OF_WORK else ""

    @property
    def where(self) -> str:
        """` in 'load'`; ` before 'aten::mm'` of a pause that ends with this operator; empty without a place."""
        at = "before" if self.cause is Cause.HOST_BLOCKED and self.work else "in"
        return f" {at} {short_name(self.place)!r}" if self.place else ""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rule finds: milliseconds that a cause costs in each step, because of some ranks (none: of all alike). It
    holds if their mean is at least `share` of a step. `explained` is the part of them that the cause accounts for."""

    cause: Cause
    ms: Float64
    share: float
    evidence: str
    who: Sequence[RankRecord] = ()
    place: str = ""
    explained: float = 1.0

    @property
    def cost_ms(self) -> float:
        """The mean of the steps."""
        return float(self.ms.mean())

    def verdict(self, step_ms: float) -> Verdict:
        """With its confidence in a step of so many milliseconds."""
        stages = {record.stage for record in self.who}
        ranks, sure = (
            tuple(record.rank for record in self.who),
            confidence(self.ms, self.share * step_ms, self.explained),
        )
        stage = stages.pop() if len(stages) == 1 else None
        return Verdict(ranks, stage, self.cause, self.cost_ms, self.evidence, sure, self.place)


def confidence(ms: Float64, threshold_ms: float, explained: float = 1.0) -> float:
    """From 0.5 to 0.99, from a cost in each step: by how many of its errors the mean exceeds the threshold, and less if
    the cause explains less than half of the cost.

    The error is that of the mean (the spread between the steps by the root of their number), and at least a tenth of
    the mean by the same root, since a few steps that are alike say little about the others.
    """
    mean, root = float(ms.mean()), float(np.sqrt(len(ms)))
    spread = float(ms.std(ddof=1)) if len(ms) > 1 else mean
    error = max(spread, 0.1 * mean) / root + 0.1 * threshold_ms
    distance = max(mean - threshold_ms, 0.0) / max(error, 1e-9)
    return round(0.5 + 0.49 * float(1 - np.exp(-distance / 3)) * min(max(2 * explained, 0.0), 1.0), 2)


_OPERATOR = re.compile(r"::|^(cuda|hip|cu)[A-Z]")
_OF_WORK = (Cause.COPY, Cause.EXTRA_KERNELS, Cause.LARGER_INPUT, Cause.LAUNCH_BOUND, Cause.INPUT_PREPROCESSING)
_ADVICE = {
    Cause.DATA_LOADING: "Try more DataLoader workers, prefetching, or faster storage",
    Cause.INPUT_PREPROCESSING: "Do it in DataLoader workers (num_workers), on the device, or once before the training",
    Cause.CHECKPOINT: "Write it in a thread while the training goes on, to faster storage, or save less often",
    Cause.HOST_BLOCKED: "Look at the code there: sleeps, I/O, locks, or a host with too few CPUs",
    Cause.GARBAGE_COLLECTION: "Call gc.freeze() after the first steps, or gc.disable() and collect on all ranks in the "
    "same steps",
    Cause.COPY: "Use pinned memory and non_blocking=True, copy less often, or keep the data on the device",
    Cause.ALLOCATOR_RETRIES: "Do not call empty_cache() in a step; "
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use less memory",
    Cause.RECOMPILATION: "See TORCH_LOGS=recompiles; mark changing sizes with torch._dynamo.mark_dynamic, or pad them",
    Cause.HOST_SYNC: "Avoid .item(), .cpu(), print and nonzero() of device tensors within a step",
    Cause.LAUNCH_BOUND: "Use torch.compile, CUDA graphs, or foreach and fused operators",
    Cause.SLOW_HOST: "Check the CPUs of this rank: other processes, threads of its own, affinity, frequency",
    Cause.SLOW_DEVICE: "Check clocks, temperature, power limit and other processes on this device (nvidia-smi -q)",
    Cause.EXTRA_KERNELS: "Look for work that only this rank does, such as logging, metrics or another model",
    Cause.LARGER_INPUT: "Give ranks batches of equal size: pad, bucket by length, or balance tokens",
    Cause.STAGE_IMBALANCE: "Move blocks to the other stages",
    Cause.PIPELINE_BUBBLE: "Use more micro-batches, balance the stages, or check the transfers between them",
    Cause.GRAPH_BREAK: "Move that code out of the compiled function, or see TORCH_LOGS=graph_breaks",
    Cause.SLOW_NETWORK: "Check with nccl-tests that NCCL uses NVLink and RDMA (NCCL_DEBUG=INFO)",
    Cause.EXPOSED_COMMUNICATION: "Use larger micro-batches, fewer stages, or a schedule that overlaps transfers",
    **dict.fromkeys(
        (Cause.EXPOSED_ALL_GATHER, Cause.EXPOSED_REDUCE_SCATTER, Cause.EXPOSED_ALL_REDUCE),
        "Prefetch earlier, use larger local batches, or shard over fewer ranks",
    ),
    Cause.REDUNDANT_ALL_REDUCE: "Accumulate gradients within model.no_sync() in all passes but the last one of a step",
}


_PHRASES = {
    Cause.DATA_LOADING: "data loading blocks the host",
    Cause.CHECKPOINT: "saving a checkpoint within the step blocks the host",
    Cause.HOST_BLOCKED: "the host is blocked",
    Cause.RECOMPILATION: "torch.compile compiles within the step",
    Cause.ALLOCATOR_RETRIES: "the allocator frees and allocates device memory within the step",
    Cause.EXTRA_KERNELS: "extra work runs that other ranks do not have",
    Cause.SLOW_DEVICE: "the same work takes longer than on other ranks",
    Cause.STAGE_IMBALANCE: "the pipeline stage has more work than the others",
    Cause.PIPELINE_BUBBLE: "the stages wait for each other longer than their schedule needs",
    Cause.GRAPH_BREAK: "the devices idle while Python runs between the compiled parts of the model",
    Cause.EXPOSED_ALL_GATHER: "all-gathers run while nothing computes",
    Cause.EXPOSED_REDUCE_SCATTER: "reduce-scatters run while nothing computes",
    Cause.EXPOSED_ALL_REDUCE: "all-reduces run while nothing computes",
    Cause.EXPOSED_COMMUNICATION: "communication runs while nothing computes",
    Cause.SLOW_NETWORK: "the network between the ranks is slow",
    Cause.LAUNCH_BOUND: "the host launches small kernels too slowly",
    Cause.COPY: "copies between host and device are not hidden",
    Cause.HOST_SYNC: "the host waits for the device and launches the next work late",
    Cause.SLOW_HOST: "the host launches work later than the others do",
    Cause.INPUT_PREPROCESSING: "inputs are prepared on the CPU within the step",
    Cause.GARBAGE_COLLECTION: "Python collects garbage within the step",
    Cause.REDUNDANT_ALL_REDUCE: "gradients are reduced in each backward pass of a step, not once",
    Cause.LARGER_INPUT: "its input is larger than that of other ranks",
}


def phrase_of(cause: Cause) -> str:
    """A clause that says what the cause is."""
    return _PHRASES[cause]


def describe(verdict: Verdict, step_ms: float, everyone: str = "All ranks") -> str:
    """The verdict as a sentence; `step_ms` is the duration of a step, `everyone` what to call all ranks."""
    ranks = [str(rank) for rank in verdict.ranks]
    who = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {format_list(ranks)}" if ranks else everyone
    if verdict.stage is not None and verdict.cause is Cause.STAGE_IMBALANCE:
        who = f"Stage {verdict.stage} ({who[0].lower()}{who[1:]})"
    share = _of_a_step(verdict.cost_ms / step_ms) if step_ms > 0 else ""
    cost = format_seconds(verdict.cost_ms / 1e3)
    return f"{who}: {_PHRASES[verdict.cause]} ({cost} a step{share}): {verdict.evidence}. {verdict.advice}."


def _of_a_step(share: float) -> str:
    """`, 12.3% of a step`; above 2, since the median step is one without the cause: `, 38 times a step`."""
    return f", {format_percent(share)} of a step" if share <= 2 else f", {share:.3g} times a step"
