"""One step of each rank over time: what it spends the step on, its compute, communication and copies, and where the
causes of the verdicts lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from muster.tracing.account.step_slots import STEP_SLOTS
from muster.tracing.analysis.headline import USE_NAMES, use_of
from muster.tracing.analysis.run_analysis import Report
from muster.tracing.analysis.summary import LabelledTrace
from muster.tracing.formatting import format_percent, format_seconds
from muster.tracing.page.account_section import STYLES, marked_run
from muster.tracing.page.bars import BarChart, BarLane, BarPart, BarRow, Mark, level_paths, time_axis
from muster.tracing.ranks.step_account import RankSlots, Use
from muster.tracing.work.operator_stats import short_name
from muster.tracing.work.timelines import StepTimeline
from muster.tracing.work.work_kinds import TimeCategory

MAX_TIMELINES = 16
CATEGORY_NAMES = {
    TimeCategory.COMPUTE: "compute",
    TimeCategory.OPTIMIZER: "optimizer",
    TimeCategory.COMMUNICATION: "communication",
    TimeCategory.MEMORY: "memory copies",
    TimeCategory.DATA: "loading data",
}


def timeline_chart(report: Report) -> BarChart | None:
    """A timeline of one step per rank; None for traces without steps."""
    step = report.timeline_step
    timelines = [(row, t) for row in report.traces for t in row.trace.timelines if t.step == step]
    different_steps = False
    if len(timelines) < len(report.traces):
        # Traces of different jobs have no common step: show one step of each.
        timelines = [(row, _median_timeline(row, step)) for row in report.traces if row.trace.timelines]
        different_steps = len({t.step for _, t in timelines}) > 1
    if not timelines:
        return None
    count = len(timelines)
    timelines = _select(timelines, {rank for verdict in report.verdicts for rank in verdict.ranks})
    more = f" {len(timelines)} of {count} traces are shown." if len(timelines) < count else ""
    length, ticks = time_axis(max(t.duration_s for _, t in timelines))
    slots = {} if report.account is None else {slotted.rank: slotted for slotted in report.account.slots}
    marks = _marks(report, length)
    rows = []
    for row, timeline in timelines:
        slotted = slots.get(row.trace.rank or 0) if not different_steps else None
        lanes = [] if slotted is None else [_account_lane(slotted, marks.get(slotted.rank, ()), length)]
        lanes += _work_lanes(timeline, 100 * timeline.duration_s / length)
        label = f"{row.label}, step {timeline.step}" if different_steps else row.label
        note = _note(timeline)
        rows.append(BarRow(label, tuple(lanes), note, f"{label}: {note}"))
    return BarChart(
        title="Timeline" + ("" if different_steps else f" of step {step}"),
        rows=tuple(rows),
        ticks=ticks,
        legend=_legend([t for _, t in timelines], list(slots.values())),
        hint="One step of each rank, aligned at its start; clocks of different hosts are not compared. Paler colours "
        f"mean lower utilisation. Frames mark what the causes above name.{more}",
    )


def _legend(timelines: Sequence[StepTimeline], slots: Sequence[RankSlots]) -> tuple[tuple[str, str], ...]:
    kinds = [kind for kind in CATEGORY_NAMES if any(kind.name.lower() in t.busy_levels for t in timelines)]
    named = {kind.name.lower(): CATEGORY_NAMES[kind] for kind in kinds}
    present = {use for slotted in slots for use, _, _ in slotted.runs()}
    for use in Use:
        if use in present and use not in (Use.WAITING, Use.TRANSFER):
            named.setdefault(STYLES[use], USE_NAMES[use])
    if present & {Use.WAITING, Use.TRANSFER}:
        named.setdefault("waiting", "communication and waiting, nothing computes")
    return tuple(named.items())


def _account_lane(slotted: RankSlots, marks: Sequence[Mark], length: float) -> BarLane:
    width = 100 * slotted.ms / 1e3 / length
    bars = tuple(
        BarPart(
            STYLES[use],
            width * start / STEP_SLOTS,
            width * (end - start) / STEP_SLOTS,
            f"{USE_NAMES[use]}: {format_seconds(slotted.ms / 1e3 * (end - start) / STEP_SLOTS)}",
        )
        for use, start, end in slotted.runs()
    )
    return BarLane("step", bars=bars, marks=tuple(marks))


def _marks(report: Report, length: float) -> Mapping[int, list[Mark]]:
    """By rank the frames of the verdicts that blame a span of its step."""
    found: dict[int, list[Mark]] = {}
    if report.account is None:
        return found
    for number, verdict in enumerate(report.verdicts, 1):
        run = marked_run(report.account, verdict)
        if run is None:
            continue
        slotted, start, end = run
        scale = 100 * slotted.ms / 1e3 / length / STEP_SLOTS
        label = short_name(verdict.place) or USE_NAMES[use_of(verdict.cause)]
        mark = Mark(f"span-{number}", scale * start, scale * (end - start), label, f"#cause-{number}")
        found.setdefault(slotted.rank, []).append(mark)
    return found


def _select(
    timelines: list[tuple[LabelledTrace, StepTimeline]], named: AbstractSet[int | None]
) -> list[tuple[LabelledTrace, StepTimeline]]:
    """At most `MAX_TIMELINES`, in their order: those of the ranks named in verdicts first, then spread evenly."""
    count = len(timelines)
    spread = [i * count // MAX_TIMELINES for i in range(MAX_TIMELINES)] if count > MAX_TIMELINES else range(count)
    wanted = [i for i, (row, _) in enumerate(timelines) if row.trace.rank in named] + list(spread)
    return [timelines[i] for i in sorted(list(dict.fromkeys(wanted))[:MAX_TIMELINES])]


def _median_timeline(row: LabelledTrace, step: int | None) -> StepTimeline:
    timelines = row.trace.timelines
    wanted = next((t for t in timelines if t.step == step), None)
    return wanted or sorted(timelines, key=lambda t: (t.duration_s, t.step))[(len(timelines) - 1) // 2]


def _work_lanes(timeline: StepTimeline, width: float) -> list[BarLane]:
    def lane(name: str, *kinds: TimeCategory) -> list[BarLane]:
        styles = [kind.name.lower() for kind in kinds if kind.name.lower() in timeline.busy_levels]
        layers = tuple((style, level_paths(timeline.busy_levels[style])) for style in styles)
        return [BarLane(name, layers=layers, width=width)] if layers else []

    return [
        *lane("compute", TimeCategory.COMPUTE, TimeCategory.OPTIMIZER),
        *lane("comm.", TimeCategory.COMMUNICATION),
        *lane("copies", TimeCategory.MEMORY),
        *lane("data", TimeCategory.DATA),
    ]


def _note(timeline: StepTimeline) -> str:
    duration = format_seconds(timeline.duration_s)
    if timeline.communication_s <= 0:
        return duration
    part = format_percent(timeline.overlapped_s / timeline.communication_s)
    return f"{duration}, communication {format_seconds(timeline.communication_s)}, {part} of it overlapped"
