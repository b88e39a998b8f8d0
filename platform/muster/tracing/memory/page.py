"""Renders a memory report as one self-contained HTML page, without scripts or network access.

Names of files and functions are not trusted: Jinja2 escapes all text in `templates/memory.html` except the charts,
which escape their own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from muster.text import pluralize
from muster.tracing.formatting import format_bytes, format_percent, format_seconds
from muster.tracing.memory.advice import capitalize, describe_advice
from muster.tracing.memory.categories import Category
from muster.tracing.memory.charts import AreaLayer, AreaPlot, segment_chart, stacked_area_chart
from muster.tracing.memory.memory_report import Change, MemoryReport
from muster.tracing.memory.memory_text import allocator_sentence, category_name, report_sentences, stack_name
from muster.tracing.memory.rank_memory import RankMemory, rank_name
from muster.tracing.memory.usage import Holder
from muster.tracing.page.html_report import NumberTable
from muster.tracing.shared_folder import SharedFolder

MAX_RANKS: Final = 8
MAX_ROWS: Final = 20


@dataclass(frozen=True, slots=True)
class RankSection:
    """The chart and the tables of a rank; `legend` has the CSS class and the name of each colour."""

    title: str
    chart: str
    legend: tuple[tuple[str, str], ...]
    segments: str
    segments_hint: str
    allocator: str
    holders: NumberTable
    stacks: tuple[tuple[str, str, tuple[str, ...]], ...]


def write_page(report: MemoryReport, path: Path) -> None:
    """Write the page, replacing an earlier one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    SharedFolder(path.parent).write(path.name, render_page(report).encode(), owner=f"memory-{os.getpid()}")


def render_page(report: MemoryReport) -> str:
    """The whole HTML document; charts of the ranks with the highest peaks, at most eight."""
    environment = Environment(
        loader=PackageLoader("muster.tracing.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    shown = sorted(report.ranks, key=lambda rank: (-rank.peak.in_use_bytes, rank.label))[:MAX_RANKS]
    text = environment.get_template("memory.html").render(
        report=report,
        facts=_facts(report),
        findings=[*map(describe_advice, report.advice), *report_sentences(report)],
        ranks=[_section(rank) for rank in shown],
        left_out=len(report.ranks) - len(shown),
        overview=_overview(report),
        changes=[
            (f"{capitalize(rank_name(one.label))} against {one.before}", _changes(one.at_peak), _changes(one.at_end))
            for one in report.changes
        ],
    )
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # lone surrogates of file names


def _facts(report: MemoryReport) -> list[tuple[str, str, str]]:
    highest = max(report.ranks, key=lambda rank: (rank.peak.in_use_bytes, rank.label))
    pieces = highest.fragmentation
    facts = [
        ("ranks", f"{len(report.ranks):,}", ""),
        ("highest peak", format_bytes(highest.peak.in_use_bytes), highest.name),
        ("reserved", format_bytes(pieces.peak_reserved_bytes), highest.name),
        ("unused at any time", format_bytes(pieces.unused_bytes), format_percent(pieces.unused_ratio)),
    ]
    if failures := sum(rank.out_of_memory_count for rank in report.ranks):
        facts.append(("out of memory", pluralize(failures, "failure"), ""))
    return facts


def _overview(report: MemoryReport) -> NumberTable:
    present = [category for category in Category if any(rank.peak.by_category.get(category) for rank in report.ranks)]
    return NumberTable(
        columns=("peak", "at", "reserved", "unused", *map(category_name, present)),
        rows=tuple(
            (
                rank.name,
                (
                    format_bytes(rank.peak.in_use_bytes),
                    format_seconds(rank.peak.at_s),
                    format_bytes(rank.fragmentation.peak_reserved_bytes),
                    format_bytes(rank.fragmentation.unused_bytes),
                    *(format_bytes(rank.peak.by_category.get(category, 0)) for category in present),
                ),
            )
            for rank in report.ranks
        ),
    )


def _section(rank: RankMemory) -> RankSection:
    present = [c for c in Category if any(c in point.by_category for point in rank.timeline)]
    return RankSection(
        title=f"{capitalize(rank.name)}: memory over time",
        chart=_chart(rank, present),
        legend=(*((f"m-{c}", category_name(c)) for c in present), ("m-reserved", "reserved (line)")),
        segments=segment_chart(rank.segments, f"Segments of {rank.name}"),
        segments_hint=(
            f"The {pluralize(len(rank.segments), 'largest segment')} at the"
            f" {'first failed allocation' if rank.out_of_memory else 'peak'}. What is not coloured is free."
        ),
        allocator=allocator_sentence(rank.allocator),
        holders=_holders(rank.peak.by_place, max(rank.peak.in_use_bytes, 1)),
        stacks=tuple(
            (format_bytes(holder.bytes), category_name(holder.category), holder.frames)
            for holder in rank.peak.by_stack[:MAX_ROWS]
            if holder.frames
        ),
    )


def _chart(rank: RankMemory, present: list[Category]) -> str:
    points = rank.timeline
    timed = rank.duration_s > 0

    def at(seconds: float, event: int) -> float:
        return seconds if timed else float(event + 1)

    hover = tuple(
        f"{format_seconds(p.at_s) if timed else f'event {p.event + 1:,}'}: {format_bytes(p.in_use_bytes)} in use of"
        f" {format_bytes(p.reserved_bytes)} reserved; "
        + ", ".join(f"{category_name(name)} {format_bytes(held)}" for name, held in p.by_category.items())
        for p in points
    )
    peak = rank.peak
    marks = [(at(peak.at_s, peak.event), f"peak {format_bytes(peak.in_use_bytes)}")]
    marks += [
        (at(failed.at_s, failed.event), f"out of memory: {format_bytes(failed.requested_bytes)}")
        for failed in rank.out_of_memory[:1]
    ]
    return stacked_area_chart(
        AreaPlot(
            title=f"Memory of {rank.name} over time, by category",
            x=tuple(at(point.at_s, point.event) for point in points),
            layers=tuple(
                AreaLayer(category_name(c), f"m-{c}", tuple(point.by_category.get(c, 0) for point in points))
                for c in present
            ),
            line=tuple(point.reserved_bytes for point in points),
            hover=hover,
            marks=tuple(marks),
            x_unit="" if timed else "event",
        )
    )


def _holders(holders: tuple[Holder, ...], total: int) -> NumberTable:
    return NumberTable(
        columns=("category", "bytes", "part", "allocations"),
        rows=tuple(
            (
                holder.place or "(no stack)",
                (
                    category_name(holder.category),
                    format_bytes(holder.bytes),
                    format_percent(holder.bytes / total),
                    f"{holder.allocations:,}",
                ),
            )
            for holder in holders[:MAX_ROWS]
        ),
    )


def _changes(changes: tuple[Change, ...]) -> NumberTable:
    return NumberTable(
        columns=("category", "change", "before", "after"),
        rows=tuple(
            (
                stack_name(change.place, change.frames),
                (
                    category_name(change.category),
                    f"{'+' if change.grown_bytes > 0 else '-'}{format_bytes(abs(change.grown_bytes))}",
                    format_bytes(change.before_bytes),
                    format_bytes(change.after_bytes),
                ),
            )
            for change in changes[:MAX_ROWS]
        ),
    )
