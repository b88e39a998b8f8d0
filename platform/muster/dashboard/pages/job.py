"""One job: its state, loss and step time, where its pods run, the end of a log, its events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from muster.client import LogOptions
from muster.dashboard.page import Page, PageRequest
from muster.dashboard.reader import try_read
from muster.errors import InvalidSpec, NotFound
from muster.lifecycle.placement import index_range
from muster.tracing.charts import LinePlot, LineSeries, line_chart
from muster.tracing.formatting import format_seconds
from muster.tracing.run_folder import Float64, RankMetrics, read_rank_metrics

LOG_LINES = 200
_MAX_LINE = 1000  # characters
_MAX_EVENTS = 50
_MAX_POINTS = 400
_EVENTS_AGE_S = 5.0
_LOG_AGE_S = 1.5
_METRICS_AGE_S = 1.5
_STYLE = re.compile(r' style="[^"]*"')


@dataclass(frozen=True, slots=True)
class PodLog:
    """The last lines of one pod's log."""

    role: str
    index: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class JobCurves:
    """What rank 0 has reported: charts as SVG (empty without values), and its last step."""

    loss: Markup
    step_time: Markup
    last: Mapping[str, float]


def _data(request: PageRequest) -> Mapping[str, Any]:
    name, namespace = request.get("name"), request.get("namespace")
    job = request.reader.job(name, namespace)
    key = f"{namespace}/{name}"
    # A few replicas are enough to choose from; others are reached by their number.
    placed = {part.role: [i for node in part.nodes for i in index_range(node.indexes)] for part in job.placement}
    role, index = _chosen_pod(request, placed)
    return {
        "job": job,
        "roles": list(placed),
        "role": role,
        "index": index,
        "log": try_read(
            lambda: request.reader.remember(
                f"log {key} {role} {index}", partial(_read_log, request, role, index), _LOG_AGE_S
            )
        ),
        "events": try_read(
            lambda: request.reader.remember(f"events {key}", partial(_read_events, request), _EVENTS_AGE_S)
        ),
        "curves": try_read(
            lambda: request.reader.remember(f"curves {key}", partial(_read_curves, request), _METRICS_AGE_S)
        ),
        "cli_name": name if namespace == "default" else key,
        "log_lines": LOG_LINES,
    }


def _chosen_pod(request: PageRequest, placed: Mapping[str, Sequence[int]]) -> tuple[str | None, int]:
    """The role and index of the log to show: by default the first placed pod; no role if nothing is known.

    Raises `InvalidSpec` for an index that is not a number."""
    text = request.get("index")
    if text and not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise InvalidSpec(f"index: must be a number from 0; got {text[:80]!r}", field="index")
    role = request.get("role") or next(iter(placed), None)
    indexes = placed.get(role or "", ())
    return role, int(text) if text else min(indexes, default=0)


def _read_log(request: PageRequest, role: str | None, index: int) -> PodLog | None:
    """None if the job has not had a pod."""
    name, namespace = request.get("name"), request.get("namespace")
    if role is None:
        role = request.client.job(name, namespace).spec.roles[0].name
    try:
        options = LogOptions(tail_lines=LOG_LINES)
        lines = [line[:_MAX_LINE] for line in request.client.log_lines(name, namespace, role, index, options)]
    except NotFound as error:
        if error.reason in ("RoleNotFound", "ReplicaNotFound"):
            raise
        return None
    return PodLog(role, index, lines)


def _read_events(request: PageRequest) -> Sequence[Mapping[str, Any]]:
    """The newest first."""
    found = request.client.events(request.get("name"), request.get("namespace"))
    return list(reversed(found))[:_MAX_EVENTS]


def _read_curves(request: PageRequest) -> JobCurves | None:
    """None without a run folder on this host, or without steps."""
    folder = request.client.run_dir(request.get("name"), request.get("namespace"))
    metrics = None if folder is None else read_rank_metrics(Path(folder))
    return None if metrics is None else curves_of(metrics)


def curves_of(metrics: RankMetrics) -> JobCurves:
    """Charts of loss and step time, each of at most some hundred points, without the first step, which compiles."""
    last = {
        "step": float(metrics.step[-1]),
        "loss": float(metrics.loss[-1]),
        "step_time_s": float(metrics.step_time_s[-1]),
        "tokens_per_s": float(metrics.tokens_per_s[-1]),
    }
    times = metrics.step_time_s if len(metrics) == 1 else metrics.step_time_s[1:]
    steps = metrics.step if len(metrics) == 1 else metrics.step[1:]
    loss = line_chart([_series("loss", metrics.step, metrics.loss)], LinePlot("Loss over steps"))
    plot = LinePlot("Step time over steps", y_from_zero=True, y_is_time=True, show_value=format_seconds)
    step_time = line_chart([_series("step time", steps, times)], plot)
    known = {key: value for key, value in last.items() if value == value}  # NaN: not reported
    return JobCurves(_without_style(loss), _without_style(step_time), known)


def _without_style(chart: str) -> Markup:
    """The dashboard's Content-Security-Policy allows no inline styles."""
    return Markup(_STYLE.sub("", chart, count=1))


def _series(label: str, steps: Any, values: Float64) -> LineSeries:
    known = values == values  # NaN: not reported
    steps, values = steps[known], values[known]
    every = -(-len(values) // _MAX_POINTS) or 1
    chosen = [*range(0, len(values), every)]
    if len(values) and chosen[-1] != len(values) - 1:
        chosen.append(len(values) - 1)
    return LineSeries(label, "c0", tuple((float(steps[i]), float(values[i])) for i in chosen))


PAGE = Page("/jobs/{namespace}/{name}", "Job", "job.html", _data, parameters=("role", "index"), in_navigation=False)
