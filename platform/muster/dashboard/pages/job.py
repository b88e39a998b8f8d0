"""One job: its state, loss and step time, its traces and their analysis, where its pods run, a log, its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from muster.client import LogOptions
from muster.dashboard.analyses import MAX_RAW_BYTES, TraceAnalysis
from muster.dashboard.page import Document, Page, PageRequest
from muster.dashboard.reader import MAX_AGE_S, try_read
from muster.errors import InvalidSpec, MusterError, NotFound, Refused
from muster.heartbeats.progress import current_heartbeat, eta_s, heartbeat_from_status
from muster.text import format_duration
from muster.tracing.formatting import format_seconds
from muster.tracing.page.charts import LinePlot, LineSeries, line_chart
from muster.tracing.read.spans import Int64
from muster.tracing.runs.launches import read_run_time
from muster.tracing.runs.run_folder import MAX_PLAUSIBLE_VALUE, Float64, RankMetrics, read_rank_metrics
from muster.tracing.runs.stored_captures import StoredCapture, stored_captures
from muster.tracing.shared_folder import SharedFolder
from muster.usage.goodput import account_until, by_main_cause
from muster.usage.goodput_text import goodput_sentence
from muster.visibility.types import JobSummary
from muster.workload.placement import index_range

LOG_LINES = 200
_MAX_LINE = 1000  # characters
_MAX_EVENTS = 50
_MAX_ATTEMPTS = 100  # to choose from, the newest
_MAX_POINTS = 400
_EVENTS_REST = 50.0
"""As `rest` of `PageReader.remember`: an API server reads all events of the namespace to find those of one job."""
_MAX_CAPTURES = 20
_SETTLED_S = 5.0
"""A capture of a running job is analysed when no trace has been stored for so long, and none waits to be."""


@dataclass(frozen=True, slots=True)
class PodLog:
    """The last lines of one pod's log."""

    role: str
    index: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class JobCurves:
    """What rank 0 has reported: charts as SVG (empty without values), and its last step."""

    loss: str
    step_time: str
    last: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobTime:
    """What the time of a job was spent on: as a sentence, and milliseconds by cause."""

    sentence: str
    milliseconds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobTraces:
    """The captures in the run folder, the newest first, and the analysis of the newest traces. `location` and `files`
    are those of the job's status, of a job whose run folder is not on this host. `storing`: the newest traces are
    analysed once all of them are stored."""

    captures: Sequence[StoredCapture]
    omitted: int = 0
    analysed: StoredCapture | None = None
    analysis: TraceAnalysis | None = None
    too_large: bool = False
    location: str = ""
    files: int = 0
    storing: bool = False


def _data(request: PageRequest) -> Mapping[str, Any]:
    name, namespace = request.get("name"), request.get("namespace")
    job = request.reader.job(name, namespace)
    key = f"{namespace}/{name}"
    # A few replicas are enough to choose from; others are reached by their number.
    placed = {part.role: [i for node in part.nodes for i in index_range(node.indexes)] for part in job.placement}
    role, index = _chosen_pod(request, placed)
    attempt = _number(request, "attempt")
    is_training = job.object_kind == "TrainingJob"  # others report no steps, and have no run folder
    return {
        "job": job,
        "roles": list(placed),
        "role": role,
        "index": index,
        "attempt": attempt,
        "attempts": range(job.attempt, max(-1, job.attempt - _MAX_ATTEMPTS), -1),
        "log": try_read(
            lambda: (
                request.reader.remember(
                    f"log {key} {role} {index} {attempt}", partial(_read_log, request, role, index, attempt), MAX_AGE_S
                )
                if is_training or role is not None
                else None
            )
        ),
        "events": try_read(
            lambda: request.reader.remember(
                f"events {key}", partial(_read_events, request), MAX_AGE_S, rest=_EVENTS_REST
            )
        ),
        "progress": _progress(request, job),
        "time": try_read(lambda: request.reader.remember(f"time {key}", partial(_read_time, request, job), MAX_AGE_S)),
        "curves": try_read(
            lambda: (
                request.reader.remember(f"curves {key}", partial(_read_curves, request, job), MAX_AGE_S)
                if is_training
                else None
            )
        ),
        "traces": try_read(lambda: _traces(request, job) if is_training else JobTraces([])),
        "log_lines": LOG_LINES,
    }


def _progress(request: PageRequest, job: JobSummary) -> Mapping[str, Any] | None:
    """Step, loss, speed and `eta`, of the newest heartbeat; None without a step. On a cluster the job's status has
    them."""
    name, namespace = request.get("name"), request.get("namespace")
    if job.progress is not None:
        heartbeat = heartbeat_from_status(job.progress)
    else:
        try:
            is_local = request.client.run_dir(name, namespace) is not None
        except MusterError:  # who may read jobs by the read API need not have the right to read the object
            return None
        if not is_local:
            return None
        heartbeat = current_heartbeat(request.client.heartbeats(name, namespace), job.attempt) or {}
    if heartbeat.get("step") is None or heartbeat.get("at") is None:
        return None
    remaining_s = None if job.finished_at is not None else eta_s(heartbeat)
    known = {"loss": None, "steps": None, "tokens_per_s": None, **heartbeat}
    return {**known, "eta": "" if remaining_s is None else format_duration(remaining_s)}


def _read_time(request: PageRequest, job: JobSummary) -> JobTime | None:
    """None of a job of another kind, or of a daemon or operator of a version without it."""
    if job.time_spent is None or job.object_kind != "TrainingJob":
        return None
    now, run = request.now, None
    name, namespace = request.get("name"), request.get("namespace")
    with suppress(MusterError):  # who may read jobs by the read API need not have the right to read the object
        if job.started_at is not None and (folder := request.client.run_dir(name, namespace)) is not None:
            role = request.client.job(name, namespace).spec.roles[0].name
            run = read_run_time(Path(folder), role, job.finished_at or now)
    spent = account_until(job.time_spent, now, run)
    return JobTime(goodput_sentence(spent, job.attempt), by_main_cause(spent))


def _chosen_pod(request: PageRequest, placed: Mapping[str, Sequence[int]]) -> tuple[str | None, int]:
    """The role and index of the log to show: by default the first placed pod; no role if nothing is known.

    Raises `InvalidSpec` for an index that is not a number."""
    index = _number(request, "index")
    role = request.get("role") or next(iter(placed), None)
    indexes = placed.get(role or "", ())
    return role, min(indexes, default=0) if index is None else index


def _number(request: PageRequest, name: str) -> int | None:
    """The value of a parameter; None if it is not given. Raises `InvalidSpec` for one that is not a number."""
    text = request.get(name)
    if text and not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InvalidSpec(f"{name}: must be a number from 0; got {text[:80]!r}", field=name)
    return int(text) if text else None


def _read_log(request: PageRequest, role: str | None, index: int, attempt: int | None) -> PodLog | None:
    """The log of an attempt, by default of the newest one that has a log. None if the job has not had a pod."""
    name, namespace = request.get("name"), request.get("namespace")
    if role is None:
        role = request.client.job(name, namespace).spec.roles[0].name
    try:
        options = LogOptions(attempt=attempt, tail_lines=LOG_LINES)
        lines = [line[:_MAX_LINE] for line in request.client.log_lines(name, namespace, role, index, options)]
    except NotFound as error:
        if attempt is not None or error.reason in ("RoleNotFound", "ReplicaNotFound"):
            raise
        return None
    return PodLog(role, index, lines)


def _read_events(request: PageRequest) -> Sequence[Mapping[str, Any]]:
    """The newest first."""
    found = request.client.events(request.get("name"), request.get("namespace"))
    return list(reversed(found))[:_MAX_EVENTS]


def _read_curves(request: PageRequest, job: JobSummary) -> JobCurves | None:
    """None without steps. On a cluster the collector of a running job has them."""
    folder = request.client.run_dir(request.get("name"), request.get("namespace"))
    if folder is None:
        return None if job.progress is None or job.finished_at is not None else _read_live_curves(request)
    metrics = read_rank_metrics(Path(folder))
    return None if metrics is None else curves_of(metrics)


def _read_live_curves(request: PageRequest) -> JobCurves | None:
    """None if no pod with a collector runs, or the operator or the chart is of a version without curves."""
    try:
        points = request.reader.curve(request.get("name"), request.get("namespace")).points
    except Refused:
        return None
    unknown = float("nan")
    loss = np.array([unknown if point.loss is None else point.loss for point in points])
    times = np.array([unknown if point.step_seconds is None else point.step_seconds for point in points])
    loss[np.abs(loss) > MAX_PLAUSIBLE_VALUE] = unknown
    times[np.abs(times) > MAX_PLAUSIBLE_VALUE] = unknown
    # The job's status has the last step, also after the pods have ended.
    return _charts(np.array([point.step for point in points]), loss, times, {}) if points else None


def _traces(request: PageRequest, job: JobSummary) -> JobTraces:
    name, namespace = request.get("name"), request.get("namespace")
    read = partial(_read_traces, request, job.finished_at is not None)
    return request.reader.remember(f"traces {namespace}/{name}", read, MAX_AGE_S)


def _read_traces(request: PageRequest, has_finished: bool) -> JobTraces:
    """Traces of a job that has finished may remain where its ranks wrote them."""
    name, namespace = request.get("name"), request.get("namespace")
    folder = request.client.run_dir(name, namespace)
    if folder is None:
        stored = request.client.job(name, namespace).status.traces
        return JobTraces([]) if stored is None else JobTraces([], location=stored.location, files=stored.files)
    captures = stored_captures(SharedFolder(folder))
    shown, omitted = captures[:_MAX_CAPTURES], len(captures[_MAX_CAPTURES:])
    newest = next((one for one in captures if one.kind == "trace" and (one.ranks or one.waiting)), None)
    if newest is None:
        return JobTraces(shown, omitted)
    if request.now - newest.collected_at < _SETTLED_S or (newest.waiting and not has_finished):
        return JobTraces(shown, omitted, storing=True)
    if newest.raw_bytes > MAX_RAW_BYTES:
        return JobTraces(shown, omitted, newest, too_large=True)
    return JobTraces(shown, omitted, newest, request.analyses.get(folder, name, newest))


def _report(request: PageRequest) -> bytes | None:
    """The report of the newest traces; None while it is being built. The first request begins that."""
    traces = _traces(request, request.reader.job(request.get("name"), request.get("namespace")))
    if traces.analysis is None or not traces.analysis.done:
        return None
    if traces.analysis.error:
        raise Refused(traces.analysis.error, reason="ReportFailed")
    try:
        return traces.analysis.page.read_bytes()
    except OSError as error:
        raise NotFound(f"the report was removed: {error}", reason="ReportNotReady") from error


def _report_data(request: PageRequest) -> Mapping[str, Any]:
    """Why there is no report yet. Raises `NotFound` if there is nothing to build one from."""
    job = request.reader.job(request.get("name"), request.get("namespace"))
    traces = _traces(request, job)
    if not (traces.analysed or traces.storing or traces.location):
        raise NotFound("the job has no report yet: no traces are stored", reason="ReportNotReady")
    return {"job": job, "traces": traces}


def curves_of(metrics: RankMetrics) -> JobCurves:
    """Charts of loss and step time, each of at most some hundred points, without the first step, which compiles."""
    last = {
        "step": float(metrics.step[-1]),
        "loss": float(metrics.loss[-1]),
        "step_time_s": float(metrics.step_time_s[-1]),
        "tokens_per_s": float(metrics.tokens_per_s[-1]),
    }
    known = {key: value for key, value in last.items() if value == value}  # NaN: not reported
    return _charts(metrics.step, metrics.loss, metrics.step_time_s, known)


def _charts(steps: Int64, loss: Float64, times: Float64, last: Mapping[str, float]) -> JobCurves:
    """NaN: not reported."""
    losses = line_chart([_series("loss", steps, loss)], LinePlot("Loss over steps"))
    if len(steps) > 1:
        steps, times = steps[1:], times[1:]
    plot = LinePlot("Step time over steps", y_from_zero=True, y_is_time=True, show_value=format_seconds)
    return JobCurves(losses, line_chart([_series("step time", steps, times)], plot), last)


def _series(label: str, steps: Any, values: Float64) -> LineSeries:
    known = values == values  # NaN: not reported
    steps, values = steps[known], values[known]
    every = -(-len(values) // _MAX_POINTS) or 1
    chosen = [*range(0, len(values), every)]
    if len(values) and chosen[-1] != len(values) - 1:
        chosen.append(len(values) - 1)
    return LineSeries(label, "c0", tuple((float(steps[i]), float(values[i])) for i in chosen))


PAGE = Page(
    "/jobs/{namespace}/{name}", "Job", "job.html", _data, parameters=("role", "index", "attempt"), in_navigation=False
)
REPORT = Document("/jobs/{namespace}/{name}/report", _report)
REPORT_PAGE = Page(REPORT.path, "Report", "report.html", _report_data, in_navigation=False)
