"""What a step records of a job that has ended: its last metrics, the location of its run, and the report."""

from __future__ import annotations

import html
import math
import shutil
import tempfile
from pathlib import Path

from muster.api.spec import TrainingJob
from muster.client import ClusterClient
from muster.cluster_client.jobs import is_remote_store
from muster.errors import MusterError
from muster.follow import status_message
from muster.heartbeats.progress import leading_heartbeat

_METRICS = {"loss": "loss", "step": "step", "tokens_per_s": "tokens_per_second", "mfu": "mfu"}
"""Metrics by the field of a heartbeat (docs/reference/run-folder.md)."""


def collect_metrics(client: ClusterClient, job: TrainingJob) -> dict[str, float]:
    """The last reported loss, step, tokens per second and MFU, as far as known and finite; restarts and run time.

    An error is printed: the job has ended, so its step does not fail because of it."""
    found: dict[str, float] = {}
    try:
        heartbeats = client.heartbeats(job.metadata.name, job.metadata.namespace or "default")
        heartbeat = leading_heartbeat(heartbeats) or {}
        metrics = {metric: heartbeat.get(field) for field, metric in _METRICS.items()}
        found = {metric: float(value) for metric, value in metrics.items() if isinstance(value, int | float)}
    except Exception as error:
        print(f"muster: the last metrics cannot be read: {_reason(error)}", flush=True)
    found["restarts"] = float(job.status.restarts)
    if job.status.started_at is not None and job.status.finished_at is not None:
        found["run_seconds"] = round(job.status.ran_seconds + job.status.finished_at - job.status.started_at, 3)
    return {metric: value for metric, value in found.items() if math.isfinite(value)}


def run_location(client: ClusterClient, job: TrainingJob) -> str:
    """The run folder on this host, or its location in a store or volume; empty if it was deleted with the pods."""
    folder = client.run_dir(job.metadata.name, job.metadata.namespace or "default")
    return str(folder) if folder is not None else job.status.traces.location if job.status.traces else ""


def write_report(client: ClusterClient, job: TrainingJob, path: Path) -> None:
    """Write the report of the run as one HTML page; if there is none or it cannot be built, a page that says why."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        page = _report_page(client, job)
        if page is not None:
            shutil.copyfile(page, path)
            return
        reason = "the run was not traced, or it is not in a store that this step can read"
    except Exception as error:  # the job has ended; its step does not fail because of its report
        reason = _reason(error)
        print(f"muster: no report: {reason}", flush=True)
    location = run_location(client, job)
    lines = [status_message(job), f"No report: {reason}.", f"Run: {location}" if location else ""]
    body = "".join(f"<p>{html.escape(line)}</p>" for line in lines if line)
    path.write_text(f"<!doctype html><meta charset=utf-8><title>{html.escape(job.metadata.name)}</title>{body}\n")


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MusterError) else f"{type(error).__name__}: {error}"


def _report_page(client: ClusterClient, job: TrainingJob) -> Path | None:
    """The page that the daemon of this host has built; else one that is built here from the run folder or the store.
    None if the run is elsewhere."""
    from muster.tracing.analysis.cores import usable_cores
    from muster.tracing.report import build

    traces = job.status.traces
    if traces is not None and traces.report:
        return Path(traces.report)
    workers = usable_cores()
    folder = client.run_dir(job.metadata.name, job.metadata.namespace or "default")
    if folder is not None:
        return Path(str(build(folder, name=job.metadata.name, workers=workers).page)) if folder.is_dir() else None
    if traces is None or not is_remote_store(traces.location):
        return None
    from muster.tracing.runs.run_store import fetch_run

    fetched = fetch_run(traces.location, Path(tempfile.mkdtemp(prefix="muster-run-"))).folder
    return Path(str(build(fetched, name=job.metadata.name, workers=workers).page))
