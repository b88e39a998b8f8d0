"""Sentences and names of a memory report, which terminal and page share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from muster.text import pluralize
from muster.tracing.formatting import format_bytes, format_percent, format_seconds
from muster.tracing.memory.advice import capitalize
from muster.tracing.memory.allocator import AllocatorState
from muster.tracing.memory.memory_report import MemoryReport
from muster.tracing.memory.rank_memory import RankMemory, rank_name

MAX_SHOWN_FRAMES: Final = 4


def category_name(category: str) -> str:
    """The name of a category for people."""
    return category.replace("_", " ")


def stack_name(place: str, frames: Sequence[str]) -> str:
    """The place of a stack and the lines of the program that led to it: `model.py:42 forward < train.py:9 main`.
    `frames` are `file:line:function`, innermost first."""
    callers = [" ".join(frame.rsplit("/", 1)[-1].rsplit(":", 1)) for frame in frames[:MAX_SHOWN_FRAMES]]
    return " < ".join([place or "(no stack)", *(caller for caller in callers if caller != place)])


def allocator_sentence(state: AllocatorState) -> str:
    """The final state of the allocator."""
    return (
        f"{format_bytes(state.reserved_bytes)} reserved in {pluralize(state.segments, 'segment')}:"
        f" {format_bytes(state.allocated_bytes)} allocated, {format_bytes(state.awaiting_free_bytes)} awaiting free,"
        f" {format_bytes(state.inactive_bytes)} inactive"
        f" ({format_bytes(state.inactive_split_bytes)} of it in segments in use;"
        f" largest piece {format_bytes(state.largest_free_bytes)})"
    )


def report_sentences(report: MemoryReport) -> Iterator[str]:
    """What the report says about all ranks, in sentences; advice is separate."""
    spread = report.spread
    if spread is not None and spread.above_bytes:
        highest, median = capitalize(rank_name(spread.highest)), rank_name(spread.median)
        part = format_percent(spread.above_bytes / max(spread.median_bytes, 1))
        yield (
            f"{highest} has the highest peak, {format_bytes(spread.highest_bytes)}: {part} above the median ({median},"
            f" {format_bytes(spread.median_bytes)}); most of the difference is {category_name(spread.category)},"
            f" {format_bytes(spread.category_bytes)}."
        )
    for rank in report.ranks:
        yield from _failures(rank)
    for rank in report.ranks:
        for note in rank.notes:
            yield f"{capitalize(rank.name)}: {note}."
    for note in report.notes:
        yield f"{note[:1].upper()}{note[1:]}."


def _failures(rank: RankMemory) -> Iterator[str]:
    for failed in rank.out_of_memory[:1]:
        times = (
            "" if rank.out_of_memory_count == 1 else f" (the first of {pluralize(rank.out_of_memory_count, 'failure')})"
        )
        piece = failed.largest_free_bytes
        largest = "" if piece is None else f", the largest free piece {format_bytes(piece)}"
        where = f" in {failed.place}" if failed.place else ""
        yield (
            f"{capitalize(rank.name)} ran out of memory after {format_seconds(failed.at_s)}{times}:"
            f" {format_bytes(failed.requested_bytes)} were requested{where}; the device had"
            f" {format_bytes(failed.device_free_bytes)} free, {format_bytes(failed.reserved_bytes)} were reserved, of"
            f" which {format_bytes(failed.in_use_bytes)} were in use{largest}."
        )
