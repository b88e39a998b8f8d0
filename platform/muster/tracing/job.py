"""A whole job: its run folder and its traces, put together across ranks into one value, the `Report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from muster.errors import InvalidTrace
from muster.tracing.analysis import TraceSummary, Unreadable, summarise_files
from muster.tracing.facts import Facts, facts_of
from muster.tracing.findings import SLOW_STEP, findings_of
from muster.tracing.operators import Operator, merged
from muster.tracing.pauses import Pause, pauses_of, usual
from muster.tracing.recording import HOW_TO_TRACE
from muster.tracing.rows import Row, labelled, picture_step
from muster.tracing.runfolder import Float64, Metrics, RunFolder, Skipped, Window
from muster.tracing.scan import DEFAULT_LIMITS, Limits
from muster.tracing.steps import Skew, skew
from muster.tracing.untraced import untraced

LOSS_POINTS = 1200
STEP_TIME_POINTS = 300
MOST_SLOW_STEPS = 60


@dataclass(frozen=True, slots=True)
class Series:
    """A curve: parallel steps and values."""

    rank: int
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that took more than twice the usual time of its rank."""

    rank: int
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the page shows. `traced` are half-open step bounds.

    Long curves are thinned: `loss` to its extremes, `step_times` to medians of stretches of steps, beside which the
    slowest steps are kept as they are (`slow_steps`, at most 60, by time). `rows` hold one entry per trace of the
    newest window; `picture_step` is the step of the timeline, None without one; `skews` tell per traced step how far
    the ranks were apart; `pauses` what tracing took between steps. `page` is where it was written.
    """

    facts: Facts
    findings: tuple[str, ...]
    loss: Series | None
    step_times: tuple[Series, ...]
    slow_steps: tuple[SlowStep, ...]
    traced: tuple[int, int] | None
    rows: tuple[Row, ...]
    picture_step: int | None
    skews: tuple[Skew, ...]
    operators: tuple[Operator, ...]
    kernels: tuple[Operator, ...]
    skipped: tuple[Skipped, ...]
    pauses: tuple[Pause, ...] = ()
    page: str | None = None


def analyse(folder: RunFolder, *, name: str | None = None, workers: int = 1, limits: Limits = DEFAULT_LIMITS) -> Report:
    """The report without writing it."""
    window, summaries, unreadable = _newest_readable(folder, workers, limits)
    if not summaries and not folder.metrics:
        raise InvalidTrace(_nothing(folder, unreadable))
    rows = labelled(summaries)
    pauses = pauses_of(folder.metrics)
    facts = facts_of(folder, summaries, pauses, name=name)
    skews = skew({t.rank: t.step_s for t in summaries if t.rank is not None}) if folder.ours else ()
    skipped = (*folder.skipped, *(Skipped(_relative(folder.path, u.source), u.reason) for u in unreadable))
    report = Report(
        facts=facts,
        findings=(),
        loss=_loss(folder.metrics),
        step_times=tuple(_medians(m, m.step_time_s) for m in folder.metrics if np.isfinite(m.step_time_s).any()),
        slow_steps=_slow_steps(folder.metrics, pauses),
        traced=window.steps if window is not None else None,
        rows=rows,
        picture_step=picture_step(summaries),
        skews=skews,
        operators=merged([row.trace.operators for row in rows])[:30],
        kernels=merged([row.trace.kernels for row in rows])[:30],
        skipped=skipped,
        pauses=pauses,
    )
    return replace(report, findings=findings_of(folder, rows, skews, pauses, skipped))


def _newest_readable(
    folder: RunFolder, workers: int, limits: Limits
) -> tuple[Window | None, list[TraceSummary], list[Unreadable]]:
    """The newest window of which at least one trace can be read; what could not be is returned too."""
    unreadable: list[Unreadable] = []
    for window in folder.windows:
        found = summarise_files(window.files, workers=workers, limits=limits)
        # In a bare folder other JSON may lie about: what is no trace is nobody's loss.
        unreadable += [f for f in found if isinstance(f, Unreadable) and (f.trace or folder.ours)]
        summaries = [f for f in found if isinstance(f, TraceSummary)]
        if summaries:
            return window, sorted(summaries, key=lambda t: (t.rank is None, t.rank or 0, t.source)), unreadable
    return None, [], unreadable


def _nothing(folder: RunFolder, unreadable: Sequence[Unreadable]) -> str:
    broken = [f"{Path(u.source).name} ({u.reason})" for u in unreadable] + [
        f"{s.file} ({s.reason})" for s in folder.skipped
    ]
    why = f"; unreadable: {', '.join(broken[:5])}" if broken else ""
    untold = "".join(f"; {sentence[:1].lower()}{sentence[1:].removesuffix('.')}" for sentence in untraced(folder))
    told = f"{folder.path}: nothing to report on: neither metrics nor a readable trace (.json, .json.gz){why}{untold}"
    return told if why or untold else f"{told}; {HOW_TO_TRACE}"


def _relative(base: Path, source: str) -> str:
    path = Path(source)
    return str(path.relative_to(base)) if base in path.parents else path.name


def _loss(metrics: Sequence[Metrics]) -> Series | None:
    known = next((m for m in metrics if np.isfinite(m.loss).any()), None)
    return None if known is None else _extremes(known, known.loss)


def _extremes(metrics: Metrics, values: Float64) -> Series:
    """At most 1200 points: of each stretch of steps the least and the greatest, so that no peak is lost."""
    keep = np.flatnonzero(np.isfinite(values))
    if len(keep) > LOSS_POINTS:
        stretches = np.array_split(keep, LOSS_POINTS // 2)
        extremes = [(part[np.argmin(values[part])], part[np.argmax(values[part])]) for part in stretches]
        keep = np.unique(np.array(extremes).ravel())
    return Series(metrics.rank, tuple(metrics.step[keep].tolist()), tuple(values[keep].tolist()))


def _medians(metrics: Metrics, values: Float64) -> Series:
    """At most 300 points: the median of each stretch of steps. Steps of many ranks are a thicket otherwise."""
    keep = np.flatnonzero(np.isfinite(values))
    stretches = np.array_split(keep, min(len(keep), STEP_TIME_POINTS))
    return Series(
        rank=metrics.rank,
        steps=tuple(int(metrics.step[part[len(part) // 2]]) for part in stretches),
        values=tuple(float(np.median(values[part])) for part in stretches),
    )


def _slow_steps(metrics: Sequence[Metrics], pauses: Sequence[Pause]) -> tuple[SlowStep, ...]:
    found = []
    for m in metrics:
        limit = SLOW_STEP * (usual(m, m.step_time_s, pauses) or np.inf)
        found += [
            SlowStep(m.rank, int(m.step[i]), float(m.step_time_s[i])) for i in np.flatnonzero(m.step_time_s > limit)
        ]
    return tuple(sorted(found, key=lambda s: (-s.seconds, s.step, s.rank))[:MOST_SLOW_STEPS])
