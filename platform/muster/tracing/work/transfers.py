"""Sends and receives between two ranks: those of a rank, with the other rank, and the matching ones of all ranks.

The n-th send from a rank to another in a process group and step is the n-th receive there. Events say little about
their peer: with NCCL a kernel carries all transfers that were called since the kernel before it (`batch_isend_irecv`),
and gloo's annotations name none. So peers come from the calls of the host, or are the other rank of a group of two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.tracing.read.events import Events, Mask, ProcessGroup, Trace, TransferCalls
from muster.tracing.read.spans import Int64, Spans, covered_within
from muster.tracing.work.hta_breakdown import launch_times
from muster.tracing.work.steps import NO_STEP, StepTable

POINT_TO_POINT = re.compile(r"(nccl:|gloo:)?(send|recv)|.*SendRecv", re.IGNORECASE)
MAX_TRANSFERS = 20_000


@dataclass(frozen=True, slots=True)
class TransferTable:
    """The sends and receives of one rank in its steps.

    A transfer is (`event`: position of its event, `step`, `sends`, `peer`: global rank, `message_bytes`: -1 if
    unknown), in the order of the calls. Of each event, in nanoseconds since the origin: `called` is when the host
    called it or launched its kernel, `start` when it was posted, [`wait_start`, `end`) when the rank waited for it;
    `exposed_ns` is the time of it in which nothing computed.
    """

    group: str
    event: Int64
    step: Int64
    sends: Mask
    peer: Int64
    message_bytes: Int64
    called: Int64
    start: Int64
    wait_start: Int64
    end: Int64
    exposed_ns: Int64

    def events(self) -> dict[tuple[int, int], int]:
        """The event with each start and end."""
        return {both: event for event, both in enumerate(zip(self.start.tolist(), self.end.tolist(), strict=True))}

    def waits(self) -> dict[tuple[int, int], int]:
        """The event of each wait's start and end."""
        times = zip(self.wait_start.tolist(), self.end.tolist(), strict=True)
        return {both: event for event, both in enumerate(times)}


def is_transfer(trace: Trace, communication: Events) -> Mask:
    """Which events are sends or receives: by the recorded collective, else by name. NCCL's kernel of all-to-alls has
    the name of that of transfers."""
    if not len(communication):
        return np.zeros(0, dtype=bool)
    matching = np.array([POINT_TO_POINT.match(name) is not None for name in trace.names], dtype=bool)
    return np.where(communication.collective >= 0, matching[communication.collective], matching[communication.name])


def pipeline_group(trace: Trace, communication: Events) -> ProcessGroup | None:
    """The smallest process group that the rank's transfers use, as recorded, else by its description; None without
    transfers or known groups."""
    found = is_transfer(trace, communication)
    if trace.rank is None or not found.any():
        return None
    calls = trace.transfers
    codes = {*communication.group[found].tolist(), *(() if calls is None else calls.group.tolist())}
    used = {trace.names[code].split(" ")[0] for code in codes if code >= 0}
    selected = [group for group in trace.process_groups if trace.rank in group.ranks and len(group.ranks) > 1]
    named = [group for group in selected if group.name in used] or [
        g for g in selected if re.search("pp|pipe", g.description)
    ]
    return min(named or selected[:1], key=lambda group: len(group.ranks), default=None)


def transfer_table(
    trace: Trace, steps: StepTable, communication: Events, exposed: Spans, group: ProcessGroup | None
) -> TransferTable:
    """The transfers in `group` whose peers are known; `exposed` is when the rank communicates and computes nothing."""
    events = communication[is_transfer(trace, communication)]
    called = launch_times(trace, events) if len(steps.work) else events.start
    step = steps.step_of(called)
    keep = np.flatnonzero(step != NO_STEP)
    keep = keep[np.argsort(called[keep], kind="stable")][:MAX_TRANSFERS]
    events, called, step = events[keep], called[keep], step[keep]
    wait_start = events.start if len(steps.work) else _wait_start(events, exposed)
    calls, at = (
        _calls_of_kernels(trace, steps, called, step) if len(steps.work) else _calls_of_annotations(trace, events)
    )
    peer = np.full(len(at), -1, dtype=np.int64)
    if group is not None and trace.rank is not None:
        ranks = np.array(group.ranks, dtype=np.int64)
        known = (calls.peer >= 0) & (calls.peer < len(ranks))
        peer[known] = ranks[calls.peer[known]]
        named = np.array([code < 0 or trace.names[code] == group.name for code in calls.group.tolist()], dtype=bool)
        peer[~named] = -1
        if len(ranks) == 2:
            peer[(peer < 0) & named] = ranks[ranks != trace.rank][0]
    with_peer = peer >= 0
    at, peer, calls = at[with_peer], peer[with_peer], _select(calls, np.flatnonzero(with_peer))
    return TransferTable(
        group="" if group is None else group.name,
        event=at,
        step=steps.numbers[step[at]],
        sends=calls.sends,
        peer=peer,
        message_bytes=calls.message_bytes,
        called=called,
        start=events.start,
        wait_start=wait_start,
        end=events.end,
        exposed_ns=covered_within(exposed, Spans(wait_start, np.maximum(events.end, wait_start))),
    )


def _wait_start(events: Events, exposed: Spans) -> Int64:
    """On the CPU a transfer lasts until the host has waited for it: since when it did nothing else before the end."""
    if not len(exposed) or not len(events):
        return events.start
    at = np.searchsorted(exposed.start, events.end, side="left") - 1
    inside = (at >= 0) & (exposed.end[np.maximum(at, 0)] >= events.end)
    waiting: Int64 = np.where(inside, exposed.start[np.maximum(at, 0)], events.end)
    return np.maximum(events.start, waiting)


def _calls_of_kernels(trace: Trace, steps: StepTable, launched: Int64, step: Int64) -> tuple[TransferCalls, Int64]:
    """The calls, and the kernel that carries each one: the first one launched after it began, in its step."""
    calls = trace.transfers
    if calls is None or not len(launched):
        return _NO_CALLS, np.empty(0, dtype=np.int64)
    at = np.searchsorted(launched, calls.start, side="left")
    known = np.minimum(at, len(launched) - 1)
    keep = np.flatnonzero((at < len(launched)) & (steps.step_of(calls.start) == step[known]))
    return _select(calls, keep), known[keep].astype(np.int64)


def _calls_of_annotations(trace: Trace, events: Events) -> tuple[TransferCalls, Int64]:
    """A call for each event: the last one of its direction that began before it; without one its peer is unknown."""
    sends = np.array([name.lower().endswith("send") for name in trace.names], dtype=bool)[events.name]
    peer, group, size = np.full((3, len(events)), -1)
    calls = trace.transfers
    for direction in (True, False) if calls is not None else ():
        assert calls is not None
        of = np.flatnonzero(calls.sends == direction)
        at = np.searchsorted(calls.start[of], events.start, side="right") - 1
        selected = (sends == direction) & (at >= 0)
        which = of[at[selected]]
        peer[selected], group[selected], size[selected] = (
            calls.peer[which],
            calls.group[which],
            calls.message_bytes[which],
        )
    found = TransferCalls(events.start, events.end, sends, peer.astype(np.int32), group.astype(np.int32), size)
    return found, np.arange(len(events), dtype=np.int64)


def _select(calls: TransferCalls, which: NDArray[np.intp]) -> TransferCalls:
    return TransferCalls(*(getattr(calls, column)[which] for column in TransferCalls.__slots__))


_NO_CALLS = TransferCalls(
    *(np.empty(0, dtype=kind) for kind in (np.int64, np.int64, np.bool_, np.int32, np.int32, np.int64))  # type: ignore[arg-type]
)


@dataclass(frozen=True, slots=True)
class Peer:
    """The matching transfer's event of another record, which `sends`."""

    record: int
    event: int
    sends: bool


def match_transfers(
    ranks: Sequence[int], tables: Sequence[TransferTable], steps: Iterable[int]
) -> Mapping[tuple[int, int], tuple[Peer, ...]]:
    """By record and event the events of other records that transfer to or from it.

    Two ranks that disagree about the number of transfers between them in a step are left out in that step.
    """
    wanted = frozenset(steps)
    record_of = {rank: i for i, rank in enumerate(ranks)}
    ends: dict[tuple[str, int, int, int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for i, (rank, table) in enumerate(zip(ranks, tables, strict=True)):
        columns = (table.event.tolist(), table.step.tolist(), table.sends.tolist(), table.peer.tolist())
        for event, step, sends, peer in zip(*columns, strict=True):
            if step in wanted and peer in record_of:
                key = (table.group, step, rank, peer) if sends else (table.group, step, peer, rank)
                ends.setdefault(key, ([], []))[0 if sends else 1].append((i, event))
    found: dict[tuple[int, int], list[Peer]] = {}
    for sent, received in ends.values():
        if len(sent) == len(received):
            for one, other in zip(sent, received, strict=True):
                found.setdefault(one, []).append(Peer(*other, sends=False))
                found.setdefault(other, []).append(Peer(*one, sends=True))
    return {key: tuple(peers) for key, peers in found.items()}
