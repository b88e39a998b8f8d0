"""The top of a report's page: the account of a typical step per rank, and what costs time."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from muster.tracing.analysis.headline import USE_NAMES, lowered, use_of
from muster.tracing.analysis.run_analysis import Report
from muster.tracing.efficiency.advice import efficiency_advice
from muster.tracing.formatting import format_list, format_percent, format_seconds
from muster.tracing.page.bars import BarChart, BarLane, BarRow, stacked, time_axis
from muster.tracing.ranks.step_account import RankSlots, StepAccount, StepRow, TimePart, Use
from muster.tracing.verdicts import Verdict, phrase_of
from muster.tracing.work.operator_stats import short_name

MAX_BARS = 16
STYLES = {
    Use.COMPUTE: "compute",
    Use.TRANSFER: "communication",
    Use.WAITING: "waiting",
    Use.STAGES: "waiting",
    Use.CHECKPOINT: "checkpoint",
    Use.COPY: "memory",
    Use.ALLOCATOR: "allocator",
    Use.GARBAGE: "garbage",
    Use.PREPROCESS: "preprocess",
    Use.DATA: "data",
    Use.COMPILE: "compile",
    Use.HOST: "host",
    Use.SYNC: "sync",
    Use.LAUNCH: "launch",
    Use.UNKNOWN: "other",
}
"""The CSS class of each use of time."""


@dataclass(frozen=True, slots=True)
class CauseRow:
    """Something that costs time: its colour, who and why, the cost of a step, how sure that is (empty: not known),
    evidence, what to try, and links (text, address) to where it shows."""

    anchor: str
    style: str
    title: str
    cost: str
    share: str
    confidence: str
    evidence: str
    advice: str
    links: tuple[tuple[str, str], ...] = ()


def account_chart(report: Report) -> BarChart | None:
    """A bar for each rank; of more than 16 those named in verdicts, and others spread evenly."""
    account = report.account
    if account is None:
        return None
    named = {rank for verdict in report.verdicts for rank in verdict.ranks}
    rows = select_rows(account.ranks, named)
    more = f" {len(rows)} of {len(account.ranks)} ranks are shown." if len(rows) < len(account.ranks) else ""
    steps = "The traced step" if account.steps == 1 else f"The mean of {account.steps} traced steps"
    without = f", without {account.longer_steps} much longer ones (below)" if account.longer_steps else ""
    hint = (
        f"{steps}{without}: every instant of a rank counts once. What is not compute is lost; communication beside "
        f"compute is compute.{more}"
    )
    return _chart("Where the time of a step goes", rows, [f"rank {row.rank}" for row in rows], hint)


def longer_chart(account: StepAccount | None) -> BarChart | None:
    """A bar for each step that took much longer than the others, on the rank that has a reason for it."""
    if account is None or not account.longer:
        return None
    shown = f" The {len(account.longer)} longest are shown." if len(account.longer) < account.longer_steps else ""
    hint = f"{account.longer_steps} of the traced steps took more than twice the median step.{shown}"
    labels = [f"step {row.step}, rank {row.rank}" for row in account.longer]
    return _chart("Steps that took much longer", account.longer, labels, hint)


def select_rows(rows: Sequence[StepRow], named: AbstractSet[int]) -> list[StepRow]:
    """At most `MAX_BARS` rows, in their order: those of named ranks first, then spread evenly."""
    count = len(rows)
    spread = [i * count // MAX_BARS for i in range(MAX_BARS)] if count > MAX_BARS else range(count)
    wanted = [i for i, row in enumerate(rows) if row.rank in named] + list(spread)
    return [rows[i] for i in sorted(list(dict.fromkeys(wanted))[:MAX_BARS])]


def _chart(title: str, rows: Sequence[StepRow], labels: Sequence[str], hint: str) -> BarChart:
    length, ticks = time_axis(max(row.ms for row in rows) / 1e3)
    present = [use for use in Use if any(row.of(use) >= 0.0015 * 1e3 * length for row in rows)]
    bars = tuple(
        BarRow(
            label=label,
            lanes=(BarLane(bars=stacked([_segment(row, part) for part in row.parts], 1e3 * length)),),
            note=f"{format_seconds(row.ms / 1e3)}, {format_percent(row.lost_ms / row.ms if row.ms else 0)} lost",
            description=describe_row(label, row),
        )
        for row, label in zip(rows, labels, strict=True)
    )
    return BarChart(title, bars, ticks, tuple((STYLES[use], USE_NAMES[use]) for use in present), hint)


def _segment(row: StepRow, part: TimePart) -> tuple[str, float, str, str]:
    share = format_percent(part.ms / row.ms) if row.ms else ""
    places = "".join(f"\n{place}: {format_seconds(ms / 1e3)}" for place, ms in part.places)
    return STYLES[part.use], part.ms, f"{USE_NAMES[part.use]}: {format_seconds(part.ms / 1e3)} ({share}){places}", share


def describe_row(label: str, row: StepRow) -> str:
    """A row as a sentence: `rank 0: 77.0 ms: compute 73.6 ms, copies 0.56 ms`."""
    parts = sorted(row.parts, key=lambda part: (-part.ms, part.use))
    named = ", ".join(f"{USE_NAMES[part.use]} {format_seconds(part.ms / 1e3)}" for part in parts[:6])
    return f"{label}: {format_seconds(row.ms / 1e3)}: {named}"


def cause_rows(report: Report) -> list[CauseRow]:
    """The verdicts, then the advice on the device's work."""
    account = report.account
    if account is None:
        return []
    rows = [_of_verdict(report, account, verdict, i + 1) for i, verdict in enumerate(report.verdicts)]
    for i, advice in enumerate(() if report.efficiency is None else efficiency_advice(report.efficiency)):
        what, _, rest = advice.sentence.partition(" (")
        rows.append(
            CauseRow(
                anchor=f"advice-{i + 1}",
                style="compute",
                title=what,
                cost=format_seconds(advice.ms / 1e3),
                share=f"{format_percent(advice.share)} of compute",
                confidence="",
                evidence="",
                advice=rest.partition("). ")[2],
                links=(("operators by shape", "#efficiency"),),
            )
        )
    return rows


def _of_verdict(report: Report, account: StepAccount, verdict: Verdict, number: int) -> CauseRow:
    ranks = [str(rank) for rank in verdict.ranks]
    who = f"Rank{'s' if len(ranks) > 1 else ''} {format_list(ranks)}" if ranks else "All ranks"
    who = f"{who} (stage {verdict.stage})" if verdict.stage is not None else who
    share = verdict.cost_ms / account.step_ms if account.step_ms else 0.0
    return CauseRow(
        anchor=f"cause-{number}",
        style=STYLES[use_of(verdict.cause)],
        title=f"{who}: {phrase_of(verdict.cause)}",
        cost=format_seconds(verdict.cost_ms / 1e3),
        share=f"{format_percent(share)} of a step" if share <= 2 else f"{share:.3g} times a step",
        confidence=f"confidence {verdict.confidence:.0%}",
        evidence=verdict.evidence[:1].upper() + verdict.evidence[1:],
        advice=lowered(verdict.advice.removeprefix("Try ")),
        links=tuple(_links(report, account, verdict, number)),
    )


def _links(report: Report, account: StepAccount, verdict: Verdict, number: int) -> list[tuple[str, str]]:
    """Where the cause shows: its span in the timeline, its annotation or operator, the kernels that it names."""
    links = []
    place = verdict.place
    if marked_run(account, verdict) is not None:
        links.append((f"in the timeline{f': {short_name(place)}' if place else ''}", f"#span-{number}"))
    if number == 1 and report.source_line:
        links.append((report.source_line, "#source"))
    for kind, operators in (("operator", report.operators), ("kernel", report.kernels)):
        for i, operator in enumerate(operators):
            if operator.name == place or (not place and short_name(operator.name) in verdict.evidence):
                links.append((f"{kind} {short_name(operator.name)}", f"#{kind}-{i + 1}"))
    return links[:5]


def marked_run(account: StepAccount, verdict: Verdict) -> tuple[RankSlots, int, int] | None:
    """The longest span in which a rank does what the verdict blames: the rank's step, the first and the end of its
    parts; None if it is too short to see, or everywhere."""
    use = use_of(verdict.cause)
    return None if use in (Use.COMPUTE, Use.TRANSFER) else account.longest_run(use, verdict.ranks)
