"""The ranks of one job side by side: steps and collectives matched, clocks aligned, waits measured.

The n-th collective of a process group within a step is the same one on all ranks. Its ranks end at almost the same
time, which gives the difference of their clocks; the last rank to enter is the one that the others wait for. Ranks
that only send to each other are compared by their fastest transfers in both directions, as NTP compares clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from muster.text import format_duration
from muster.tracing.account.rank_record import RankRecord
from muster.tracing.read.events import PipelineSchedule
from muster.tracing.runs.compilation import SteadyCompilation
from muster.tracing.work.pipeline_bubble import PipelineBubble, pipeline_bubble
from muster.tracing.work.transfers import match_transfers

Matrix = NDArray[np.float64]
MAX_CLOCK_DIFFERENCE_NS = 60e9  # of hosts, unless their collectives end together
MAX_END_SPREAD = 0.01  # of a step: how far the ends of a collective are apart on ranks of one run
MIN_SAMPLES = 3  # collectives that two ranks share, or transfers in each direction, to compare their clocks


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What to subtract from a rank's times for those of the lowest rank, and the largest plausible error, in ns.

    The error is the 90th percentile of the distance of matched ends from their median, or half of the fastest round
    trip of two transfers; None without either.
    """

    rank: int
    offset_ns: float
    error_ns: float | None


@dataclass(frozen=True, slots=True)
class MatchedCollective:
    """One collective on all its ranks, in nanoseconds on a common clock.

    `awaited_rank` is the last to enter. Per rank: `entry_ns` is its entry on its own clock, `exposed_wait_ns` the part
    of its wait in which it computed nothing. `transfer_ns` is from the last entry to the end, `exposed_ns` the mean
    over ranks of the exposed time without waiting; `lasted_ns` and `waited_ns` are sums over ranks. `bus_gb_s` is
    NCCL's bus bandwidth. `block` is the module that FSDP gathers or reduces, empty for other collectives.
    """

    name: str
    step: int
    ranks: tuple[int, ...]
    awaited_rank: int
    entry_ns: tuple[int, ...]
    exposed_wait_ns: tuple[float, ...]
    transfer_ns: float
    exposed_ns: float
    message_bytes: int
    bus_gb_s: float | None
    lasted_ns: float
    waited_ns: float
    block: str = ""


@dataclass(frozen=True, slots=True)
class RankComparison:
    """The records of one job with the steps that all have, what they wait for, and their clocks."""

    records: tuple[RankRecord, ...]
    steps: tuple[int, ...]
    step_ms: float  # median over steps of the slowest rank
    collectives: tuple[MatchedCollective, ...]
    clocks: tuple[ClockOffset, ...]
    compiled: tuple[SteadyCompilation, ...] = ()
    """What torch.compile did on the ranks after the first step, by the trainer's records."""

    @property
    def on_device(self) -> bool:
        return all(record.on_device for record in self.records)

    @property
    def in_pipeline(self) -> bool:
        """Whether each rank has a stage of a pipeline, and there are several."""
        return len({record.stage for record in self.records} - {None}) > 1 and all(
            record.stage is not None for record in self.records
        )

    def peers(self, record: RankRecord) -> list[RankRecord]:
        """The other ranks that do the same work: those of the same pipeline stage."""
        return [other for other in self.records if other.rank != record.rank and other.stage == record.stage]

    def others(self, record: RankRecord) -> list[RankRecord]:
        """The ranks to compare one with: those that do the same work, without any all others."""
        return self.peers(record) or [other for other in self.records if other is not record]

    def inner_stages(self, record: RankRecord) -> list[RankRecord]:
        """For a rank of an inner pipeline stage those of the other inner stages: without embedding and loss."""
        stages = {other.stage for other in self.records if other.stage is not None}
        inner = stages - {min(stages), max(stages)} if stages else stages
        others = inner - {record.stage} if record.stage in inner else set()
        return [other for other in self.records if other.stage in others]

    def per_step(self, record: RankRecord, values: Matrix) -> Matrix:
        """A rank's values of the common steps."""
        return values[np.isin(record.steps, self.steps)]

    def pipeline_bubble(self) -> PipelineBubble | None:
        """The bubble in the steps that all ranks have; None unless all ranks are in a pipeline of one schedule."""
        found = [record.pipeline for record in self.records if record.pipeline is not None]
        schedules = {phase.schedule for phase in found}
        if len(found) < len(self.records) or len(schedules) != 1:
            return None
        schedule = schedules.pop() or transferred_schedule(self.records, self.steps)
        if schedule is None:
            return None
        common = [np.isin(record.steps, self.steps) for record in self.records]
        return pipeline_bubble(
            [
                replace(phase, phase_ms=phase.phase_ms[which], compute_ms=phase.compute_ms[which])
                for phase, which in zip(found, common, strict=True)
            ],
            schedule,
        )


def compare_ranks(records: Sequence[RankRecord], compiled: Sequence[SteadyCompilation] = ()) -> RankComparison | None:
    """Compare the ranks; None without a step that all have."""
    ordered = sorted(records, key=lambda record: record.rank)
    if not ordered:
        return None
    common = set.intersection(*(set(record.steps.tolist()) for record in ordered))
    if not common:
        return None
    steps = tuple(sorted(common))
    longest = np.max([record.step_ms[np.isin(record.steps, steps)] for record in ordered], axis=0)
    rows = match_collectives(ordered, common)
    clocks = _clock_offsets(ordered, rows, common)
    matched = tuple(_measure(ordered, members, clocks) for members in rows)
    return RankComparison(tuple(ordered), steps, float(np.median(longest)), matched, clocks, tuple(compiled))


def transferred_schedule(records: Sequence[RankRecord], steps: Sequence[int]) -> PipelineSchedule | None:
    """The schedule of a pipeline with one stage on each rank, by its transfers: what the first stage sends in a step
    are its micro-batches. None if ranks are missing, or the last stage sends to the first."""
    stages = sorted({-1 if record.stage is None else record.stage for record in records})
    peers = {record.stage: set(record.transfers.peer.tolist()) for record in records}
    looped = len(stages) > 2 and any(record.stage == stages[-1] and record.rank in peers[0] for record in records)
    known = {record.rank for record in records}
    if len(stages) < 2 or stages != list(range(len(stages))) or looped or any(p - known for p in peers.values()):
        return None
    table = next(record.transfers for record in records if record.stage == 0)
    sent = [table.message_bytes[table.sends & (table.step == step)].tolist() for step in steps]
    micro_batches = int(np.median([max(map(sizes.count, sizes), default=0) for sizes in sent]))
    if not micro_batches:
        return None
    ideal = (len(stages) - 1) / (micro_batches + len(stages) - 1)
    return PipelineSchedule("1F1B or GPipe", len(stages), micro_batches, ideal)


def different_runs(ranks: RankComparison) -> str:
    """Which rank is of another run than the first one, and why; empty if all can be of one run.

    It was traced at another time, and its collectives do not end together with those of the first rank: no difference
    of the clocks of two hosts explains both.
    """
    first, *others = ranks.records
    base = first.origin_us * 1000
    for record, clock in zip(others, ranks.clocks[1:], strict=True):
        shift = record.origin_us * 1000 - base
        later = shift + float(record.windows.start[0] - first.windows.end[-1])
        earlier = float(first.windows.start[0] - record.windows.end[-1]) - shift
        if max(later, earlier) < MAX_CLOCK_DIFFERENCE_NS:
            continue
        if clock.error_ns is None or clock.error_ns > MAX_END_SPREAD * ranks.step_ms * 1e6:
            when = f"{format_duration(max(later, earlier) / 1e9)} {'after' if later > 0 else 'before'}"
            return f"rank {record.rank} is {when} rank {first.rank}"
    return ""


def match_collectives(records: Sequence[RankRecord], steps: set[int]) -> list[dict[int, int]]:
    """For each collective that several ranks have: the position of the record to the row in its table.

    A group whose ranks disagree about the number of its collectives in a step is left out in that step.
    """
    found: dict[tuple[str, int], dict[int, list[int]]] = {}
    for i, record in enumerate(records):
        table = record.collectives
        for row, (group, step) in enumerate(zip(table.group.tolist(), table.step.tolist(), strict=True)):
            if step in steps:
                found.setdefault((table.labels[group], step), {}).setdefault(i, []).append(row)
    matched: list[dict[int, int]] = []
    for rows in found.values():
        if len(rows) > 1 and len({len(of_rank) for of_rank in rows.values()}) == 1:
            matched += [dict(zip(rows, members, strict=True)) for members in zip(*rows.values(), strict=True)]
    return matched


def _clock_offsets(
    records: Sequence[RankRecord], rows: Sequence[dict[int, int]], steps: set[int]
) -> tuple[ClockOffset, ...]:
    """By the ends of matched collectives, from the lowest rank over all ranks that share collectives with it; then by
    transfers."""
    differences: dict[tuple[int, int], list[float]] = {}
    for members in rows:
        first, *others = sorted(members)
        for other in others:
            differences.setdefault((first, other), []).append(
                _absolute(records[other], int(records[other].collectives.end[members[other]]))
                - _absolute(records[first], int(records[first].collectives.end[members[first]]))
            )
    by_collectives: dict[tuple[int, int], tuple[float, float]] = {}
    for pair, values in differences.items():
        if len(values) >= MIN_SAMPLES:
            middle = float(np.median(values))
            by_collectives[pair] = middle, float(np.quantile(np.abs(np.array(values) - middle), 0.9))
    offsets: dict[int, tuple[float, float]] = {0: (0.0, 0.0)} if records else {}
    for pairs in (by_collectives, {**_by_transfers(records, steps), **by_collectives}):
        for _ in records:  # at most one step from a known rank to the next in each round
            for (a, b), (middle, error) in pairs.items():
                if (a in offsets) != (b in offsets):
                    known, new, sign = (a, b, 1) if a in offsets else (b, a, -1)
                    base, base_error = offsets[known]
                    offsets[new] = (base + sign * middle, base_error + error)
    return tuple(ClockOffset(record.rank, *offsets.get(i, (0.0, None))) for i, record in enumerate(records))


def _by_transfers(records: Sequence[RankRecord], steps: set[int]) -> dict[tuple[int, int], tuple[float, float]]:
    """For two ranks that send to each other, how far the second clock is ahead, and the error, which is larger than any
    difference that is not found."""
    tables = [record.transfers for record in records]
    delays: dict[tuple[int, int], list[float]] = {}
    for (receiver, event), peers in match_transfers([record.rank for record in records], tables, steps).items():
        for peer in peers:
            if peer.sends:
                sent = _absolute(records[peer.record], int(tables[peer.record].start[peer.event]))
                received = _absolute(records[receiver], int(tables[receiver].end[event]))
                delays.setdefault((peer.record, receiver), []).append(received - sent)
    found = {}
    for (a, b), there in delays.items():
        back = delays.get((b, a), [])
        if a < b and min(len(there), len(back)) >= MIN_SAMPLES:
            ahead, error = (min(there) - min(back)) / 2, (min(there) + min(back)) / 2
            found[a, b] = (0.0 if abs(ahead) <= error else ahead), max(error, 0.0)
    return found


def clock_shifts(records: Sequence[RankRecord], clocks: Sequence[ClockOffset]) -> Matrix:
    """What to add to the times of each record for nanoseconds on a common clock, from the first one's origin."""
    base = records[0].origin_us
    return np.array([(r.origin_us - base) * 1000 - c.offset_ns for r, c in zip(records, clocks, strict=True)])


def _absolute(record: RankRecord, ns: int) -> float:
    return record.origin_us * 1000 + ns


def _measure(
    records: Sequence[RankRecord], members: dict[int, int], clocks: Sequence[ClockOffset]
) -> MatchedCollective:
    order = sorted(members)
    tables = [(records[i].collectives, members[i]) for i in order]
    shift = clock_shifts([records[i] for i in order], [clocks[i] for i in order])
    entry = np.array([table.start[row] for table, row in tables]) + shift
    end = np.array([table.end[row] for table, row in tables]) + shift
    last = float(entry.max())
    duration = np.array([table.end[row] - table.start[row] for table, row in tables], dtype=np.float64)
    exposed = np.array([table.exposed_ns[row] for table, row in tables], dtype=np.float64)
    wait = np.minimum(last - entry, duration)
    transfer = max(float(np.median(end)) - last, 0.0)
    table, row = tables[0]
    name, message = table.labels[table.name[row]], int(table.message_bytes[row])
    return MatchedCollective(
        name=name,
        step=int(table.step[row]),
        ranks=tuple(records[i].rank for i in order),
        awaited_rank=records[order[int(entry.argmax())]].rank,
        entry_ns=tuple(int(table.start[row]) for table, row in tables),
        exposed_wait_ns=tuple(np.minimum(wait, exposed).tolist()),
        transfer_ns=transfer,
        exposed_ns=float(np.maximum(exposed - wait, 0).mean()),
        message_bytes=message,
        bus_gb_s=_bus_bandwidth(name, message, len(order), transfer),
        lasted_ns=float(duration.sum()),
        waited_ns=float(wait.sum()),
        block=table.labels[table.block[row]] if table.block[row] >= 0 else "",
    )


def _bus_bandwidth(name: str, message_bytes: int, ranks: int, transfer_ns: float) -> float | None:
    """NCCL's definition (nccl-tests/doc/PERFORMANCE.md): the traffic per rank that the algorithm needs, per second."""
    if message_bytes <= 0 or transfer_ns <= 0:
        return None
    factor = (2 if "reduce" in name.lower() and "scatter" not in name.lower() else 1) * (ranks - 1) / ranks
    return factor * message_bytes / transfer_ns
