"""Fetches the run of a job in a cluster from the store named in its status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from muster.cli.views.job_text import no_output_reason, qualified_name
from muster.errors import Refused
from muster.kubernetes.run_location import is_remote_store

if TYPE_CHECKING:
    from muster.spec import TrainingJob


def fetch_run(job: TrainingJob, max_bytes: int) -> Path:
    """Download what a report needs of the job's run, at most `max_bytes`, and return the local folder. Raises `Refused`
    that says where the run is if it is not in a store, and the errors of `muster.tracing.run_fetch.fetch_run`."""
    from muster.local.home import home_path
    from muster.tracing.run_fetch import fetch_run

    location = store_url(job)
    meta = job.metadata
    folder = home_path() / "fetched" / (meta.namespace or "default") / f"{meta.name}-{meta.uid}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return fetch_run(location, folder, max_bytes=max_bytes).folder


def store_url(job: TrainingJob) -> str:
    """The URL of the run's folder in a store. Raises `Refused` if it has none."""
    name, traces = qualified_name(job), job.status.traces
    if job.status.attempt == 0 and job.status.started_at is None and traces is None:
        raise Refused(f"the job has not started: {no_output_reason(job)}", reason="NotStarted")
    if traces is None and job.spec.trace is None:
        from muster.tracing import HOW_TO_TRACE

        message = f"job {name} was not traced, so its run was not collected; {HOW_TO_TRACE}"
        raise Refused(
            f"{message}; or copy its run folder out of the cluster: muster report DIR", reason="RunNotAccessible"
        )
    if traces is None:
        message = f"the run of job {name} was not collected: the operator has no collector image (--collector-image),"
        raise Refused(f"{message} or the pods are still starting", reason="RunNotAccessible")
    scheme = urlsplit(traces.location).scheme
    if is_remote_store(traces.location):
        return traces.location
    if not scheme:
        message = f"the traces of job {name} are deleted with its pods: the operator has no --collector-store"
        raise Refused(f"{message} and the job has no volume named muster-run", reason="RunNotAccessible")
    volume, _, folder = traces.location.partition("://")[2].partition("/")
    of = f"claim {volume} in namespace {job.metadata.namespace}" if scheme == "pvc" else f"volume {volume} of its pods"
    message = f"the run of job {name} is in folder {folder or '/'} of {of}, not in a store"
    raise Refused(f"{message}; copy that folder to this host: muster report DIR", reason="RunNotAccessible")
