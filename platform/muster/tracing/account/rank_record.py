"""What the comparison of ranks needs of one trace, in a few hundred kilobytes: its `RankRecord`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from muster.tracing.account.local_path import LocalPaths, local_paths
from muster.tracing.account.rank_account import RankAccount, rank_account
from muster.tracing.read.events import EventKind, Events, ProcessGroup, Trace
from muster.tracing.read.spans import EMPTY, Int64, Spans, concatenate, covered_within, groups, union
from muster.tracing.work.hta_breakdown import KernelType, launch_times
from muster.tracing.work.operator_stats import OperatorStats, kernels_by_time, operator_calls, operators_by_self_time
from muster.tracing.work.pipeline_bubble import PipelinePhase, pipeline_phase
from muster.tracing.work.steps import NO_STEP, StepTable
from muster.tracing.work.time_breakdown import CategorySpans, collective_name, communication_events
from muster.tracing.work.transfers import TransferTable, is_transfer, pipeline_group, transfer_table
from muster.tracing.work.work_kinds import (
    COMMUNICATION_NAME,
    FSDP_COLLECTIVE,
    FSDP_ROOT,
    TimeCategory,
    device_work_types,
    matching_names,
)

MAX_COLLECTIVES = 20_000
MAX_WORK_NAMES = 300
MAX_ANNOTATIONS = 30
COMPILATION = re.compile(r".*\(dynamo_timed\)$")
Sizes = tuple[tuple[int, ...], ...]
DDP_FORWARD = re.compile(r"DistributedDataParallel\.forward$")
ALL_REDUCE = re.compile(r"((nccl|gloo|mpi|ucc):)?all_?reduce(_coalesced)?$|nccl(Dev)?Kernel_AllReduce", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CollectiveTable:
    """Collectives of one rank in its steps, in order: parallel columns, times in nanoseconds since the origin.

    `group`, `name` and `block` index `labels`; `ordinal` counts those of a group within a step. `exposed_ns` is the
    time in which nothing computed. `message_bytes` is -1 if unknown. `block` is the module whose parameters FSDP
    gathers or whose gradients it reduces (-1: another collective).
    """

    labels: tuple[str, ...]
    group: Int64
    step: Int64
    ordinal: Int64
    name: Int64
    start: Int64
    end: Int64
    exposed_ns: Int64
    message_bytes: Int64
    block: Int64

    def __len__(self) -> int:
        return len(self.start)

    def rows(self) -> dict[tuple[int, int], int]:
        """The row of the collective with each start and end."""
        return {times: row for row, times in enumerate(zip(self.start.tolist(), self.end.tolist(), strict=True))}


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """All calls of a compute kernel with one grid and block. `alone` of the `calls` ran without a collective beside
    them, in `alone_ns` altogether: a kernel beside one that waits for other ranks takes much longer. Without device
    work the calls of an operator, each with the lower quartile of their times: other processes use the CPUs too."""

    name: str
    grid: str
    calls: int
    alone: int
    alone_ns: int

    @property
    def key(self) -> tuple[str, str]:
        """The same on ranks with the same work."""
        return self.name, self.grid


@dataclass(frozen=True, slots=True)
class RankRecord:
    """One rank. Times are per step (arrays in the order of `steps`), in milliseconds.

    `work` are compute kernels by name (operators by self time on the CPU), `most_launches` is the operator with most
    launches. `stage` is the rank's position in its pipeline, `before_pipeline_ms` its compute before the first forward
    pass of a step. `gradient_reductions` are the backward passes of each step if all reduce the same gradients, else 0.
    `windows` are the steps, in nanoseconds since the origin. `inputs` are the sizes of the tensors of each operator's
    largest call, of those whose shapes are recorded.
    """

    rank: int
    on_device: bool
    origin_us: float
    steps: Int64
    step_ms: NDArray[np.float64]
    compute_ms: NDArray[np.float64]
    idle_ms: NDArray[np.float64]
    compile_ms: NDArray[np.float64]
    work: tuple[OperatorStats, ...]
    collectives: CollectiveTable
    stage: int | None
    before_pipeline_ms: NDArray[np.float64]
    windows: Spans
    transfers: TransferTable
    account: RankAccount
    gradient_reductions: Int64
    kernels: tuple[KernelGroup, ...] = ()
    inputs: Mapping[str, Sizes] = field(default_factory=dict)
    operators: tuple[OperatorStats, ...] = ()
    most_launches: OperatorStats | None = None
    paths: LocalPaths | None = None
    pipeline: PipelinePhase | None = None


def rank_record(
    trace: Trace,
    steps: StepTable,
    lanes: CategorySpans,
    operators: tuple[OperatorStats, ...] = (),
    *,
    critical_path: bool = False,
) -> RankRecord | None:
    """The record of a trace, with `paths` for a critical path; None without steps. A trace that does not say its rank
    is one of rank 0: a program of one process."""
    if not len(steps):
        return None
    windows = steps.windows
    kinds = [TimeCategory.COMPUTE, TimeCategory.OPTIMIZER, TimeCategory.COMMUNICATION, TimeCategory.MEMORY]
    busy = union(concatenate([lanes[kind] for kind in kinds]))
    communication = communication_events(trace, steps.work)
    collectives = _collectives(trace, steps, lanes, communication)
    group = pipeline_group(trace, communication)
    transfers = transfer_table(trace, steps, communication, lanes.exposed, group)
    return RankRecord(
        rank=trace.rank or 0,
        on_device=len(steps.work) > 0,
        origin_us=trace.origin_us,
        steps=steps.numbers,
        step_ms=(windows.end - windows.start) / 1e6,
        compute_ms=covered_within(lanes.computing, windows) / 1e6,
        idle_ms=(windows.end - windows.start - covered_within(busy, windows)) / 1e6,
        compile_ms=_named_ms(trace, trace.of_kind(EventKind.CPU_OP, EventKind.ANNOTATION), COMPILATION, windows),
        work=_compute_work(trace, steps),
        collectives=collectives,
        stage=_pipeline_stage(trace, communication, group),
        before_pipeline_ms=_before_pipeline_ms(trace, steps, lanes, transfers),
        windows=windows,
        transfers=transfers,
        gradient_reductions=_gradient_reductions(trace, steps, communication),
        kernels=_kernel_groups(trace, steps, lanes[TimeCategory.COMMUNICATION]),
        inputs=_largest_inputs(trace),
        operators=operators[:MAX_WORK_NAMES],
        account=rank_account(trace, steps, lanes),
        most_launches=_most_launches(trace) if len(steps.work) else None,
        paths=local_paths(trace, steps, lanes, (collectives.rows(), transfers)) if critical_path else None,
        pipeline=pipeline_phase(trace, steps, lanes, has_transfers=len(transfers.event) > 0),
    )


def _named_ms(trace: Trace, events: Events, pattern: re.Pattern[str], windows: Spans) -> NDArray[np.float64]:
    """Per window the time of the events whose name matches."""
    wanted = np.array([pattern.match(name) is not None for name in trace.names], dtype=bool)
    found = events[wanted[events.name]] if len(events) else events
    return covered_within(union(found.spans), windows) / 1e6


def _kernel_groups(trace: Trace, steps: StepTable, communication: Spans) -> tuple[KernelGroup, ...]:
    work = steps.work[steps.work_step != NO_STEP] if len(steps.work) else steps.work
    work = work[device_work_types(trace, work) == KernelType.COMPUTE] if len(work) else work
    if not len(work):
        return _operator_groups(trace) if not len(steps.work) else ()
    alone = covered_within(communication, work.spans) == 0
    found = []
    for same in groups(work.name * np.int64(len(trace.grids) + 1) + work.grid + 1):
        name, grid, by_itself = int(work.name[same[0]]), int(work.grid[same[0]]), same[alone[same]]
        ns = int(work.duration[by_itself].sum())
        of = trace.grids[grid] if grid >= 0 else ""
        found.append(KernelGroup(trace.names[name], of, len(same), len(by_itself), ns))
    return tuple(sorted(found, key=lambda group: (-group.alone_ns, group.name, group.grid))[:MAX_WORK_NAMES])


def _largest_inputs(trace: Trace) -> dict[str, Sizes]:
    found: dict[str, Sizes] = {}
    for shape in trace.shapes.shapes if trace.shapes is not None else ():
        sizes = tuple(tensor.sizes for tensor in shape.tensors if tensor is not None)
        if sizes and elements(sizes) > elements(found.get(shape.operator, ())):
            found[shape.operator] = sizes
    return found


def elements(sizes: Sizes) -> int:
    """Of all tensors together."""
    return sum(prod(of_one) for of_one in sizes)


def _operator_groups(trace: Trace) -> tuple[KernelGroup, ...]:
    names, self_ns = operator_calls(trace)
    found = []
    for same in groups(names):
        name, calls = trace.names[names[same[0]]], len(same)
        if not COMMUNICATION_NAME.match(name):
            found.append(KernelGroup(name, "", calls, calls, calls * int(np.quantile(self_ns[same], 0.25))))
    return tuple(sorted(found, key=lambda group: (-group.alone_ns, group.name))[:MAX_WORK_NAMES])


def _most_launches(trace: Trace) -> OperatorStats | None:
    """The operator within which most calls launch work, with their number and time. Of those that are open, the last
    one that began on the thread of the call."""
    events = trace.events
    operators = np.flatnonzero(events.kind == EventKind.CPU_OP)
    calls = np.flatnonzero((events.kind == EventKind.RUNTIME) & (events.correlation >= 0))
    if not len(operators) or not len(calls):
        return None
    later = int(events.end.max()) + 1
    keys = events.thread[operators] * np.int64(later) + events.start[operators]
    order = np.argsort(keys, kind="stable")
    operators, keys = operators[order], keys[order]
    at = np.searchsorted(keys, events.thread[calls] * np.int64(later) + events.start[calls], side="right") - 1
    around = operators[at]
    inside = (at >= 0) & (events.thread[around] == events.thread[calls]) & (events.start[calls] < events.end[around])
    names = events.name[around[inside]]
    counts = np.bincount(names, minlength=len(trace.names))
    most = int(counts.argmax())
    ns = int((events.end - events.start)[calls[inside]][names == most].sum())
    return OperatorStats(trace.names[most], int(counts[most]), ns) if counts[most] else None


def _gradient_reductions(trace: Trace, steps: StepTable, communication: Events) -> Int64:
    """By the forward passes of DistributedDataParallel: all-reduces of a pass are those before the next one."""
    found, annotations = np.zeros(len(steps), dtype=np.int64), trace.annotations
    passes = np.sort(annotations.start[matching_names(trace, DDP_FORWARD)[annotations.name]])
    if not len(passes):
        return found
    reduces = matching_names(trace, ALL_REDUCE)
    events = communication[
        np.where(communication.collective >= 0, reduces[communication.collective], reduces[communication.name])
    ]
    launched = launch_times(trace, events) if len(steps.work) else events.start
    pass_of, step_of_pass = np.searchsorted(passes, launched, side="right") - 1, steps.step_of(passes)
    calls = np.bincount(pass_of[pass_of >= 0], minlength=len(passes))
    sizes = np.bincount(
        pass_of[pass_of >= 0], weights=events.message_bytes[pass_of >= 0].astype(np.float64), minlength=len(passes)
    )
    for step in range(len(steps)):
        of_step = step_of_pass == step
        if of_step.sum() > 1 and calls[of_step].min() > 0 and np.ptp(calls[of_step]) == np.ptp(sizes[of_step]) == 0:
            found[step] = of_step.sum()
    return found


def _compute_work(trace: Trace, steps: StepTable) -> tuple[OperatorStats, ...]:
    if not len(steps.work):
        operators = operators_by_self_time(trace)
        return tuple(op for op in operators if not COMMUNICATION_NAME.match(op.name))[:MAX_WORK_NAMES]
    work = steps.work[steps.work_step != NO_STEP]
    return kernels_by_time(trace, work[device_work_types(trace, work) == KernelType.COMPUTE])[:MAX_WORK_NAMES]


def _collectives(trace: Trace, steps: StepTable, lanes: CategorySpans, events: Events) -> CollectiveTable:
    """Collectives other than sends and receives, which are launched within a step."""
    launched = launch_times(trace, events) if len(steps.work) else events.start
    step = steps.step_of(launched)
    labels: dict[str, int] = {}
    names = np.full(len(trace.names) + 1, -1, dtype=np.int64)
    label_of = np.empty(len(events), dtype=np.int64)
    for same in groups(events.name * (len(trace.names) + 1) + events.collective + 1) if len(events) else []:
        name = collective_name(trace, events[same])
        label_of[same] = labels.setdefault(name, len(labels))
    label_of[is_transfer(trace, events)] = -1
    keep = np.flatnonzero((step >= 0) & (label_of >= 0)) if len(events) else np.empty(0, dtype=np.int64)
    keep = keep[np.argsort(launched[keep], kind="stable")][:MAX_COLLECTIVES]
    events, step, label_of, launched = events[keep], step[keep], label_of[keep], launched[keep]
    block = _fsdp_blocks(trace, launched, labels)
    for code in np.unique(events.group[events.group >= 0]).tolist():
        names[code] = labels.setdefault(f"group {trace.names[code]}", len(labels))
    # Without a recorded group, collectives of one name belong together.
    group = np.where(events.group >= 0, names[events.group], label_of)
    ordinal = np.zeros(len(events), dtype=np.int64)
    for same in groups(group * (len(steps) + 1) + step):
        ordinal[same] = np.arange(len(same))
    exposed = lanes.exposed if len(events) else EMPTY
    return CollectiveTable(
        labels=tuple(labels),
        group=group,
        step=steps.numbers[step],
        ordinal=ordinal,
        name=label_of,
        start=events.start,
        end=events.end,
        exposed_ns=covered_within(exposed, events.spans),
        message_bytes=events.message_bytes,
        block=block,
    )


def _fsdp_blocks(trace: Trace, launched: Int64, labels: dict[str, int]) -> Int64:
    """The block in whose annotation each collective was launched, as a position in `labels`; -1: in none."""
    annotations = trace.annotations
    blocks = {
        code: found["block"] or FSDP_ROOT
        for code, name in enumerate(trace.names)
        if (found := FSDP_COLLECTIVE.match(name))
    }
    annotations = annotations[np.isin(annotations.name, list(blocks))]
    if not len(annotations) or not len(launched):
        return np.full(len(launched), -1, dtype=np.int64)
    annotations = annotations[np.argsort(annotations.start, kind="stable")]
    at = np.maximum(np.searchsorted(annotations.start, launched, side="right") - 1, 0)
    inside = (annotations.start[at] <= launched) & (launched <= annotations.end[at])
    codes = np.array(
        [labels.setdefault(blocks[code], len(labels)) for code in annotations.name.tolist()], dtype=np.int64
    )
    return np.where(inside, codes[at], -1)


def _pipeline_stage(trace: Trace, communication: Events, group: ProcessGroup | None) -> int | None:
    """The rank's position in the group of its sends and receives; None without any."""
    if trace.rank is None or not is_transfer(trace, communication).any():
        return None
    return trace.rank if group is None else group.ranks.index(trace.rank)


def _before_pipeline_ms(
    trace: Trace, steps: StepTable, lanes: CategorySpans, transfers: TransferTable
) -> NDArray[np.float64]:
    """Per step the compute that the host launches before the first forward pass.

    A stage that begins with a receive has nothing to compute before it. The first stage sends the result of the first
    forward pass, then that of the second one: what is launched before the first send beyond that is not of the pass.
    """
    if not len(transfers.called):
        return np.zeros(len(steps))
    compute = lanes[TimeCategory.COMPUTE]
    work = steps.work[device_work_types(trace, steps.work) == KernelType.COMPUTE] if len(steps.work) else steps.work
    launched = launch_times(trace, work)

    def computed_ns(start: int, end: int) -> int:
        """The compute that is launched between two times, on the CPU that within them."""
        found = (launched >= start) & (launched < end)
        spans = union(work.spans[found]) if len(steps.work) else Spans(np.array([start]), np.array([end]))
        return int(covered_within(compute, spans).sum())

    sends = np.isin(np.arange(len(transfers.called)), transfers.event[transfers.sends])
    receives = np.isin(np.arange(len(transfers.called)), transfers.event[~transfers.sends])
    step = steps.step_of(transfers.called)
    found = np.zeros(len(steps))
    for i in range(len(steps)):
        of_step = np.flatnonzero(step == i)  # by the time of the call
        if len(of_step) and receives[of_step[0]] and not sends[of_step[0]]:
            found[i] = computed_ns(int(steps.annotated.start[i]), int(transfers.called[of_step[0]]))
        elif len(of_step) > 1 and sends[of_step[0]]:
            first, second = transfers.called[of_step[:2]].tolist()
            found[i] = max(computed_ns(int(steps.annotated.start[i]), first) - computed_ns(first, second), 0)
    return found / 1e6
