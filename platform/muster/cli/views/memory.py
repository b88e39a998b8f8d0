"""The output of `muster memory`: advice, a row per rank, who holds the highest peak, failed allocations, growth."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from muster.text import pluralize
from muster.tracing.formatting import format_bytes, format_percent, format_seconds
from muster.tracing.memory import MemoryReport, RankMemory, describe_advice
from muster.tracing.memory.advice import capitalize
from muster.tracing.memory.memory_report import Change, RankChanges
from muster.tracing.memory.memory_text import allocator_sentence, category_name, report_sentences, stack_name
from muster.tracing.memory.rank_memory import rank_name

_MAX_PLACES = 12
_MAX_STACKS = 3
_MAX_CATEGORIES = 3
_MAX_CHANGES = 10


def memory_tables(report: MemoryReport) -> RenderableType:
    """The report for a terminal; the details are of the rank with the highest peak."""
    parts: list[RenderableType] = [Text(f"{report.name}: {_head(report)}", style="bold")]
    parts += [Text(f" • {sentence}") for sentence in report_sentences(report)]
    parts += [Text(f" • {describe_advice(advice)}") for advice in report.advice]
    parts += [Text(), _ranks(report.ranks)]
    highest = max(report.ranks, key=lambda rank: (rank.peak.in_use_bytes, rank.label))
    parts += [Text(f"\n{capitalize(highest.name)} at its peak", style="bold"), _places(highest), *_stacks(highest)]
    parts += _allocator(highest)
    for changes in report.changes:
        parts += _changes(changes)
    parts += [Text(f"skipped: {one.file}: {one.reason}") for one in report.skipped]
    return Group(*parts)


def _head(report: MemoryReport) -> str:
    head = f"memory of {pluralize(len(report.ranks), 'rank')}"
    steps = {rank.steps for rank in report.ranks}
    if len(steps) == 1 and (window := steps.pop()) is not None:
        head += f", steps {window[0]} to {window[1] - 1}"
    return head


def _ranks(ranks: tuple[RankMemory, ...]) -> Table:
    table = _table("rank", "peak", "at", "reserved", "unused")
    table.add_column("most of the peak")
    for rank in ranks:
        parts = sorted(rank.peak.by_category.items(), key=lambda item: (-item[1], item[0]))
        table.add_row(
            rank.label,
            format_bytes(rank.peak.in_use_bytes),
            format_seconds(rank.peak.at_s),
            format_bytes(rank.fragmentation.peak_reserved_bytes),
            format_bytes(rank.fragmentation.unused_bytes),
            ", ".join(f"{category_name(category)} {format_bytes(held)}" for category, held in parts[:_MAX_CATEGORIES]),
        )
    return table


def _places(rank: RankMemory) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    for name in ("bytes", "part", "count"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("category", no_wrap=True)
    table.add_column("place", overflow="fold")
    for holder in rank.peak.by_place[:_MAX_PLACES]:
        table.add_row(
            format_bytes(holder.bytes),
            format_percent(holder.bytes / max(rank.peak.in_use_bytes, 1)),
            f"{holder.allocations:,}",
            category_name(holder.category),
            Text(holder.place or "(no stack)"),
        )
    return table


def _stacks(rank: RankMemory) -> list[Text]:
    stacks = [holder for holder in rank.peak.by_stack if holder.frames][:_MAX_STACKS]
    if not stacks:
        return []
    lines = [
        Text(f"  {format_bytes(h.bytes)} {category_name(h.category)}: {stack_name(h.place, h.program_frames)}")
        for h in stacks
    ]
    return [Text("Its largest stacks", style="bold"), *lines]


def _allocator(rank: RankMemory) -> list[Text]:
    return [
        Text(f"\nAllocator of {rank.name} at the end", style="bold"),
        Text(f"  {allocator_sentence(rank.allocator)}"),
    ]


def _changes(changes: RankChanges) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Text(f"\n{capitalize(rank_name(changes.label))}: what changed", style="bold"),
        Text(
            f"  peak {format_bytes(changes.peak_before_bytes)} → {format_bytes(changes.peak_after_bytes)}, reserved"
            f" {format_bytes(changes.reserved_before_bytes)} → {format_bytes(changes.reserved_after_bytes)}, at the end"
            f" {format_bytes(changes.end_before_bytes)} → {format_bytes(changes.end_after_bytes)}"
        ),
    ]
    for title, found in (("at the peak", changes.at_peak), ("at the end", changes.at_end)):
        if found:
            parts += [Text(f"  {title}:"), _change_table(found)]
    return parts


def _change_table(changes: tuple[Change, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="bright_black")
    for name in ("change", "before", "after"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("category", no_wrap=True)
    table.add_column("stack", overflow="fold")
    for change in changes[:_MAX_CHANGES]:
        sign = "+" if change.grown_bytes > 0 else "-"
        table.add_row(
            f"{sign}{format_bytes(abs(change.grown_bytes))}",
            format_bytes(change.before_bytes),
            format_bytes(change.after_bytes),
            category_name(change.category),
            Text(stack_name(change.place, change.frames)),
        )
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
