"""Plain sentences about a run, each with its numbers, each only where the data shows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.tracing.analysis import TraceSummary
from muster.tracing.figures import digits, listed, percent, seconds
from muster.tracing.operators import Operator, merged, short_name
from muster.tracing.pauses import Pause, told, usual
from muster.tracing.rows import Row
from muster.tracing.runfolder import RunFolder, Skipped, finite
from muster.tracing.steps import Skew
from muster.tracing.untraced import untraced
from muster.tracing.work import Work

# A difference between ranks worth a sentence: this part of the step. Smaller ones change from run to run.
TELLING = 0.05
SLOW_STEP = 2.0  # times the median
NEGLIGIBLE = 0.005

SPENT = {
    Work.COMPUTE: "computing",
    Work.OPTIMIZER: "in the optimizer",
    Work.COMMUNICATION: "waiting for communication",
    Work.MEMORY: "copying memory",
    Work.DATA: "waiting for data",
    Work.OTHER: "outside of any operator (Python, or waiting)",
}


def findings_of(
    folder: RunFolder,
    rows: Sequence[Row],
    skews: Sequence[Skew],
    pauses: Sequence[Pause],
    skipped: Sequence[Skipped],
) -> tuple[str, ...]:
    """All sentences, the most general first."""
    traces = [row.trace for row in rows]
    sentences = [*_loss(folder), *_slow_steps(folder, pauses), *_pauses(folder, pauses), *_slow_rank(folder, pauses)]
    sentences += untraced(folder)
    if of_one_job(folder, traces):
        sentences += [
            *_where_time_goes(traces),
            *_overlap(traces),
            *_waiting_ranks(rows),
            *_idle_device(rows),
            *_data(rows),
            *_top(traces),
            *_skew(skews),
            *_missing(traces),
        ]
    else:
        sentences += [_alone(row) for row in rows]
    return (*sentences, *_skipped(skipped))


def of_one_job(folder: RunFolder, traces: Sequence[TraceSummary]) -> bool:
    """A bare folder may hold traces of different jobs: there each speaks for itself."""
    return bool(traces) and (folder.ours or len({(t.world_size, t.device, t.on_device) for t in traces}) == 1)


def _loss(folder: RunFolder) -> list[str]:
    for metrics in folder.metrics:
        known = np.flatnonzero(np.isfinite(metrics.loss))
        if not len(known):
            continue
        first, last = float(metrics.loss[known[0]]), float(metrics.loss[known[-1]])
        told = []
        if len(known) > 1:
            verb = "fell" if last < first else "rose" if last > first else "went"
            told.append(f"The loss {verb} from {digits(first)} to {digits(last)} over {len(metrics):,} steps.")
        # The trainer writes null for nan; before the first and after the last number nothing may have been written.
        holes = np.flatnonzero(~np.isfinite(metrics.loss[known[0] : known[-1] + 1])) + known[0]
        if len(holes):
            first_hole = metrics.step[holes[0]]
            told.append(f"The loss was not a finite number in {len(holes)} steps, first in step {first_hole}.")
        return told
    return []


def _slow_steps(folder: RunFolder, pauses: Sequence[Pause]) -> list[str]:
    for metrics in folder.metrics:
        if len(finite(metrics.step_time_s)) < 10:
            continue
        median = usual(metrics, metrics.step_time_s, pauses) or 0.0
        slow = np.flatnonzero(metrics.step_time_s > SLOW_STEP * median)
        if len(slow) == 1:
            step, took = metrics.step[slow[0]], metrics.step_time_s[slow[0]]
            why = " (it compiles)" if int(step) in _compiling(folder) else ""
            return [f"Step {step} took {seconds(took)}{why}, the median is {seconds(median)}."]
        if len(slow):
            named = listed([str(int(metrics.step[i])) for i in slow], most=5)
            extra = float((metrics.step_time_s[slow] - median).sum())
            several = f"{len(slow)} of {len(metrics):,} steps took more than twice the median of {seconds(median)}"
            return [f"{several}: steps {named}, together {seconds(extra)} longer."]
        return []
    return []


def _compiling(folder: RunFolder) -> set[int]:
    """The steps of which the trainer told that they compile: the first one of an attempt."""
    return {told.step + 1 for told in folder.happenings if told.kind == "compiling" and told.step is not None}


def _pauses(folder: RunFolder, pauses: Sequence[Pause]) -> list[str]:
    """What tracing took, where that is more than a small part of a step."""
    medians = [median for m in folder.metrics if (median := usual(m, m.step_time_s, pauses)) is not None]
    return told(pauses, TELLING * min(medians, default=0.0))


def _where_time_goes(traces: Sequence[TraceSummary]) -> list[str]:
    whole = sum(t.window_s for t in traces)
    if whole <= 0:
        return []
    parts = {kind: sum(t.work_s[kind.name.lower()] for t in traces) / whole for kind in Work}
    spent = {**SPENT, Work.OTHER: "idle"} if any(t.on_device for t in traces) else SPENT
    ordered = sorted(Work, key=lambda kind: (-parts[kind], kind))
    named = [f"{percent(parts[kind])} {spent[kind]}" for kind in ordered if parts[kind] >= NEGLIGIBLE]
    return [f"Of the traced time{', averaged over ranks' if len(traces) > 1 else ''}: {listed(named)}."]


def _overlap(traces: Sequence[TraceSummary]) -> list[str]:
    running, whole = sum(t.communication_s for t in traces), sum(t.window_s for t in traces)
    if running <= 0 or whole <= 0:
        return []
    hidden = sum(t.overlapped_s for t in traces) / running
    how = f"computation hides {percent(hidden)} of it" if hidden >= NEGLIGIBLE else "computation hides none of it"
    return [f"Communication runs {percent(running / whole)} of the time; {how}."]


def _waiting_ranks(rows: Sequence[Row]) -> list[str]:
    ordered = sorted(rows, key=lambda row: (row.trace.share(Work.COMMUNICATION), row.label))
    least, most = ordered[0], ordered[-1]
    if most.trace.share(Work.COMMUNICATION) - least.trace.share(Work.COMMUNICATION) < TELLING:
        return _waits(most, _capital(most.label))
    share = percent(least.trace.share(Work.COMMUNICATION))
    own = [row.trace.window_s * (1 - row.trace.share(Work.COMMUNICATION)) for row in (least, most)]
    sentence = f"{_capital(least.label)} waits least for communication, {share} of the time"
    if own[1] > 0 and own[0] / own[1] > 1 + TELLING:
        ratio = own[0] / own[1]
        longer = f"{percent(ratio - 1)} longer than" if ratio < 2 else f"{ratio:.1f} times as long as"
        waiting = "the other waits" if len(rows) == 2 else "the others wait"
        sentence += f": all else takes it {longer} it takes {most.label}, so {waiting} for it"
    return [*_waits(most, _capital(most.label)), f"{sentence}."]


def _waits(row: Row, who: str) -> list[str]:
    share = row.trace.share(Work.COMMUNICATION)
    exposed_ns = sum(collective.exposed_ns for collective in row.trace.collectives)
    if share < TELLING or not exposed_ns:
        return []
    first = row.trace.collectives[0]
    part = percent(first.exposed_ns / exposed_ns)
    return [f"{who} waits {percent(share)} of the time for communication, {part} of that in {first.name}."]


def _idle_device(rows: Sequence[Row]) -> list[str]:
    ordered = sorted(rows, key=lambda row: (row.trace.share(Work.OTHER), row.label))
    worst, idle = ordered[-1], ordered[-1].trace.share(Work.OTHER)
    if not worst.trace.on_device or idle < 2 * TELLING:
        return []
    alike = len(rows) > 1 and idle - ordered[0].trace.share(Work.OTHER) < TELLING
    told = (
        f"Each device is idle about {percent(idle)}"
        if alike
        else f"The device of {worst.label} is idle {percent(idle)}"
    )
    told += " of the traced time"
    busiest = min(worst.trace.idle, key=lambda stream: (stream.total_ns, stream.stream), default=None)
    if busiest is not None and busiest.host_wait_ns > 0.5 * busiest.total_ns:
        late = percent(busiest.host_wait_ns / busiest.total_ns)
        told += f"; {late} of the gaps on the busiest stream ({busiest.stream}) are there because the CPU launched late"
    return [f"{told}."]


def _data(rows: Sequence[Row]) -> list[str]:
    worst = max(rows, key=lambda row: (row.trace.share(Work.DATA), row.label))
    share = worst.trace.share(Work.DATA)
    return [f"{_capital(worst.label)} waits {percent(share)} of the time for data."] if share >= TELLING else []


def _top(traces: Sequence[TraceSummary]) -> list[str]:
    kernels = sum(t.kernels_s for t in traces)
    if kernels > 0:
        return _first("kernel", merged([t.kernels for t in traces]), kernels)
    return _first("operator", merged([t.operators for t in traces]), sum(t.operators_s for t in traces))


def _first(what: str, operators: Sequence[Operator], total_s: float) -> list[str]:
    if not operators or total_s <= 0:
        return []
    op = operators[0]
    part = percent(op.total_ns / 1e9 / total_s)
    calls = f"{op.calls:,} calls of {seconds(op.mean_ns / 1e9)}"
    return [f"Most {what} time goes to {short_name(op.name)}: {part}, in {calls}."]


def _alone(row: Row) -> str:
    trace = row.trace
    spent = {**SPENT, Work.OTHER: "idle"} if trace.on_device else SPENT
    ordered = sorted(Work, key=lambda kind: (-trace.share(kind), kind))
    parts = [f"{percent(trace.share(kind))} {spent[kind]}" for kind in ordered if trace.share(kind) >= NEGLIGIBLE]
    ratio = trace.overlap_ratio
    hidden = "" if ratio is None else f"; computation hides {percent(ratio)} of the communication"
    return f"{_capital(row.label)}: {listed(parts)}{hidden}."


def _slow_rank(folder: RunFolder, pauses: Sequence[Pause]) -> list[str]:
    """A rank whose steps take longer all through the run; collectives usually even this out."""
    measured = [m for m in folder.metrics if len(finite(m.step_time_s)) >= 10]
    medians = [(usual(m, m.step_time_s, pauses) or 0.0, m.rank) for m in measured]
    if len(medians) < 2:
        return []
    median, (slowest, rank) = float(np.median([m for m, _ in medians])), max(medians)
    if slowest < (1 + TELLING) * median:
        return []
    return [f"Steps of rank {rank} take {seconds(slowest)}, those of the median rank {seconds(median)}."]


def _skew(skews: Sequence[Skew]) -> list[str]:
    wide = [s for s in skews if s.spread > TELLING]
    if not wide:
        return []
    worst = max(wide, key=lambda s: (s.spread, s.step))
    range_s = f"{seconds(worst.fastest_s)} to {seconds(worst.slowest_s)}"
    return [f"In step {worst.step} the ranks took {range_s}; rank {worst.slowest_rank} was the slowest."]


def _missing(traces: Sequence[TraceSummary]) -> list[str]:
    worlds = {t.world_size for t in traces if t.world_size}
    ranks = {t.rank for t in traces if t.rank is not None}
    if len(worlds) != 1 or len(ranks) >= (world := worlds.pop()):
        return []
    return [f"There are traces of {len(ranks)} of {world} ranks; what is said of ranks is said of those."]


def _skipped(skipped: Sequence[Skipped]) -> list[str]:
    if not skipped:
        return []
    files = "1 file" if len(skipped) == 1 else f"{len(skipped)} files"
    return [f"{files} could not be used: {listed([s.file for s in skipped], most=4)}."]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
